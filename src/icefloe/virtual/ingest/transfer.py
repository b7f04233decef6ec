"""Doing what a plan says, piece by piece: the functions that run on one machine or on many."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.dtype import parse_dtype

from icefloe.cf.times import convert_times
from icefloe.config.container_set import ContainerSet
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.geometry import Slices, inside, shape_of
from icefloe.on_demand import on_demand
from icefloe.records import record
from icefloe.store.location_columns import match_containers
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.formats.opening import NativeReader
from icefloe.virtual.ingest.open_files import DamagedSourceError, collecting
from icefloe.virtual.model.data_types import little_endian
from icefloe.virtual.model.description import Json, SourceDescription, SourceVersion
from icefloe.virtual.model.references import cut_leading, index_of, shift_references, with_checksums
from icefloe.virtual.planning.agreement import fill_of
from icefloe.virtual.planning.cf_packing import Packing
from icefloe.virtual.planning.plan import ArrayPlan, IngestPlan
from icefloe.virtual.planning.targets import group_document

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = on_demand("pyarrow")
    pc = on_demand("pyarrow.compute")

ReaderOf = Callable[[int], NativeReader]
"""An open reader for a source, by its number in the plan."""


def write_metadata(store: Store, plan: IngestPlan) -> None:
    """Write the zarr.json of every group and array of a plan.

    Attributes that a group has already stay as they are.
    """
    for path in _with_parents(plan):
        write_document(store, path, group_document(plan.groups.get(path, {})), may_replace=False)
    for path, attributes in plan.groups.items():
        there = _attributes_there(store, path)
        if attributes.keys() - there.keys():
            write_document(store, path, group_document({**attributes, **there}))
    for array in plan.arrays:
        write_document(store, array.target, array.metadata)


def _attributes_there(store: Store, path: str) -> dict[str, Json]:
    key = f"{path}/zarr.json" if path else "zarr.json"
    data = sync(store.get(key, default_buffer_prototype()))
    return {} if data is None else json.loads(data.to_bytes()).get("attributes") or {}


def _with_parents(plan: IngestPlan) -> list[str]:
    """Every group on the way to a node, outermost first; the root is there already."""
    found: dict[str, None] = {}
    for path in [*plan.groups, *(array.target.rpartition("/")[0] for array in plan.arrays)]:
        names = path.split("/") if path else []
        for depth in range(1, len(names) + 1):
            found["/".join(names[:depth])] = None
    return list(found)


def write_document(
    store: Store, path: str, document: dict[str, Json], *, may_replace: bool = True
) -> None:
    """Write one zarr.json."""
    key = f"{path}/zarr.json" if path else "zarr.json"
    data = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    sync(store.set(key, data) if may_replace else store.set_if_not_exists(key, data))


def write_values(store: Store, array: ArrayPlan) -> None:
    """Write a small coordinate, whose values are in the plan."""
    assert array.values is not None
    target = zarr.open_array(store, path=array.target, mode="r+", zarr_format=3)
    first, last = array.starts[0], array.starts[0] + array.shapes[0]
    region = tuple(map(slice, first.tolist(), last.tolist()))
    if array.values.size:
        target[region or ...] = array.values


def read_block(
    plan: IngestPlan,
    array: ArrayPlan,
    region: Slices,
    reader_of: ReaderOf,
    target: zarr.Array[Any] | None = None,
) -> NDArray[Any]:
    """The values of a region of the target, from the files that have them.

    Values are as stored: packed ones stay packed. Only times are converted, where their units
    differ between files. What no file has is what the `target` has, if given, else the fill value.
    """
    kind = parse_dtype(array.metadata["data_type"], zarr_format=3)
    fill = kind.from_json_scalar(array.metadata["fill_value"], zarr_format=3)
    native = kind.to_native_dtype()
    dtype = np.dtype(object) if native.kind in "OT" else native
    shape = shape_of(region)
    block: NDArray[Any] | None = None
    for part in array.parts(region):
        values = reader_of(part.source).read(array.path, part.source_region)
        units = array.source_times.get(part.source)
        if units is not None:
            values = _converted(plan.sources[part.source], array, values, units)
        if (packing := array.packings.get(part.source)) is not None:
            values = _repacked(plan.sources[part.source], array, packing, values, dtype)
        if array.reserved is not None and bool((values == array.reserved).any()):
            raise DamagedSourceError(
                plan.sources[part.source].location,
                f"{array.path!r} holds {array.reserved!r}, which has to mean missing here: other "
                "files lack the variable, and no value of it is marked as missing",
            )
        if part.target_region == region and region:
            return values.reshape(shape).astype(dtype, copy=False)
        if block is None and target is not None:
            block = np.array(target[region], dtype)
        elif block is None:
            block = np.full(shape, fill, dtype)
        place = inside(part.target_region, region)
        block[place] = values.reshape(shape_of(place))
    return np.full(shape, fill, dtype) if block is None else block


def _converted(
    source: SourceDescription, array: ArrayPlan, values: NDArray[Any], units: Any
) -> NDArray[Any]:
    assert array.times is not None
    variable = source.variables[array.path]
    dtype = np.dtype(little_endian(variable.dtype))
    found = convert_times(values, units, array.times, dtype, fill_of(variable))
    if found is None:
        raise DamagedSourceError(
            source.location,
            f"times of {array.path!r} cannot be written exactly as {dtype} in the units of "
            + ("the first file" if array.old_shape is None else "the repository"),
        )
    return found


def _repacked(
    source: SourceDescription,
    array: ArrayPlan,
    packing: Packing,
    values: NDArray[Any],
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    own = array.packed_as
    if own is None:
        return packing.unpack(values, dtype)
    found = own.pack(packing.unpack(values, np.dtype("f8")), dtype)
    if found is None:
        raise DamagedSourceError(
            source.location,
            f"{array.path!r} has values that cannot be packed as {dtype} with the scale_factor "
            "and add_offset of the array in the repository",
        )
    return found


def check_missing(
    plan: IngestPlan, array: ArrayPlan, region: Slices, target: zarr.Array[Any]
) -> None:
    """Refuse files of which a region of the target has values already.

    Raises:
        DamagedSourceError: names the file.
    """
    for part in array.parts(region) if array.guarded else ():
        if part.source not in array.guarded:
            continue
        there = np.asarray(target[part.target_region])
        fill = np.asarray(target.fill_value, there.dtype)
        is_missing = there == fill
        if there.dtype.kind in "fc":
            is_missing |= np.isnan(there) & bool(np.isnan(fill))
        if not bool(np.all(is_missing)):
            raise DamagedSourceError(
                plan.sources[part.source].location,
                f"{array.path!r} has values at its place already, in the repository",
            )


def write_references(store: IcechunkStore, target: str, placed: pa.Table) -> None:
    """Hand references over to a session; chunks that travel in the table are written.

    Raises:
        InvalidInputError: no virtual chunk container of the repository covers a location.
    """
    if "inline" in placed.column_names:
        buffer = default_buffer_prototype().buffer
        inline = placed.filter(pc.is_valid(placed["inline"]))
        chunks = zip(index_of(inline).tolist(), inline["inline"].to_pylist(), strict=True)
        for index, data in chunks:
            key = "/".join([target, "c", *map(str, index)])
            sync(store.set(key, buffer.from_bytes(data)))
        placed = placed.filter(pc.is_null(placed["inline"])).drop_columns("inline")
        if not placed.num_rows:
            return
    if (failed := store.set_virtual_refs_table(target, placed)) is not None:
        is_first = (index_of(placed) == np.array(failed[0])).all(axis=1)
        location = placed["location"][int(np.argmax(is_first))].as_py()
        raise _uncovered(location)


def _uncovered(location: str) -> InvalidInputError:
    return InvalidInputError(
        f"no virtual chunk container covers {location}; add_containers=True (--add-containers) "
        "adds those of sources; for files that a set of references names, add one to the "
        "configuration of the repository, with set_virtual_chunk_container, and save it",
        ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
    )


def sources_of_references(plan: IngestPlan) -> list[SourceDescription]:
    """Sources that references lead to. Those of Zarr stores and of sets lead elsewhere."""
    virtual = [array for array in plan.arrays if array.storage == "virtual"]
    numbers = {number for array in virtual for number in array.sources.tolist()}
    sources = (plan.sources[number] for number in sorted(numbers))
    return [source for source in sources if source.format not in ("zarr", "kerchunk")]


def require_containers(locations: Sequence[str], containers: ContainerSet) -> None:
    """Refuse files that no container covers, before any work is done.

    Raises:
        InvalidInputError: names one of them.
    """
    if not locations:
        return
    is_covered = match_containers(pa.array(locations, pa.string()), containers).number >= 0
    if not is_covered.all():
        raise _uncovered(locations[int(np.argmin(is_covered))])


@record(frozen=True)
class Placement:
    """Where the references of one variable of one source go: all that placing them needs."""

    target: str
    location: str
    first_chunk: tuple[int, ...]
    cut: tuple[tuple[int, ...], tuple[int, ...]] | None
    """The shape of a contiguous variable, and that of the chunks it is cut into."""
    version: SourceVersion
    is_guarded: bool = False
    """Whether the target may have no chunks there."""

    def place(self, table: pa.Table, store: Store) -> pa.Table | None:
        """What scanning gave, at its place in the target, with checksums; None without chunks.

        Raises:
            DamagedSourceError: the target, in `store`, has chunks there already.
        """
        if not table.num_rows:
            return None
        if self.cut is not None and "offset" in table.column_names:
            table = cut_leading(table, *self.cut)
        placed = with_checksums(shift_references(table, self.first_chunk), self.version)
        for index in index_of(placed).tolist() if self.is_guarded else ():
            if sync(store.exists("/".join([self.target, "c", *map(str, index)]))):
                raise DamagedSourceError(
                    self.location, f"{self.target!r} has values at its place already"
                )
        return placed


def placement_of(plan: IngestPlan, array: ArrayPlan, row: int) -> Placement:
    """Where the file of `array.sources[row]` goes."""
    number = int(array.sources[row])
    source = plan.sources[number]
    variable = source.variables[array.path]
    chunks = np.maximum(np.array(array.chunks, np.int64), 1)
    own = array.chunks[array.num_new_axes :]
    is_cut = variable.is_contiguous and 0 not in variable.shape and own != variable.shape
    return Placement(
        array.target,
        source.location,
        tuple((array.starts[row] // chunks).tolist()),
        (variable.shape, own) if is_cut else None,
        source.version,
        number in array.guarded,
    )


def place_references(
    store: IcechunkStore,
    found: Iterable[tuple[Placement, pa.Table]],
    damaged: dict[str, str],
) -> None:
    """Hand what scans found over to a session; files that do not fit are added to `damaged`."""
    tables: dict[str, list[pa.Table]] = {}
    for placement, table in found:
        placed = None
        with collecting(damaged):
            placed = placement.place(table, store)
        if placed is None:
            continue
        if "inline" in placed.column_names:
            write_references(store, placement.target, placed)
        else:
            tables.setdefault(placement.target, []).append(placed)
    for target, parts in tables.items():
        # All at once: a session lays every table it is given over the ones before.
        whole = pa.concat_tables(parts, promote_options="default")
        write_references(store, target, whole)
