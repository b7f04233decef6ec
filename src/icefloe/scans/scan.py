"""`Scan`: rows of a repository at one pinned snapshot, in numbered partitions, without Spark."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import numbers_to_arrow
from icefloe.scans.where import Condition, parse_where
from icefloe.storage.locations import MemoryLocation
from icefloe.storage.spec import Storage
from icefloe.storage.urls import storage_from_url

ROWS_PER_BATCH = 1 << 17
"""Measured: below 8,192 rows a batch costs noticeably more, above 65,536 little is gained."""


class Scan(Protocol):
    """Rows in `num_partitions` pieces that can be read in any order, and again.

    Scans know nothing of Spark. The same scan runs inside the data source and, with the
    repository's credentials in the pickled function, under `mapInArrow`.
    """

    @property
    def schema(self) -> pa.Schema:
        """Columns in Arrow's types as Spark uses them."""
        ...

    @property
    def num_partitions(self) -> int:
        """How many pieces there are; 0 when there are no rows."""
        ...

    def read(self, partition: int, /) -> Iterator[pa.RecordBatch]:
        """The rows of one piece, read by a worker."""
        ...


def read_numbered(scan: Scan, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the pieces whose numbers are in column 0."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from scan.read(number)


class PlannedRows(NamedTuple):
    """A scan by a function."""

    schema: pa.Schema
    num_partitions: int
    read: Callable[[int], Iterator[pa.RecordBatch]]


def fixed_rows(table: pa.Table) -> PlannedRows:
    """A scan over a small table that was made when the query was planned."""
    return PlannedRows(table.schema, 1 if table.num_rows else 0, partial(_read_table, table))


def _read_table(table: pa.Table, _partition: int) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=ROWS_PER_BATCH)


DEFAULT_SPLIT_BYTES = 128 << 20
DEFAULT_MIN_PARTITIONS = 16
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A read of arrays.

    `split_size` is how much one task should produce; with little data there are at least
    `min_partitions` of them, as far as there are chunks.
    """

    group: str = ""
    variables: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    dims: tuple[str, ...] | None = None
    layout: str = "cells"
    where: tuple[Condition, ...] = ()
    missing: str = "fill"
    decode: bool = True
    split_size: int = DEFAULT_SPLIT_BYTES
    min_partitions: int = DEFAULT_MIN_PARTITIONS


def _names(what: str, given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"{what} is {given!r:.80}, expected a list of names")
    if not names:
        raise InvalidInputError(f"{what} is empty; leave it out to have all")
    return tuple(names)


def _one_of(*possible: str) -> Callable[[str, Any], str]:
    def check(what: str, given: Any) -> str:
        if given not in possible:
            raise InvalidInputError(f"{what} is {given!r:.80}, expected {' or '.join(possible)}")
        return str(given)

    return check


def _of_type(kind: type, expected: str) -> Callable[[str, Any], Any]:
    def check(what: str, given: Any) -> Any:
        if not isinstance(given, kind):
            raise InvalidInputError(f"{what} is {given!r:.80}, expected {expected}")
        return given

    return check


def _size(what: str, given: Any) -> int:
    if isinstance(given, str):
        text = given.strip().lower().removesuffix("b")
        unit = _UNITS.get(text[-1:], 1)
        digits = text[:-1] if text[-1:] in _UNITS else text
        if digits.isdecimal() and int(digits) > 0:
            return int(digits) * unit
    elif isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    raise InvalidInputError(f"{what} is {given!r:.80}, expected bytes such as 134217728 or '128m'")


def _count(what: str, given: Any) -> int:
    number = int(given) if isinstance(given, str) and given.isdecimal() else given
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidInputError(f"{what} is {given!r:.80}, expected a number from 1 on")
    return number


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "group": _of_type(str, "the path of a group"),
    "variables": _names,
    "columns": _names,
    "dims": _names,
    "layout": _one_of("cells", "chunks"),
    "where": lambda _, where: parse_where(where),
    "missing": _one_of("fill", "skip"),
    "decode": _of_type(bool, "True or False"),
    "split_size": _size,
    "min_partitions": _count,
}
KNOWN_OPTIONS = frozenset(name.replace("_", "-") for name in _CHECKS)


def read_options(**given: Any) -> ReadOptions:
    """Options from Python values.

    Raises:
        InvalidInputError: a value is not one of those possible; says which are.
    """
    checked = {name: check(name, given[name]) for name, check in _CHECKS.items() if name in given}
    found = ReadOptions(**{**given, **checked})
    if found.layout == "chunks" and found.columns:
        raise InvalidInputError("columns is for layout='cells'; select those of layout='chunks'")
    if found.dims and (found.layout == "chunks" or found.variables):
        raise InvalidInputError(
            "dims chooses the arrays of layout='cells'; leave it out where variables names them, "
            "and with layout='chunks'"
        )
    return found


def options_from_text(options: Mapping[str, str]) -> ReadOptions:
    """Options of a data source: names have dashes, lists are separated by commas."""
    given: dict[str, Any] = {
        key.replace("-", "_"): options[key] for key in KNOWN_OPTIONS if key in options
    }
    for name in ("variables", "columns", "dims"):
        if name in given:
            given[name] = listed(given[name])
    if "decode" in given:
        given["decode"] = truth("decode", given["decode"])
    return read_options(**given)


def listed(text: str) -> list[str]:
    """An option that is a list of names."""
    return [part.strip() for part in text.split(",") if part.strip()]


def truth(name: str, text: str) -> bool:
    """An option that is true or false."""
    if text.lower() not in _TRUTH:
        raise InvalidInputError(f"option {name} is {text!r}, expected true or false")
    return _TRUTH[text.lower()]


INSTANT = pa.timestamp("us", tz="UTC")
TEXTS = pa.list_(pa.field("element", pa.string(), nullable=True))
INDEX = pa.list_(pa.field("element", pa.int64(), nullable=False))
"""A chunk index, a shape: one number per dimension."""
TEXT_MAP = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=True)
)


_TYPES = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "index": INDEX,
    "instant": INSTANT,
    "int": pa.int32(),
    "string": pa.string(),
    "texts": TEXTS,
    "text_map": TEXT_MAP,
}


def columns(text: str, **types: pa.DataType) -> pa.Schema:
    """A schema from text such as `path string, etag string?`; `?` marks columns with nulls."""
    known = {**_TYPES, **types}
    fields = []
    for column in text.split(","):
        name, kind = column.split()
        fields.append(pa.field(name, known[kind.rstrip("?")], nullable=kind.endswith("?")))
    return pa.schema(fields)


# `pa.array` and `pa.repeat` import pandas when they are first called, which takes a worker of Spark
# longer than to read a chunk. The functions below do without.


def repeated_text(text: str, count: int) -> pa.Array:
    """A column with one text in every row."""
    raw = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(raw * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def index_column(matrix: NDArray[Any]) -> pa.Array:
    """Rows of a matrix as lists."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    values = numbers_to_arrow(np.asarray(matrix, np.int64).reshape(-1))
    return pa.Array.from_buffers(INDEX, rows, [None, pa.py_buffer(offsets)], children=[values])


def required(name: str, kind: pa.DataType) -> pa.Field:
    """A column without nulls."""
    return pa.field(name, kind, nullable=False)


def table_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """A small table from rows of Python values."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


# -- A repository at one snapshot, in the form that travels to Spark's workers.
#
# The driver resolves a ref once and pins the snapshot, so every task of a job, its retries and
# later actions see the same data. A worker opens the repository when it first needs it and keeps
# it for the tasks that follow, with the decoded manifests in its caches.
#
# Credentials travel inside pickled functions, never in options of a data source, which Spark
# prints in plans. Storages that take theirs from the environment do so again on each worker.


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """What a task needs to read: the pickled repository and the id of a snapshot."""

    url: str
    snapshot_id: str
    repository: bytes = field(repr=False)

    def open(self) -> Session:
        """A session at the snapshot, shared by all tasks of this process."""
        return _opened(os.getpid(), self)[1]

    def open_repository(self) -> Repository:
        """The repository, shared by all tasks of this process."""
        return _opened(os.getpid(), self)[0]


# By process: connections do not survive the fork by which Spark makes workers.
@lru_cache(maxsize=8)
def _opened(_process: int, source: PinnedSnapshot) -> tuple[Repository, Session]:
    repository: Repository = pickle.loads(source.repository)
    return repository, repository.readonly_session(snapshot_id=source.snapshot_id)


def as_repository(repository: Repository | str, *, is_shared: bool = True) -> Repository:
    """A repository that is given as it is, or by its URL; with `is_shared`, workers can open it.

    Raises:
        InvalidInputError: it is neither, or kept in the memory of this process.
        RepositoryNotFoundError: nothing is stored at the URL.
    """
    if isinstance(repository, str):
        storage = storage_from_url(repository)
    elif isinstance(repository, Repository):
        storage = repository.storage
    else:
        raise InvalidInputError(
            f"repository is {repository!r:.80}, expected an icefloe.Repository or a URL such as "
            "'s3://bucket/prefix'"
        )
    if is_shared:
        require_shared(storage)
    return Repository.open(storage) if isinstance(repository, str) else repository


def require_shared(storage: Storage) -> None:
    """Refuse a storage that workers cannot reach.

    Raises:
        InvalidInputError: it is the memory of this process.
    """
    if isinstance(storage.location, MemoryLocation):
        raise InvalidInputError(
            f"{storage.describe()} is the memory of this process, which Spark's workers cannot "
            "read; keep the repository in a directory or a bucket",
            ErrorKind.STORAGE_CONFIG,
        )


def pin(
    repository: Repository,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> PinnedSnapshot:
    """The snapshot that a ref stands for now; branch `main` when nothing is given."""
    if branch is None and tag is None and snapshot_id is None:
        branch = "main"
    session = repository.readonly_session(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    return PinnedSnapshot(repository.storage.url, session.snapshot_id, pickle.dumps(repository))


REF_OPTIONS = ("branch", "tag", "snapshot", "as-of")


def pin_options(options: Mapping[str, str]) -> PinnedSnapshot:
    """The same from the options of a data source, which are text."""
    url = options.get("path")
    if not url:
        raise InvalidInputError(
            "the icefloe data source got no repository; give its URL to load(), such as "
            '.load("s3://bucket/prefix"). In SQL: CREATE TABLE t USING icefloe LOCATION '
            "'s3://bucket/prefix', without a list of columns"
        )
    text = options.get("as-of")
    try:  # without a zone it is local time
        as_of = None if text is None else datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise InvalidInputError(
            f"as-of is {text!r}, expected a time such as '2026-05-31T12:00:00Z'"
        ) from None
    return pin(
        as_repository(url),
        branch=options.get("branch"),
        tag=options.get("tag"),
        snapshot_id=options.get("snapshot"),
        as_of=as_of,
    )
