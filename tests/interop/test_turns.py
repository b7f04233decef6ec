"""Official and icefloe take turns on one repository, and each sees everything of the other.

One script of steps; the two libraries do them alternately, and each script is run with either of
them first, so every step is done by both. After each step both are asked for all they can see
through an object that was open all the time, and in the end through a new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("icechunk", minversion="2")

import zarr
from zarr.core.sync import sync

from tests.interop.sides import SIDES, SPLIT_SIZE, Place, arrays_at, assert_same, seen
from tests.servers import S3Server

Values = dict[str, Any]

ORDERS = [("official", "icefloe"), ("icefloe", "official")]


class Turn:
    """One step by one library: its repository, and what all arrays of `main` should hold."""

    def __init__(self, library: Any, repo: Any, place: Place, values: Values) -> None:
        self.library = library
        self.repo = repo
        self.place = place
        self.values = values

    @cached_property
    def session(self) -> Any:
        return self.repo.writable_session("main")

    @property
    def top(self) -> Any:
        return zarr.open_group(self.session.store, mode="a")

    @property
    def both(self) -> list[tuple[Any, Any]]:
        """Both libraries, each with the repository opened anew."""
        return [(library, self.place.open(library)) for library in SIDES.values()]

    def commit(self, message: str, **options: Any) -> str:
        return str(self.session.commit(message, **options))

    def put(self, name: str, values: Any, **options: Any) -> None:
        array = self.top.create_array(name, shape=values.shape, dtype=values.dtype, **options)
        array[...] = values
        self.values[name] = values.copy()


# -- the steps of both versions


def arrays_of_many_kinds(turn: Turn) -> None:
    """Signed, unsigned, big-endian, complex, boolean, dates; 0 to 3 dimensions; shards."""
    numbers = np.arange(1, 25)
    turn.put("int8", numbers.astype("i1").reshape(4, 6), chunks=(3, 4))
    turn.put("uint64", numbers.astype("u8") * 2**58, chunks=(5,))
    turn.put("float32", numbers.astype("<f4").reshape(2, 3, 4) / 3, chunks=(1, 2, 3))
    turn.put("complex64", numbers.astype("c8") * 1j, chunks=(24,))
    turn.put("bool", numbers % 2 == 0, chunks=(7,))
    turn.put("scalar", np.array(2.5), chunks=())
    turn.put("big/native", np.arange(1, 401.0), chunks=(100,), compressors=None)
    turn.put("big/sharded", np.arange(1, 65).reshape(8, 8), chunks=(2, 2), shards=(4, 8))
    turn.put("big/deep/er", numbers.astype("i2"), chunks=(4,), fill_value=-1)
    turn.top.attrs["title"] = "turns"
    turn.commit("arrays", metadata={"by": turn.library.__name__, "nested": {"list": [1, None]}})


def values_and_attributes(turn: Turn) -> None:
    top = turn.top
    for name, index in (("int8", np.s_[1:3, 2:]), ("big/native", np.s_[50:250]), ("scalar", ())):
        top[name][index] = 7
        turn.values[name][index] = 7
    top["int8"].attrs["units"] = "m"
    top["big"].attrs.update({"note": "größer ✓", "numbers": [1, 2.5, None]})
    turn.commit("values and attributes")


def growing(turn: Turn) -> None:
    array = turn.top["big/deep/er"]
    array.resize((40,))
    array[30:] = 5
    grown = np.full(40, -1, dtype="i2")
    grown[:24] = turn.values["big/deep/er"]
    grown[30:] = 5
    turn.values["big/deep/er"] = grown
    turn.commit("grown")


def shrinking(turn: Turn) -> None:
    turn.top["big/deep/er"].resize((10,))
    turn.top["int8"].resize((2, 6))
    turn.values["big/deep/er"] = turn.values["big/deep/er"][:10]
    turn.values["int8"] = turn.values["int8"][:2]
    turn.commit("shrunk")


def growing_again(turn: Turn) -> None:
    """What was cut off must not come back."""
    turn.top["big/deep/er"].resize((20,))
    grown = np.full(20, -1, dtype="i2")
    grown[:10] = turn.values["big/deep/er"]
    # Only whole chunks are dropped: the last one kept its values beyond the cut.
    grown[10:12] = arrays_at(turn.repo, turn.repo.lookup_tag("grown"))["big/deep/er"][0][10:12]
    turn.values["big/deep/er"] = grown
    turn.commit("grown again")


def deleting_chunks(turn: Turn) -> None:
    sync(turn.session.store.delete("big/native/c/1"))
    turn.values["big/native"][100:200] = 0
    turn.commit("a chunk is gone")


def deleting_nodes(turn: Turn) -> None:
    del turn.top["uint64"]
    del turn.top["big/deep"]
    turn.values.pop("uint64")
    turn.values.pop("big/deep/er")
    turn.commit("an array and a group are gone")


def the_same_names_again(turn: Turn) -> None:
    turn.put("uint64", np.arange(1, 5, dtype="u8"), chunks=(1,))
    turn.put("big/deep/er", np.ones((2, 2)), chunks=(1, 2))
    turn.commit("the same names again")


def split_manifests(turn: Turn) -> None:
    """The saved configuration says how manifests are split, whoever writes them."""
    before = turn.repo.list_manifest_files(turn.repo.lookup_branch("main"))
    turn.put(f"split {turn.library.__name__}", np.arange(1, 9), chunks=(1,))
    after = turn.repo.list_manifest_files(turn.commit("split"))
    assert len(after) == len(before) + 8 // SPLIT_SIZE


def one_split_changes(turn: Turn) -> None:
    name = next(name for name in turn.values if name.startswith("split"))
    before = {file.id for file in turn.repo.list_manifest_files(turn.repo.lookup_branch("main"))}
    turn.top[name][3] = 99
    turn.values[name][3] = 99
    after = {file.id for file in turn.repo.list_manifest_files(turn.commit("one split"))}
    assert (len(after - before), len(before - after)) == (1, 1)


def tagging(turn: Turn) -> None:
    tip = turn.repo.lookup_branch("main")
    turn.repo.create_tag("grown", tip)
    turn.repo.create_tag("doomed", tip)


def deleting_a_tag(turn: Turn) -> None:
    turn.repo.delete_tag("doomed")


def a_deleted_tag_stays_deleted(turn: Turn) -> None:
    tip = turn.repo.lookup_branch("main")
    with pytest.raises(turn.library.AlreadyExistsError):
        turn.repo.create_tag("doomed", tip)
    turn.repo.create_tag("another", tip)


def branching(turn: Turn) -> None:
    turn.repo.create_branch("side", turn.repo.lookup_tag("grown"))
    session = turn.repo.writable_session("side")
    zarr.open_group(session.store, mode="a").create_group("aside").attrs["n"] = 1
    session.commit("aside")


def committing_to_the_branch(turn: Turn) -> None:
    session = turn.repo.writable_session("side")
    zarr.open_group(session.store, mode="a")["aside"].attrs["n"] = 2
    session.commit("aside again", metadata={"n": 2})
    turn.repo.create_branch("doomed", turn.repo.lookup_branch("side"))


def resetting(turn: Turn) -> None:
    tip = turn.repo.lookup_branch("side")
    turn.repo.reset_branch("side", turn.repo.lookup_tag("grown"), from_snapshot_id=tip)


def deleting_a_branch(turn: Turn) -> None:
    turn.repo.delete_branch("doomed")


def a_conflict(turn: Turn) -> None:
    """Each library notices a commit of the other that came in between."""
    turn.top.attrs["late"] = True
    base = turn.session.snapshot_id
    ((library, other),) = [(lib, repo) for lib, repo in turn.both if lib is not turn.library]
    session = other.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["first"] = library.__name__
    first = session.commit("first come")
    with pytest.raises(turn.library.ConflictError) as conflict:
        turn.commit("too late")
    assert (conflict.value.expected_parent, conflict.value.actual_parent) == (base, first)


def nothing_to_commit(turn: Turn) -> None:
    turn.commit("empty", allow_empty=True)


def flushing(turn: Turn) -> None:
    turn.top.attrs["flushed"] = True
    snapshot_id = turn.session.flush("nobody points here", metadata={"flush": 1})
    for _, repo in turn.both:
        assert repo.lookup_snapshot(snapshot_id).message == "nobody points here"
        top = zarr.open_group(repo.readonly_session(snapshot_id=snapshot_id).store, mode="r")
        assert top.attrs["flushed"] is True


def saving_config(turn: Turn) -> None:
    config = turn.library.RepositoryConfig(max_concurrent_requests=len(turn.library.__name__))
    reopened = turn.library.Repository.open(turn.repo.storage, config=config)
    reopened.save_config()
    for library in SIDES.values():
        saved = turn.place.saved_config(library)
        assert saved["requests"] == len(turn.library.__name__)
        assert saved["inline"] == 64
        assert saved["splitting"] != []


# -- the steps of version 2


def amending(turn: Turn) -> None:
    turn.top["scalar"][...] = 8.5
    turn.values["scalar"][...] = 8.5
    turn.session.amend("amended", metadata={"amended": turn.library.__name__})


def amending_again(turn: Turn) -> None:
    turn.put("from the amendment", np.arange(3), chunks=(1,))
    turn.session.amend("amended again")


def setting_metadata(turn: Turn) -> None:
    turn.repo.set_metadata({"owner": turn.library.__name__, "deep": {"list": [1, "two", None]}})


def updating_metadata(turn: Turn) -> None:
    expected = {**turn.repo.get_metadata(), "more": 1.5, "owner": "both"}
    assert turn.repo.update_metadata({"more": 1.5, "owner": "both"}) == expected
    assert turn.repo.get_metadata() == expected


def read_only(turn: Turn) -> None:
    status = turn.library.RepoStatus(
        turn.library.RepoAvailability.read_only, limited_availability_reason="moving house"
    )
    turn.repo.set_status(status)
    for library, repo in turn.both:
        with pytest.raises(library.ReadOnlyError):
            repo.writable_session("main")
        with pytest.raises(library.ReadOnlyError):
            repo.create_tag("refused", repo.lookup_branch("main"))


def online(turn: Turn) -> None:
    turn.repo.set_status(turn.library.RepoStatus(turn.library.RepoAvailability.online))


def a_flag(turn: Turn) -> None:
    turn.repo.set_feature_flag("create_tag", False)
    for library, repo in turn.both:
        with pytest.raises(library.SessionStateError) as refused:
            repo.create_tag("refused", repo.lookup_branch("main"))
        assert refused.value.kind == "feature-flag-disabled"


def the_flag_again(turn: Turn) -> None:
    turn.repo.set_feature_flag("create_tag", None)
    turn.repo.set_feature_flag("delete_tag", True)


Step = Callable[[Turn], None]

SHORT: list[Step] = [
    arrays_of_many_kinds,
    tagging,
    values_and_attributes,
    deleting_nodes,
    branching,
]
"""For S3, where every request goes to a server in Python."""
BOTH: list[Step] = [
    arrays_of_many_kinds,
    values_and_attributes,
    growing,
    tagging,
    shrinking,
    growing_again,
    deleting_chunks,
    deleting_nodes,
    the_same_names_again,
    split_manifests,
    one_split_changes,
    branching,
    committing_to_the_branch,
    resetting,
    deleting_a_branch,
    deleting_a_tag,
    a_deleted_tag_stays_deleted,
    a_conflict,
    nothing_to_commit,
    flushing,
    saving_config,
    values_and_attributes,
]
ONLY_2: list[Step] = [
    amending,
    amending_again,
    setting_metadata,
    updating_metadata,
    read_only,
    online,
    a_flag,
    the_flag_again,
    values_and_attributes,
]


def take_turns(place: Place, spec: int, order: tuple[str, str], steps: list[Step]) -> None:
    place.create(SIDES[order[0]], spec)
    repos = {name: place.open(library) for name, library in SIDES.items()}
    values: Values = {}
    known: set[str] = set()
    for number, (name, step) in enumerate(zip(cycle(order[::-1]), steps, strict=False)):
        step(Turn(SIDES[name], repos[name], place, values))
        where = f"after step {number}, {step.__name__} by {name}"
        check(place, repos, known, where)
        check_values(repos, values, where)
    # Once more from the beginning, by objects that have nothing cached.
    anew = {name: place.open(library) for name, library in SIDES.items()}
    check(place, anew, set(), "at the end")
    check_values(anew, values, "at the end")


def check(place: Place, repos: dict[str, Any], known: set[str], where: str) -> None:
    """Both see the same; `known` are snapshots whose contents were compared before."""
    official, ours = seen(repos["official"], known), seen(repos["icefloe"], known)
    assert_same(official, ours, where)
    known.update(ours["contents"])
    configs = {name: place.saved_config(library) for name, library in SIDES.items()}
    assert configs["official"] == configs["icefloe"], where


def check_values(repos: dict[str, Any], values: Values, where: str) -> None:
    for name, repo in repos.items():
        found = arrays_at(repo, repo.lookup_branch("main"))
        assert found.keys() == values.keys(), f"{where}, seen by {name}"
        for path, array in values.items():
            assert found[path][0].dtype == array.dtype, f"{path} {where}, seen by {name}"
            np.testing.assert_array_equal(found[path][0], array, f"{path} {where}, seen by {name}")


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]} first")
@pytest.mark.parametrize("spec", [1, 2])
def test_turns_on_a_directory(tmp_path: Path, spec: int, order: tuple[str, str]) -> None:
    steps = BOTH if spec == 1 else BOTH + ONLY_2
    take_turns(Place(folder=tmp_path / "repo"), spec, order, steps)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]} first")
@pytest.mark.parametrize("spec", [1, 2])
def test_turns_on_s3(s3_server: S3Server, spec: int, order: tuple[str, str]) -> None:
    place = Place(server=s3_server, prefix=f"turns-{uuid.uuid4().hex}")
    take_turns(place, spec, order, SHORT if spec == 1 else [*SHORT, amending, setting_metadata])
