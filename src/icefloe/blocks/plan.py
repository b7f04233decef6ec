"""From an expression to maps and shuffles, which an engine runs.

A chain of functions and selections is pulled by one task, block by block. A stage ends the chain:
its pieces go through a shuffle, and the task that assembles a block goes on with whatever is
computed from that block. An expression with several stages as inputs continues the largest that
way. The others are computed first and saved in a scratch place, from which blocks are pulled.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import xarray as xr

from icefloe.blocks.expressions import Expression, Given, Select, Source, index_in, pull
from icefloe.blocks.layout import (
    Grid,
    Index,
    Layout,
    box_of,
    index_of,
    number_of,
    region_of,
    shape_of,
)
from icefloe.blocks.stages import Piece, Stage, blocks_in, touching
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage, in_memory_storage

Blocks = Iterator[tuple[Index, xr.Dataset]]
Sink = Callable[[Blocks], Iterator[Any]]
"""Gets the blocks of one piece of work, and makes rows of them."""


Work = Callable[[Iterator[int]], Iterator[Any]]
Finish = Callable[[Iterator[tuple[int, Iterator[bytes]]]], Iterator[Any]]


class Engine(Protocol):
    """Runs maps and shuffles: in this process, or on a cluster."""

    def start(self, items: Sequence[int], work: Work, schema: Any) -> Any:
        """The rows that `work` makes of some of the items, for all of them."""

    def shuffle(self, pieces: Any, work: Finish, stage: Stage, keys: int, schema: Any) -> Any:
        """The rows that `work` makes of all pieces of some keys, in their order."""

    def pieces(self, rows: Any) -> Iterator[Piece]:
        """Compute rows that are pieces."""

    def scratch(self) -> Scratch:
        """A new place for blocks that other blocks are computed from."""


PIECES = "key bigint, ord bigint, data binary"
"""The schema of rows that are pieces."""


# -- Blocks that wait in storage


class Scratch(NamedTuple):
    """A folder of blocks, which every task can reach."""

    storage: Storage
    prefix: str

    def put(self, number: int, block: xr.Dataset) -> None:
        """Save a block. A repeated task saves the same again."""
        driver = _driver(os.getpid(), self.storage)
        run_blocking(driver.put(f"{self.prefix}/{number}", pickle.dumps(block, 5)))

    def get(self, number: int) -> xr.Dataset:
        """Load a block."""
        driver = _driver(os.getpid(), self.storage)
        block: xr.Dataset = pickle.loads(run_blocking(driver.get(f"{self.prefix}/{number}")))
        return block


@lru_cache(maxsize=4)
def _driver(_process: int, storage: Storage) -> Any:
    return storage.driver(blocking=True)


@dataclass(frozen=True, eq=False)
class Saved(Expression):
    """Blocks that were computed before."""

    scratch: Scratch

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """Load a block."""
        return self.scratch.get(self.layout.number(index))


# -- Plans


def run(
    engine: Engine,
    expression: Expression,
    sink: Sink,
    schema: Any = PIECES,
    wanted: Collection[int] | None = None,
) -> Any:
    """The rows that a sink makes of the blocks of an expression: all, or those with the numbers."""
    saved: dict[Stage, Saved] = {}
    demand = None if wanted is None else demands(expression, wanted)

    def save(stage: Stage) -> Saved:
        if stage not in saved:
            scratch = engine.scratch()
            numbers = None if demand is None else demand[stage]
            rows = run(engine, stage, partial(_save, scratch, stage.layout), wanted=numbers)
            for _ in engine.pieces(rows):
                pass  # they say no more than that the block is saved
            saved[stage] = Saved(stage.layout, (), scratch)
        return saved[stage]

    return _rows(engine, expression, save, sink, schema, wanted)


def demands(expression: Expression, wanted: Collection[int]) -> dict[Expression, set[int]]:
    """The blocks of every expression below one that some of its blocks are computed from."""
    found = {expression: set(wanted)}
    for each in _inputs_last(expression):
        for source, numbers in zip(each.inputs, each.needed(found[each]), strict=True):
            found.setdefault(source, set()).update(numbers)
    return found


def bytes_read(expression: Expression, wanted: Collection[int] | None = None) -> int:
    """Bytes of the cells that tasks read from sources, for all blocks or those with the numbers."""
    numbers = range(expression.layout.num_blocks) if wanted is None else wanted
    found = demands(expression, numbers)
    total = 0
    for each in found:
        is_source = each is expression and isinstance(each, Source)
        # A selection reads its own cells only.
        if is_source or (isinstance(each, Select) and isinstance(each.input, Source)):
            total += _bytes_of(each.layout, found[each])
        else:
            for source, blocks in zip(each.inputs, each.needed(found[each]), strict=True):
                if isinstance(source, Source):
                    total += _bytes_of(source.layout, blocks)
    return total


def _bytes_of(layout: Layout, numbers: Collection[int]) -> int:
    if len(numbers) == layout.num_blocks:
        return layout.total_bytes
    regions = (layout.region(layout.index(number)) for number in numbers)
    return sum(layout.bytes_of({d: p.stop - p.start for d, p in part.items()}) for part in regions)


def _inputs_last(expression: Expression) -> list[Expression]:
    """All expressions, each before those it is computed from."""
    ordered: dict[Expression, None] = {}

    def visit(each: Expression) -> None:
        if each not in ordered:
            for source in each.inputs:
                visit(source)
            ordered[each] = None

    visit(expression)
    return [*reversed(ordered)]


def _rows(
    engine: Engine,
    expression: Expression,
    save: Callable[[Stage], Saved],
    sink: Sink,
    schema: Any,
    wanted: Collection[int] | None,
) -> Any:
    main = _main_stage(expression)
    if main is None:
        lowered = _with_stages(expression, save)
        numbers = range(lowered.layout.num_blocks) if wanted is None else sorted(wanted)
        return engine.start(numbers, partial(_pull, lowered, sink), schema)
    stage, keys = main if wanted is None else main.narrowed(), None
    lowered = _with_stages(expression, lambda each: stage if each is main else save(each))
    if wanted is not None:
        indices = (lowered.layout.index(number) for number in wanted)
        keys = {stage.layout.number(index_in(stage.layout, lowered.layout, at)) for at in indices}
    needed = None if keys is None else stage.needed(keys)[0]
    inner = _main_stage(stage.input)
    if inner is None:
        source = _with_stages(stage.input, save)
        boxes = stage.boxes()
        items = _boxes_of(source.layout, boxes, needed)
        work = partial(_emit_box, stage, source, boxes, needed, keys)
        pieces = engine.start(items, work, PIECES)
    else:
        emit = partial(_emit_blocks, stage, keys)
        pieces = _rows(engine, stage.input, save, emit, PIECES, needed)
    finish = partial(_assemble, lowered, stage, sink, wanted and frozenset(wanted))
    count = stage.num_keys if keys is None else len(keys)
    return engine.shuffle(pieces, finish, stage, count, schema)


def _main_stage(expression: Expression) -> Stage | None:
    """The stage whose tasks can go on with an expression: block for block, and the largest."""
    if isinstance(expression, Stage):
        return expression
    stages = [stage for each in expression.followed if (stage := _main_stage(each)) is not None]
    fitting = [stage for stage in stages if _fits(stage.layout, expression.layout)]
    return max(fitting, key=lambda stage: stage.layout.total_bytes, default=None)


def _fits(stage: Layout, layout: Layout) -> bool:
    """Whether every block has one block of the stage, which no other block has."""
    mine = dict(zip(layout.dims, layout.shape, strict=True))
    its = dict(zip(stage.dims, stage.shape, strict=True))
    return all(its.get(dim, 1) == mine.get(dim, 1) for dim in {*mine, *its})


def _with_stages(expression: Expression, change: Callable[[Stage], Expression]) -> Expression:
    """The expression with other expressions in place of the stages next to it."""
    if isinstance(expression, Stage):
        return change(expression)
    inputs = tuple(_with_stages(each, change) for each in expression.inputs)
    return expression if inputs == expression.inputs else replace(expression, inputs=inputs)


def _boxes_of(layout: Layout, boxes: Grid, needed: Collection[int] | None) -> Sequence[int]:
    """The numbers of the boxes: all, or those with a block that is needed."""
    if needed is None:
        return range(math.prod(shape_of(boxes)))
    regions = (layout.region(layout.index(number)) for number in needed)
    return sorted(
        {
            number_of(boxes, [touching(boxes[dim], part).start for dim, part in region.items()])
            for region in regions
        }
    )


# -- What tasks do


def _pull(expression: Expression, sink: Sink, numbers: Iterator[int]) -> Iterator[Any]:
    indices = map(expression.layout.index, numbers)
    return sink((index, expression.block(index, {})) for index in indices)


def _emit_box(
    stage: Stage,
    source: Expression,
    boxes: Grid,
    needed: Collection[int] | None,
    keys: Collection[int] | None,
    numbers: Iterator[int],
) -> Iterator[Piece]:
    layout = source.layout
    for number in numbers:
        box = index_of(boxes, number)
        blocks = (
            (index, source.block(index, {}))
            for index in blocks_in(layout, region_of(boxes, box))
            if needed is None or layout.number(index) in needed
        )
        for piece in stage.emit(boxes, box, blocks):
            if keys is None or piece.key in keys:
                yield piece


def _emit_blocks(stage: Stage, keys: Collection[int] | None, blocks: Blocks) -> Iterator[Piece]:
    grid = stage.input.layout.grid
    for index, block in blocks:
        for piece in stage.emit(grid, index, iter([(index, block)])):
            if keys is None or piece.key in keys:
                yield piece


def _assemble(
    expression: Expression,
    stage: Stage,
    sink: Sink,
    wanted: Collection[int] | None,
    groups: Iterator[tuple[int, Iterator[bytes]]],
) -> Iterator[Any]:
    def blocks() -> Blocks:
        for key, pieces in groups:
            for at, block in stage.assemble(key, pieces):
                index = index_in(expression.layout, stage.layout, at)
                if wanted is None or expression.layout.number(index) in wanted:
                    yield index, pull(expression, index, {stage: block})

    return sink(blocks())


def _save(scratch: Scratch, layout: Layout, blocks: Blocks) -> Iterator[Piece]:
    for index, block in blocks:
        scratch.put(layout.number(index), block)
        yield Piece(layout.number(index), 0, b"")


def collected(layout: Layout, blocks: Blocks) -> Iterator[Piece]:
    """A sink that sends blocks to the driver."""
    for index, block in blocks:
        yield Piece(layout.number(index), 0, pickle.dumps(block, pickle.HIGHEST_PROTOCOL))


def put_together(layout: Layout, pieces: Iterable[Piece]) -> xr.Dataset:
    """The whole dataset, of blocks that were sent to the driver."""
    template = layout.template
    whole = {name: np.empty(template[name].shape, template[name].dtype) for name in layout.computed}
    for piece in pieces:
        index = layout.index(piece.key)
        region, block = layout.region(index), pickle.loads(piece.data)
        for name in layout.owned(index):
            if name in whole:
                whole[name][box_of(region, template[name].dims)] = block[name].values
    return layout.labelled({}, whole)


# -- The engine of one process


class LocalEngine:
    """Runs a plan in this process, pieces in memory. For small data, and for tests of plans."""

    def __init__(self) -> None:
        self._storage = in_memory_storage()
        self._scratches = 0

    def start(self, items: Sequence[int], work: Work, schema: Any) -> Any:
        """Work on one item after the other."""
        return work(iter(items))

    def shuffle(self, pieces: Any, work: Finish, stage: Stage, keys: int, schema: Any) -> Any:
        """Sort the pieces, and work on one key after the other."""
        ordered = sorted(pieces, key=lambda piece: piece[:2])
        groups = itertools.groupby(ordered, lambda piece: piece.key)
        return work((key, (piece.data for piece in group)) for key, group in groups)

    def pieces(self, rows: Iterable[Piece]) -> Iterator[Piece]:
        """The rows themselves."""
        return iter(rows)

    def scratch(self) -> Scratch:
        """A folder in memory."""
        self._scratches += 1
        return Scratch(self._storage, f"scratch/{self._scratches}")
