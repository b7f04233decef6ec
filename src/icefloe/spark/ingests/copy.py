"""The native half of an ingest: tasks own chunks of the target and read what they need for them.

A piece of work is a few boxes of target arrays, cut at chunk borders so that no chunk has two
writers, with the files that overlap them. It carries only what those files need to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from pyspark.sql import SparkSession

from icefloe.api.session import ForkSession, Session
from icefloe.geometry import Slices, shape_of
from icefloe.spark.runtime.spark_session import parallelism
from icefloe.spark.writes.map_items import tasks_for
from icefloe.spark.writes.write_items import WriteReport, write_items
from icefloe.virtual.formats.opening import NativeReader
from icefloe.virtual.ingest.chunk_copy import copy_region
from icefloe.virtual.ingest.open_files import OpenFiles, collecting
from icefloe.virtual.model.shared_variables import only
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.planning.plan import BLOCK_BYTES, ArrayPlan, IngestPlan

_PIECES_PER_SLOT = 8
_PIECES_PER_TASK = 8  # of at most 64 MB each
_MIN_BYTES = 1 << 20  # smaller pieces cost more to hand out than to do


@dataclass(frozen=True, slots=True)
class TargetBox:
    """A box of one target array, and the part of the plan that fills it."""

    plan: IngestPlan
    array: ArrayPlan
    region: Slices
    nbytes: int


def copy(
    spark: SparkSession,
    session: Session,
    plan: IngestPlan,
    access: SourceAccess,
    num_tasks: int | None = None,
) -> tuple[WriteReport, dict[str, str]]:
    """Fill the native arrays of a plan, in a session that has their metadata.

    Also tells which files turned out to be damaged, and why. Tasks do not fail for them: Spark
    would try such a task again and again, and print a stack trace each time.
    """
    pieces = cut_pieces(plan, parallelism(spark) * _PIECES_PER_SLOT)
    native = (array for array in plan.arrays if array.storage == "native")
    chunks = {array.target: array.new_chunks for array in native}
    work = partial(_copy_piece, access)
    tasks = num_tasks or tasks_for(spark, len(pieces), _PIECES_PER_TASK)
    report = write_items(spark, session, pieces, work, num_tasks=tasks, chunks=chunks)
    damaged: dict[str, str] = {}
    for told in report.told:
        damaged |= told
    return report, damaged


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
            source_times={
                at: array.source_times[number]
                for at, number in enumerate(numbers)
                if number in array.source_times
            },
            packings={
                at: array.packings[number]
                for at, number in enumerate(numbers)
                if number in array.packings
            },
            guarded=frozenset(at for at, n in enumerate(numbers) if n in array.guarded),
        )
        sources = tuple(only(plan.sources[number], array.path) for number in numbers)
        small = replace(plan, sources=sources, groups={}, arrays=(), problems=(), unchanged=())
        nbytes = prod(shape_of(region)) * array.itemsize
        yield min(rank.get(number, 0) for number in numbers), TargetBox(small, part, region, nbytes)


def _copy_piece(access: SourceAccess, fork: ForkSession, piece: list[TargetBox]) -> dict[str, str]:
    """Read and write the boxes of a piece; a file they share is opened once.

    Returns the files that cannot be read, with the reasons.
    """
    damaged: dict[str, str] = {}
    with OpenFiles(access) as files:
        for box in piece:
            locations = [source.location for source in box.plan.sources]
            if not damaged.keys() & set(locations):
                with collecting(damaged):
                    readers = partial(_numbered, files, locations)
                    copy_region(fork.store, box.plan, box.array, box.region, readers)
    return damaged


def _numbered(files: OpenFiles, locations: list[str], number: int) -> NativeReader:
    return files.at(locations[number])
