"""`icefloe.spark.ingest`: the Spark engine of an ingest."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple, Unpack

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from zarr.abc.store import Store

from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.errors import InvalidInputError
from icefloe.format.columns import batch_of, pack_table, unpack_table
from icefloe.geometry import Slices, shape_of
from icefloe.scans.scan import columns, require_shared, table_of
from icefloe.spark import shared_write
from icefloe.spark.dataset_writer import move_blocks, write_items
from icefloe.spark.readers import check_session
from icefloe.spark.shared_write import TaskSide, share
from icefloe.spark.start import is_one_process, parallelism
from icefloe.spark.tasks import (
    Batches,
    items_in,
    map_batches,
    map_items,
    map_results,
    tasks_for,
)
from icefloe.spark.versions import from_arrow, spark_schema, to_arrow
from icefloe.virtual.ingest import transfer
from icefloe.virtual.ingest.destination import Destination
from icefloe.virtual.ingest.insertion import BlockMove
from icefloe.virtual.ingest.request import IngestArguments, check_fields, load_recipe, make_request
from icefloe.virtual.ingest.run_ingest import (
    IngestReport,
    LocalEngine,
    run_ingest,
    scan_each,
)
from icefloe.virtual.ingest.transfer import Digested, FileToRead, OpenFiles
from icefloe.virtual.model.description import (
    Joiner,
    SourceDescription,
    SourceVersion,
    Splitter,
    only,
)
from icefloe.virtual.planning.plan import (
    BLOCK_BYTES,
    ArrayPlan,
    FillCounts,
    IngestOptions,
    IngestPlan,
    Problem,
)
from icefloe.virtual.sources import SourceAccess, Sources, local_path

# -- Scanning sources on the executors: descriptions come back, references stay there.
#
# A scan gives one row for what a source is, or for why it cannot be read, and one for the
# references of each of its variables. The frame is kept by Spark, so that a file is opened once:
# the driver takes the descriptions, and the references are placed later where they are.


FILES_PER_TASK = 100

SCHEMA = columns("location string, path string?, data binary?, reason string?")
SPARK_SCHEMA = spark_schema(SCHEMA)
_PART = "#"  # begins the key of a part that descriptions share, and no location
_Row = tuple[str, str | None, bytes | None, str | None]


def scan_frame(
    spark: SparkSession,
    locations: Sequence[str],
    options: IngestOptions,
    access: SourceAccess,
    known: Mapping[str, SourceVersion] | None = None,
    num_tasks: int | None = None,
) -> DataFrame:
    """The rows of a scan. In virtual mode they are kept by Spark: `unpersist` them.

    Of sources that are `known` in the version they have, only that is looked at.
    """
    work = partial(_scan_task, options, access)
    items = [(location, (known or {}).get(location)) for location in locations]
    tasks = num_tasks or tasks_for(spark, len(items), FILES_PER_TASK)
    frame = map_items(spark, items, work, SPARK_SCHEMA, tasks)
    return frame.persist() if options.mode == "virtual" else frame


def descriptions_of(
    frame: DataFrame, locations: Sequence[str]
) -> tuple[list[SourceDescription], list[Problem]]:
    """What the scan found, in the order the sources were given."""
    rows = to_arrow(frame.where("path IS NULL").select("location", "data", "reason"))
    return read_rows(rows, locations)


def read_rows(
    rows: pa.Table, locations: Sequence[str]
) -> tuple[list[SourceDescription], list[Problem]]:
    """What the rows of a scan say, without those of references."""
    joiner = Joiner()
    for key, data, _ in _each(rows):
        if key.startswith(_PART):
            joiner.add(bytes.fromhex(key.removeprefix(_PART)), data)
    by_location: dict[str, SourceDescription | str] = {}
    for location, data, reason in _each(rows):
        if not location.startswith(_PART):
            by_location[location] = joiner.join(location, data) if reason is None else reason
    found, problems = [], []
    for location in locations:
        item = by_location.pop(location)
        if isinstance(item, str):
            problems.append(Problem(location, item))
        else:
            found.append(item)
    return found, problems


def _each(rows: pa.Table) -> Iterator[tuple[str, bytes, str | None]]:
    """Rows one by one: never all of them are objects of Python."""
    for batch in rows.to_batches():
        yield from zip(*map(pa.Array.to_pylist, batch.columns), strict=True)


def _scan_task(
    options: IngestOptions, access: SourceAccess, batches: Batches
) -> Iterator[pa.RecordBatch]:
    splitter = Splitter()
    for location, found in scan_each(list(items_in(batches)), options, access):
        yield batch_of(SCHEMA, list(source_rows(location, found, splitter)))
    yield batch_of(SCHEMA, part_rows(splitter.finish()))


def source_rows(
    location: str, found: SourceDescription | str, splitter: Splitter
) -> Iterator[_Row]:
    """The rows of one source."""
    if isinstance(found, str):
        yield location, None, None, found
        return
    yield location, None, splitter.split(found), None
    yield from part_rows(splitter.fresh())
    for path, table in (found.references or {}).items():
        yield location, path, pack_table(table), None


def part_rows(parts: Iterable[tuple[bytes, bytes]]) -> list[_Row]:
    """The rows of parts that descriptions share."""
    return [(_PART + key.hex(), None, data, None) for key, data in parts]


# -- The native half of an ingest: tasks own chunks of the target.
#
# A piece of work is a few boxes of target arrays, cut at chunk borders so that no chunk has two
# writers, with the files that overlap them. It carries only what those files need to be read.


_PIECES_PER_SLOT = 8
_PIECES_PER_TASK = 8  # of at most 64 MB each
_MIN_BYTES = 1 << 20  # smaller pieces cost more to hand out than to do


class TargetBox(NamedTuple):
    """A box of one target array, and the part of the plan that fills it."""

    plan: IngestPlan
    array: ArrayPlan
    region: Slices
    nbytes: int


def cut_pieces(plan: IngestPlan, num_pieces: int) -> list[list[TargetBox]]:
    """The work, in about this many pieces; boxes of the same files lie next to each other."""
    arrays = [array for array in plan.arrays if array.storage == "native"]
    total = sum(int(array.shapes.prod(axis=1).sum()) * array.itemsize for array in arrays)
    most = int(np.clip(total // max(1, num_pieces), _MIN_BYTES, BLOCK_BYTES))
    # Files in the order of the first array that has them: where they follow each other.
    rank: dict[int, int] = {}
    for array in arrays:
        for row in np.lexsort(array.starts.T[::-1]).tolist() if array.starts.size else []:
            rank.setdefault(int(array.sources[row]), len(rank))
    boxes = [pair for array in arrays for pair in _boxes(plan, array, most, rank)]
    boxes.sort(key=lambda pair: pair[0])
    pieces: list[list[TargetBox]] = []
    size = most
    for _, box in boxes:
        if size + box.nbytes > most:
            pieces.append([])
            size = 0
        pieces[-1].append(box)
        size += box.nbytes
    return pieces


def _boxes(
    plan: IngestPlan, array: ArrayPlan, most_bytes: int, rank: dict[int, int]
) -> Iterator[tuple[int, TargetBox]]:
    for region in array.blocks(most_bytes):
        rows = array.rows_in(region)
        numbers = array.sources[rows].tolist()
        part = replace(
            array,
            sources=np.arange(len(rows), dtype=np.int32),
            starts=array.starts[rows],
            shapes=array.shapes[rows],
            source_times=_renumbered(array.source_times, numbers),
            packings=_renumbered(array.packings, numbers),
            guarded=frozenset(at for at, n in enumerate(numbers) if n in array.guarded),
            written=None,
        )
        sources = tuple(only(plan.sources[number], array.path) for number in numbers)
        small = replace(plan, sources=sources, groups={}, arrays=(), problems=(), unchanged=())
        nbytes = prod(shape_of(region)) * array.itemsize
        yield min(rank.get(number, 0) for number in numbers), TargetBox(small, part, region, nbytes)


def _renumbered(found: Mapping[int, Any], numbers: Sequence[int]) -> dict[int, Any]:
    return {at: found[number] for at, number in enumerate(numbers) if number in found}


def _copy_piece(access: SourceAccess, fork: ForkSession, piece: list[TargetBox]) -> dict[str, str]:
    """Read and write the boxes of a piece; a file they share is opened once.

    Returns the files that cannot be read, with the reasons.
    """
    damaged: dict[str, str] = {}
    with OpenFiles(access) as files:
        for box in piece:
            if not damaged.keys() & {source.location for source in box.plan.sources}:
                with transfer.collecting(damaged):
                    transfer.copy_region(fork.store, box.plan, box.array, box.region, files)
    return damaged


def refer(
    spark: SparkSession, session: Session, plan: IngestPlan, scanned: DataFrame
) -> tuple[FillCounts, dict[str, str]]:
    """Put the references of all virtual arrays into a session.

    Chunks and bytes are of those that had to be stored, because no reference can say what they
    are. Also tells which files cannot be referred to, and why.
    """
    placements = _placements(plan)
    if not placements.num_rows:
        return FillCounts(), {}
    virtual = [array for array in plan.arrays if array.storage == "virtual"]
    shared = share(session, {array.target: array.new_chunks for array in virtual})
    # Small beside the references, and joined by name: where files are scanned does not matter.
    wanted = from_arrow(spark, placements)
    found = scanned.where("path IS NOT NULL").select("location", "path", "data")
    work = partial(_place_task, shared.tasks)
    joined = found.join(wanted, ["location", "path"]).select("data", "placement")
    counts, told = shared.run(map_batches(joined, work, shared_write.SPARK_SCHEMA))
    filled = FillCounts(counts.chunks - counts.virtual, counts.bytes, counts.virtual)
    return filled, {location: why for found in told for location, why in found.items()}


def _placements(plan: IngestPlan) -> pa.Table:
    """One row for each variable of each file that is referred to."""
    rows = [
        (
            plan.sources[number].location,
            array.path,
            pickle.dumps(transfer.placement_of(plan, array, row)),
        )
        for array in plan.arrays
        if array.storage == "virtual"
        for row, number in enumerate(array.sources.tolist())
    ]
    return table_of(columns("location string, path string, placement binary"), rows)


def _place_task(tasks: TaskSide, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        damaged: dict[str, str] = {}
        rows = zip(batch.column("data"), batch.column("placement"), strict=True)
        found = (
            (pickle.loads(placement.as_py()), unpack_table(data.as_py()))
            for data, placement in rows
        )
        transfer.place_references(tasks.fork.store, found, damaged)
        yield tasks.drain()
        if damaged:
            yield shared_write.told_batch(damaged)


_FEW_FILES = 64  # a job takes as long as a look at so many


class SparkEngine:
    """Does the work of an ingest in jobs; see `icefloe.virtual.ingest.run_ingest.Engine`."""

    def __init__(self, spark: SparkSession, access: SourceAccess, num_tasks: int | None) -> None:
        self._spark, self._access, self._num_tasks = spark, access, num_tasks
        self._scanned: DataFrame | None = None
        """Rows of the scan with the references, kept by Spark in virtual mode."""

    def scan(
        self,
        locations: Sequence[str],
        options: IngestOptions,
        known: Mapping[str, SourceVersion],
    ) -> tuple[list[SourceDescription], list[Problem]]:
        if self._scans_here(locations, options):
            return LocalEngine(self._access).scan(locations, options, known)
        frame = scan_frame(self._spark, locations, options, self._access, known, self._num_tasks)
        if options.mode == "virtual":
            self._scanned = frame
        try:
            return descriptions_of(frame, locations)
        except BaseException:
            self.close()
            raise

    def _scans_here(self, locations: Sequence[str], options: IngestOptions) -> bool:
        """Whether a scan needs no job: few files, on the machine where tasks would run too."""
        return (
            options.mode == "native"
            and self._num_tasks is None
            and self._access.preprocess is None
            and len(locations) <= _FEW_FILES
            and is_one_process(self._spark)
            and all(local_path(location) is not None for location in locations)
        )

    def digest(self, items: Sequence[FileToRead]) -> Iterator[Digested]:
        tasks = self._num_tasks or tasks_for(self._spark, len(items), FILES_PER_TASK)
        work = partial(transfer.digest_files, self._access)
        return map_results(self._spark, items, work, tasks)

    def move(self, session: Session, base: Store, moves: Sequence[BlockMove]) -> None:
        move_blocks(self._spark, session, base, moves, self._num_tasks)

    def referred(self, plan: IngestPlan) -> list[str]:
        """The files of a plan. Where sets of references lead, only tasks see."""
        return [source.location for source in transfer.sources_of_references(plan)]

    def fill(self, session: Session, plan: IngestPlan) -> tuple[FillCounts, dict[str, str]]:
        counts, damaged = self._copy(session, plan)
        if damaged or self._scanned is None:
            return counts, damaged
        referred, damaged = refer(self._spark, session, plan, self._scanned)
        return counts.plus(referred), damaged

    def _copy(self, session: Session, plan: IngestPlan) -> tuple[FillCounts, dict[str, str]]:
        """Fill the native arrays of a plan, in a session that has their metadata.

        Also tells which files turned out to be damaged, and why. Tasks do not fail for them: Spark
        would try such a task again and again, and print a stack trace each time.
        """
        pieces = cut_pieces(plan, parallelism(self._spark) * _PIECES_PER_SLOT)
        native = (array for array in plan.arrays if array.storage == "native")
        chunks = {array.target: array.new_chunks for array in native}
        work = partial(_copy_piece, self._access)
        tasks = self._num_tasks or tasks_for(self._spark, len(pieces), _PIECES_PER_TASK)
        report = write_items(self._spark, session, pieces, work, num_tasks=tasks, chunks=chunks)
        damaged = {location: why for told in report.told for location, why in told.items()}
        return FillCounts(report.chunks_written, report.bytes_written), damaged

    def close(self) -> None:
        if self._scanned is not None:
            self._scanned.unpersist()
            self._scanned = None


_COLUMNS = ("path", "location")


def ingest(
    spark: SparkSession,
    sources: Sources | DataFrame,
    repository: Repository | str | os.PathLike[str],
    *,
    create: bool = True,
    add_containers: bool = False,
    num_tasks: int | None = None,
    **arguments: Unpack[IngestArguments],
) -> IngestReport:
    """`icefloe.ingest` on the executors of a Spark session; it says what all arguments mean.

    Args:
        sources: paths, URLs or patterns of files and Zarr stores, or a DataFrame with a column
            `path` or `location`. Executors have to reach them under the same names.
        repository: a repository, or its path or URL, with `@branch` if it is not `main`.
        create: create the repository where a path or URL names an empty place.
        add_containers: save the virtual chunk containers that virtual mode needs.
        num_tasks: how many tasks each Spark job has; follows the work when None.
        arguments: the others of `icefloe.ingest`, such as `concat_dim` and `append`.
        spark: the session; `icefloe.spark.session()` makes one.

    Raises:
        InvalidInputError: files cannot be read or do not fit together; every one is named with its
            reason, and nothing was committed.
        AlreadyExistsError: the group has arrays and `append` is not set.
        RepositoryNotFoundError: there is no repository, and `create` is False.
        RebaseFailedError: other writers changed the same arrays again and again; nothing was
            committed, run it again.

    >>> report = icefloe.spark.ingest(spark, "*.nc", "archive", concat_dim="time")
    """
    for name in arguments.keys() - IngestArguments.__annotations__.keys():
        raise TypeError(f"ingest() got an unexpected keyword argument {name!r}")
    check_fields({"num_tasks": num_tasks})
    destination = Destination.of(repository, create=create, add_containers=add_containers)
    require_shared(destination.storage)
    request = make_request(_given(sources), destination, arguments)
    check_session(spark)
    return run_ingest(SparkEngine(spark, request.access, num_tasks), request)


def run_recipe(spark: SparkSession, recipe: str | os.PathLike[str]) -> IngestReport:
    r"""Do what a recipe says; see `icefloe.load_recipe` and `ingest`.

    Args:
        spark: the session; `icefloe.spark.session()` makes one.

    >>> recipe = "sources: '*.nc'\nrepository: archive\nconcat_dim: time"
    >>> report = icefloe.spark.run_recipe(spark, recipe)
    """
    fields = load_recipe(recipe)
    return ingest(spark, fields.pop("sources"), fields.pop("repository"), **fields)


def _given(sources: Any) -> Sources:
    """Sources as `list_sources` takes them; those of a frame are collected."""
    if isinstance(sources, str | os.PathLike):
        return sources
    if hasattr(sources, "mapInArrow"):  # a frame, also one of Spark Connect
        names = [name for name in _COLUMNS if name in sources.columns]
        if not names:
            raise InvalidInputError(
                f"sources has the columns {sources.columns}, expected `path` or `location`"
            )
        rows = to_arrow(sources.select(names[0]))[names[0]].to_pylist()
        return _texts(rows)
    if isinstance(sources, Sequence) and not isinstance(sources, bytes):
        return _texts(sources)
    raise InvalidInputError(
        f"sources is a {type(sources).__name__}, expected a path, a URL, a pattern, a list of "
        "them, or a DataFrame with a column `path` or `location`"
    )


def _texts(items: Sequence[Any]) -> list[str | os.PathLike[str]]:
    for at, item in enumerate(items):
        if not isinstance(item, str | os.PathLike) or not os.fspath(item):
            raise InvalidInputError(f"sources[{at}] is {item!r:.80}, expected a path or a URL")
    return list(items)
