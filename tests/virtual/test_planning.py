"""Plans from descriptions alone: order, places, what does not fit, and what is said about it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from icefloe import InvalidInputError
from icefloe.virtual.model.data_types import bytes_codec, data_type_of
from icefloe.virtual.model.description import (
    GroupDescription,
    Joiner,
    SourceDescription,
    SourceVersion,
    Splitter,
    VariableDescription,
    cut_leading,
    digest_of,
    index_of,
    make_references,
    shift_references,
)
from icefloe.virtual.planning.file_boxes import Existing, Ledger
from icefloe.virtual.planning.plan import ArrayPlan, BoxIndex, IngestOptions, IngestPlan
from icefloe.virtual.planning.planner import plan_ingest

DAYS = "days since 2000-01-01"


def variable(
    path: str,
    dimensions: tuple[str, ...],
    shape: tuple[int, ...] | None = None,
    values: Any = None,
    dtype: str = "<f4",
    **changes: Any,
) -> VariableDescription:
    if values is not None:
        values = np.asarray(values)
        shape, dtype = values.shape, values.dtype.str
    assert shape is not None
    fields: dict[str, Any] = {
        "path": path,
        "dtype": dtype,
        "shape": shape,
        "chunks": tuple(max(1, size) for size in shape),
        "dimensions": dimensions,
        "attributes": {},
        "data_type": data_type_of(np.dtype(dtype)),
        "fill_value": 0,
        "codecs": (bytes_codec(np.dtype(dtype)),),
        "values": values,
        "digest": None if values is None else digest_of(values),
    }
    return VariableDescription(**{**fields, **changes})


def source(name: str, *variables: VariableDescription, **dimensions: int) -> SourceDescription:
    sizes = dict(dimensions)
    for item in variables:
        sizes |= dict(zip(item.dimensions, item.shape, strict=True))
    groups = {"": GroupDescription({"from": name}, sizes)}
    found = {item.path: item for item in variables}
    return SourceDescription(f"s3://bucket/{name}", "hdf5", SourceVersion(10, name), groups, found)


def times(values: Any, units: str = DAYS, **attributes: Any) -> VariableDescription:
    return variable("time", ("time",), values=values, attributes={"units": units, **attributes})


def step(name: str, values: Any, width: int = 4, **changes: Any) -> SourceDescription:
    """A file with a variable over time and x."""
    x = variable("x", ("x",), values=np.arange(width))
    data = variable("data", ("time", "x"), (len(values), width), **changes)
    return source(name, times(values), x, data)


def plan(*sources: SourceDescription, **options: Any) -> IngestPlan:
    return plan_ingest(sources, IngestOptions(**options))


def array(made: IngestPlan, path: str) -> ArrayPlan:
    [found] = [item for item in made.arrays if item.path == path]
    return found


def reasons(made: IngestPlan) -> dict[str, str]:
    return {problem.location.rpartition("/")[2]: problem.reason for problem in made.problems}


# -- order and places


def test_files_are_put_in_the_order_of_their_coordinates() -> None:
    made = plan(step("late", [6, 7]), step("early", [0, 1, 2]), step("middle", [3, 4]))
    assert made.concat_dims == ("time",)
    data = array(made, "data")
    assert data.shape == (7, 4)
    assert data.starts[:, 0].tolist() == [5, 0, 3]
    time = array(made, "time")
    assert time.storage == "values"
    assert time.values is not None
    assert time.values.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert made.groups[""] == {"from": "early"}
    assert pickle.loads(pickle.dumps(made)).arrays[0].target == made.arrays[0].target


def test_descending_coordinates_stay_descending() -> None:
    def tile(name: str, values: list[float]) -> SourceDescription:
        lat = variable("lat", ("lat",), values=np.array(values))
        return source(name, lat, variable("data", ("lat",), (len(values),)))

    made = plan(tile("south", [10.0, 5.0]), tile("north", [40.0, 30.0, 20.0]))
    values = array(made, "lat").values
    assert values is not None
    assert values.tolist() == [40.0, 30.0, 20.0, 10.0, 5.0]
    assert array(made, "data").starts[:, 0].tolist() == [3, 0]


def test_tiles_of_two_dimensions_with_one_missing() -> None:
    def tile(t: int, x: int) -> SourceDescription:
        grid = variable("x", ("x",), values=np.arange(3) + 3 * x)
        data = variable("data", ("time", "x"), (2, 3))
        return source(f"t{t}x{x}", times([2 * t, 2 * t + 1]), grid, data)

    made = plan(tile(1, 0), tile(0, 1), tile(0, 0))
    assert set(made.concat_dims) == {"time", "x"}
    data = array(made, "data")
    assert data.shape == (4, 6)
    assert data.starts.tolist() == [[2, 0], [0, 3], [0, 0]]
    regions = list(data.blocks(max_bytes=1))
    assert sum(len(data.parts(region)) for region in regions) == 3


def test_variables_of_different_files_are_merged() -> None:
    x = variable("x", ("x",), values=np.arange(3))
    made = plan(
        source("a", x, variable("first", ("x",), (3,))),
        source("b", x, variable("second", ("x",), (3,))),
    )
    assert made.concat_dims == ()
    assert [item.path for item in made.arrays] == ["x", "first", "second"]
    assert [item.sources.tolist() for item in made.arrays] == [[0], [0], [1]]


def test_merged_and_joined_at_once_even_with_other_cuts() -> None:
    def of(name: str, path: str, values: list[int]) -> SourceDescription:
        return source(name, times(values), variable(path, ("time",), (len(values),)))

    made = plan(of("a", "wind", [0, 1, 2, 3]), of("b", "rain", [2, 3]), of("c", "rain", [0, 1]))
    assert array(made, "rain").starts[:, 0].tolist() == [2, 0]
    assert array(made, "rain").shape == array(made, "wind").shape == (4,)


def test_scalar_coordinates_become_a_dimension() -> None:
    def snapshot(name: str, when: int) -> SourceDescription:
        time = variable("time", (), values=np.array(when), attributes={"units": DAYS})
        data = variable("data", ("x",), (3,), attributes={"coordinates": "time"})
        return source(name, time, data, variable("x", ("x",), values=np.arange(3)))

    made = plan(snapshot("b", 9), snapshot("a", 4))
    assert made.concat_dims == ("time",)
    data = array(made, "data")
    assert data.metadata["dimension_names"] == ["time", "x"]
    assert (data.shape, data.num_new_axes) == ((2, 3), 1)
    assert data.starts.tolist() == [[1, 0], [0, 0]]
    assert array(made, "x").shape == (3,)
    values = array(made, "time").values
    assert values is not None
    assert values.tolist() == [4, 9]
    [part] = data.parts((slice(1, 2), slice(0, 3)))
    assert (part.source, part.source_region) == (0, (slice(0, 3),))


def test_without_coordinates_files_follow_as_listed() -> None:
    def of(name: str, size: int) -> SourceDescription:
        return source(name, variable("data", ("n",), (size,)))

    made = plan(of("z", 2), of("a", 5), concat_dims=("n",))
    assert array(made, "data").starts[:, 0].tolist() == [0, 2]


def test_a_dimension_no_file_has_is_made() -> None:
    def of(name: str) -> SourceDescription:
        return source(name, variable("data", ("n",), (2,)))

    made = plan(of("z"), of("a"), concat_dims=("member",))
    data = array(made, "data")
    assert data.metadata["dimension_names"] == ["member", "n"]
    assert data.starts.tolist() == [[0, 0], [1, 0]]


def test_the_same_files_twice_cannot_be_ordered() -> None:
    def of(name: str) -> SourceDescription:
        return source(name, variable("data", ("n",), (2,)))

    with pytest.raises(InvalidInputError, match="concat_dim"):
        plan(of("a"), of("b"))


# -- times


def test_times_in_other_units_are_compared_and_written_in_those_of_the_first() -> None:
    later = source(
        "later",
        times(np.array([48, 72]), "hours since 2000-01-01", bounds="time_bnds"),
        variable("time_bnds", ("time", "bnds"), (2, 2), dtype="<i8"),
    )
    first = source(
        "first",
        times(np.array([0, 1]), DAYS, bounds="time_bnds"),
        variable("time_bnds", ("time", "bnds"), (2, 2), dtype="<i8"),
    )
    made = plan(later, first)
    time = array(made, "time")
    assert time.values is not None
    assert time.values.tolist() == [0, 1, 2, 3]
    assert time.metadata["attributes"]["units"] == DAYS
    bounds = array(made, "time_bnds")
    assert bounds.times is not None
    assert list(bounds.source_times) == [0]


def test_times_that_do_not_fit_the_first_units_are_named() -> None:
    later = source("later", times(np.array([54]), "hours since 2000-01-01"))
    made = plan(source("first", times(np.array([0, 1]))), later)
    assert "exactly as int64 in 'days since 2000-01-01'" in reasons(made)["later"]


def test_other_calendars_cannot_be_joined() -> None:
    made = plan(
        source("a", times([0, 1])),
        source("b", times([2, 3], DAYS, calendar="360_day")),
        source("c", times([4, 5])),
    )
    assert "360_day" in reasons(made)["b"]
    assert array(made, "time").shape == (4,)


# -- what does not fit


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (step("odd", [4, 5], width=3), "size of x 3, other files 4"),
        (step("odd", [4, 5], dtype="<i8"), "type i8, other files f4"),
        (step("odd", [4, 5], attributes={"add_offset": "a"}), 'add_offset "a", other files not'),
        (step("odd", [4, 5], attributes={"units": "K"}), 'units "K", other files not set'),
        (step("odd", [1, 2]), "fills already"),
        (step("odd", [5, 4]), "not ascending"),
        (step("odd", [4, 4]), "twice"),
        (source("odd", times([4]), variable("data", ("x", "time"), (4, 1))), "dimensions ('x'"),
        (source("odd", times([4]), variable("x", ("x",), values=np.arange(4) + 1)), "other values"),
        (source("odd", variable("data", ("time", "x"), (2, 4))), "without a coordinate"),
        (source("odd", variable("lists", ("time",), (2,), data_type=None, reason="odd type")),
         "variable 'lists' cannot be stored: odd type"),
        (source("odd"), "it has no variables"),
    ],
)  # fmt: skip
def test_the_odd_file_is_named_with_its_reason(odd: SourceDescription, reason: str) -> None:
    good = [step("a", [0, 1]), step("b", [2, 3]), step("c", [6, 7])]
    # The odd one comes first: it must not speak for the others.
    made = plan_ingest([odd, *good], IngestOptions(concat_dims=("time",)))
    if reason == "fills already":  # here the first one listed is right by definition
        made = plan_ingest([*good, odd], IngestOptions(concat_dims=("time",)))
    assert list(reasons(made)) == ["odd"]
    assert reason in reasons(made)["odd"]
    assert array(made, "data").shape == (6, 4)
    assert [item.location for item in made.sources] == [item.location for item in good]
    with pytest.raises(InvalidInputError, match=r"(?s)1 file cannot.*odd: "):
        made.raise_problems()


def test_values_between_those_of_another_file_are_refused() -> None:
    made = plan(step("a", [0, 2, 4]), step("b", [1, 3]), step("c", [5, 6]))
    assert set(reasons(made)) == {"a", "b"} or set(reasons(made)) == {"b"}
    assert all("overlap" in reason for reason in reasons(made).values())


def test_chosen_variables_bring_their_coordinates() -> None:
    extra = variable("other", ("z",), (5,))
    area = variable("area", ("x",), (4,))
    data = variable("data", ("time", "x"), (2, 4), attributes={"coordinates": "area"})
    whole = source(
        "a", times([0, 1]), data, extra, area, variable("x", ("x",), values=np.arange(4))
    )
    made = plan(whole, variables=("data",))
    assert {item.path for item in made.arrays} == {"data", "time", "x", "area"}
    bare = source("b", times([2, 3]), variable("x", ("x",), values=np.arange(4)))
    assert "it has none of ['data']" in reasons(plan(whole, bare, variables=("data",)))["b"]
    with pytest.raises(
        InvalidInputError, match="'dtaa', a variable that no file has; did you mean"
    ):
        plan(whole, variables=("dtaa",))


# -- virtual


def big(name: str, values: list[int], chunk: int = 2, **changes: Any) -> SourceDescription:
    shape = (len(values), 1 << 20)
    data = variable("data", ("time", "x"), shape, chunks=(chunk, 1 << 20), **changes)
    return source(name, times(values), data)


def test_references_need_whole_chunks_in_every_file_but_the_last() -> None:
    files = [big("a", [0, 1]), big("b", [2, 3, 4]), big("c", [5, 6])]
    made = plan(*files, mode="virtual")
    assert "chunks of 2" in reasons(made)["b"]
    made = plan(files[0], big("last", [2, 3, 4]), mode="virtual")
    assert not made.problems
    assert array(made, "data").storage == "virtual"
    assert array(made, "data").metadata["codecs"] == list(files[0].variables["data"].codecs or ())


def test_contiguous_files_of_different_lengths_are_cut() -> None:
    files = [
        big("a", list(range(4)), 4, is_contiguous=True),
        big("b", list(range(4, 10)), 6, is_contiguous=True),
    ]
    made = plan(*files, mode="virtual")
    assert array(made, "data").chunks == (2, 1 << 20)
    table = make_references(np.zeros((1, 2)), "s3://b/f", np.array([100]), np.array([600]))
    cut = cut_leading(table, (6, 4), (2, 4))
    assert index_of(cut).tolist() == [[0, 0], [1, 0], [2, 0]]
    assert cut["offset"].to_pylist() == [100, 300, 500]
    assert cut["length"].to_pylist() == [200, 200, 200]
    assert index_of(shift_references(cut, [2, 0])).tolist() == [[2, 0], [3, 0], [4, 0]]


def test_what_has_no_codecs_is_refused_when_large_and_copied_when_small() -> None:
    odd: dict[str, Any] = {"codecs": None, "reason": "it is stored with szip"}
    refused = plan(big("a", [0, 1], **odd), mode="virtual")
    assert len(refused.problems) == 1
    assert "it is stored with szip; use mode='native'" in refused.problems[0].reason
    made = plan(step("a", [0, 1], **odd), mode="virtual")
    assert array(made, "data").storage == "native"
    assert made.notes == ("variable 'data' is copied: it is stored with szip",)


# -- chunks


def test_chunks_are_those_of_the_source_unless_tiny_or_huge() -> None:
    good = step("a", list(range(10)), 200_000, chunks=(1, 100_000))
    assert array(plan(good), "data").chunks == (1, 100_000)
    tiny = step("a", list(range(1000)), 10, chunks=(1, 10))
    assert array(plan(tiny), "data").chunks == (1000, 10)
    huge = step("a", list(range(1000)), 1_000_000, chunks=(200, 1_000_000))
    chunks = array(plan(huge), "data").chunks
    assert np.prod(chunks) * 4 <= 64 * 2**20
    wished = array(plan(good, chunks={"time": 50, "x": 7}), "data").chunks
    assert wished == (50, 7)


def test_blocks_cover_everything_once_and_never_share_a_chunk() -> None:
    made = plan(step("a", [0, 1, 2]), step("b", [3, 4, 5, 6]), chunks={"time": 2, "x": 3})
    data = array(made, "data")
    count = np.zeros(data.shape, int)
    owners: dict[tuple[int, int], int] = {}
    for number, region in enumerate(data.blocks(max_bytes=30)):
        count[region] += 1
        for row in range(region[0].start // 2, -(-region[0].stop // 2)):
            for column in range(region[1].start // 3, -(-region[1].stop // 3)):
                assert owners.setdefault((row, column), number) == number
    assert (count == 1).all()


# -- appending


def existing(values: list[int], *known: SourceDescription) -> Existing:
    there = step("there", values)
    documents = {item.path: array_document_of(item) for item in there.variables.values()}
    return Existing(there, documents, Ledger({item.location: item.version for item in known}))


def array_document_of(item: VariableDescription) -> dict[str, Any]:
    return {
        "shape": list(item.shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(item.chunks)}},
        "codecs": list(item.codecs or ()),
        "attributes": item.attributes,
    }


def test_only_new_files_are_appended_and_changed_ones_are_named() -> None:
    old, changed, new = step("old", [0, 1]), step("changed", [2, 3]), step("new", [4, 5])
    there = existing([0, 1, 2, 3], old, changed)
    other = SourceDescription(
        changed.location, "hdf5", SourceVersion(11, "new etag"), changed.groups, changed.variables
    )
    made = plan_ingest([old, other, new], IngestOptions(concat_dims=("time",)), there)
    assert made.unchanged == ("s3://bucket/old",)
    assert reasons(made) == {
        "changed": "it has changed since it was ingested; changed='replace' writes it again"
    }
    data = array(made, "data")
    assert (data.shape, data.old_shape) == ((6, 4), (4, 4))
    assert data.starts.tolist() == [[4, 0]]
    assert {item.path for item in made.arrays} == {"data", "time"}
    assert made.groups == {}


def test_nothing_is_inserted_before_the_end() -> None:
    there = existing([10, 11])
    before, inside = step("before", [0, 1]), step("again", [10, 11])
    made = plan_ingest([before, inside], IngestOptions(concat_dims=("time",)), there)
    assert "only be appended" in reasons(made)["before"]
    assert "the repository fills already" in reasons(made)["again"]
    assert made.arrays == ()


def test_an_appended_file_has_to_be_like_the_repository() -> None:
    odd = [step(name, [at], dtype="<f8") for name, at in (("a", 4), ("b", 5), ("c", 6))]
    made = plan_ingest(odd, IngestOptions(concat_dims=("time",)), existing([0, 1]))
    assert {"type f8, the repository f4" in reason for reason in reasons(made).values()} == {True}


def test_descriptions_share_what_files_have_in_common() -> None:
    grid = np.linspace(0, 1, 5000)
    given = []
    for part in range(50):
        one = step(f"{part}", [2 * part, 2 * part + 1], 5000)
        alike = {"": replace(one.groups[""], attributes={"title": "all the same"})}
        x = variable("x", ("x",), values=grid)
        given.append(replace(one, groups=alike, variables={**one.variables, "x": x}))
    splitter, joiner = Splitter(), Joiner()
    slim = [splitter.split(pickle.loads(pickle.dumps(source))) for source in given]
    assert max(map(len, slim)) < 600
    parts = [*splitter.fresh(), *splitter.finish()]
    assert sum(len(data) for _, data in parts) < 50_000
    assert list(splitter.fresh()) == []
    for key, data in parts:
        joiner.add(key, data)
    found = [joiner.join(source.location, data) for source, data in zip(given, slim, strict=True)]
    for mine, theirs in zip(found, given, strict=True):
        assert (mine.location, mine.version) == (theirs.location, theirs.version)
        assert list(mine.variables) == list(theirs.variables)
        np.testing.assert_array_equal(
            np.asarray(mine.variables["time"].values), np.asarray(theirs.variables["time"].values)
        )
    assert len({id(source.variables["x"]) for source in found}) == 1
    assert {str(source.attributes_of("")) for source in found} == {"{'title': 'all the same'}"}
    assert len({id(source.groups) for source in found}) == 1
    ours, theirs_plan = plan(*found), plan(*given)
    for mine_array, their_array in zip(ours.arrays, theirs_plan.arrays, strict=True):
        assert mine_array.metadata == their_array.metadata
        np.testing.assert_array_equal(mine_array.starts, their_array.starts)


def test_the_files_of_a_region_are_found_without_looking_at_all() -> None:
    rng = np.random.default_rng(3)
    for ndim in (1, 2, 3):
        starts = rng.integers(0, 50, (200, ndim))
        shapes = rng.integers(1, 20, (200, ndim))
        index = BoxIndex.of(starts, shapes)
        for _ in range(50):
            low = rng.integers(0, 60, ndim)
            high = low + rng.integers(1, 15, ndim)
            region = tuple(slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
            wanted = ((starts < high) & (starts + shapes > low)).all(axis=1)
            assert index.find(region).tolist() == np.flatnonzero(wanted).tolist()
    assert BoxIndex.of(np.zeros((1, 0), int), np.zeros((1, 0), int)).find(()).tolist() == [0]


def test_thousands_of_files_listed_backwards() -> None:
    files = [step(f"{number:04}", [number]) for number in range(3_000)]
    made = plan_ingest(files[::-1], IngestOptions(concat_dims=("time",)))
    assert array(made, "data").shape == (3_000, 4)
