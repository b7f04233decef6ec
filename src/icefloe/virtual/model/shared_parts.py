"""Descriptions of many files, in which what files have in common is there once.

Files of one archive differ in a few times and digests; names, attributes and grids are the same in
all of them. Tasks hand over such parts once each, under a hash, and the driver puts descriptions
together that share them: a file costs it a few hundred bytes, whatever its coordinates.

Attributes of groups often differ in a line of history, and only those of one file are ever used.
A task hands them over as a page for many files, compressed, which nobody unpacks before that.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from icefloe.virtual.model.description import (
    GroupDescription,
    SourceDescription,
    SourceVersion,
    StoredAttributes,
    VariableDescription,
)
from icefloe.virtual.model.shared_variables import (
    DIGEST_BYTES,
    Layout,
    SharedField,
    SharedVariables,
)

_INLINE_BYTES = 256
"""Values up to this size travel with their file: hashes would be as large."""
_KEY_BYTES = 12
_PAGE_BYTES = 1 << 20
_MAX_SHARED = 16
"""Small values that more files than this have differently are not looked for any more."""

Key = bytes
_Slim = tuple[Key, tuple[Any, ...], Key, int, bytes]
"""Shape, version, page of attributes and place on it, and the bytes of all variables."""


@dataclass(frozen=True, slots=True)
class _Column:
    """What the bytes of one variable are: a digest, then values or the key of values."""

    form: Key
    has_digest: bool
    values: tuple[str, tuple[int, ...]] | None
    has_key: bool
    size: int


_Shape = tuple[str, Key, tuple[_Column, ...]]
"""Format, groups without attributes, variables: the same for all files that are alike."""


@dataclass(slots=True)
class Splitter:
    """Takes descriptions apart; every part is handed out once."""

    seen: set[Key] = field(default_factory=set)
    _fresh: list[tuple[Key, bytes]] = field(default_factory=list)
    _page: dict[bytes, int] = field(default_factory=dict)
    """Pickled attributes and their places."""
    _page_key: Key = b""
    _page_bytes: int = 0

    def split(self, source: SourceDescription) -> bytes:
        """What is left of a description without its parts."""
        columns, own = [], []
        for variable in source.variables.values():
            column, data = self._column(variable)
            columns.append(column)
            own.append(data)
        groups = {
            path: GroupDescription({}, group.dimensions, group.unlimited)
            for path, group in source.groups.items()
        }
        shape: _Shape = (source.format, self._part(groups), tuple(columns))
        version = source.version
        state = (version.size_bytes, version.etag, version.last_modified, version.fingerprint)
        page, place = self._place_attributes(source)
        slim: _Slim = (self._part(shape), state, page, place, b"".join(own))
        return pickle.dumps(slim)

    def fresh(self) -> Iterator[tuple[Key, bytes]]:
        """The parts that were not handed out so far."""
        yield from self._fresh
        self._fresh.clear()

    def finish(self) -> Iterator[tuple[Key, bytes]]:
        """The parts that were held back; to be called after the last description."""
        self._end_page()
        yield from self.fresh()

    def _column(self, variable: VariableDescription) -> tuple[_Column, bytes]:
        form = self._part(replace(variable, values=None, digest=None))
        data, values = variable.digest or b"", variable.values
        kind, has_key = None, False
        if values is not None and (values.nbytes > _INLINE_BYTES or values.dtype.hasobject):
            data, has_key = data + self._part(values), True
        elif values is not None:
            data, kind = data + values.tobytes(), (values.dtype.str, values.shape)
        return _Column(form, variable.digest is not None, kind, has_key, len(data)), data

    def _place_attributes(self, source: SourceDescription) -> tuple[Key, int]:
        data = pickle.dumps({path: source.attributes_of(path) for path in source.groups})
        if data not in self._page:
            if self._page_bytes > _PAGE_BYTES:
                self._end_page()
            if not self._page:
                self._page_key = _hash(source.location.encode())  # which no other page begins with
            self._page[data] = len(self._page)
            self._page_bytes += len(data)
        return self._page_key, self._page[data]

    def _end_page(self) -> None:
        if self._page:
            data = zlib.compress(pickle.dumps(list(self._page)))
            self._fresh.append((self._page_key, pickle.dumps(data)))
        self._page, self._page_bytes = {}, 0

    def _part(self, part: Any) -> Key:
        data = pickle.dumps(part)
        key = _hash(data)
        if key not in self.seen:
            self.seen.add(key)
            self._fresh.append((key, data))
        return key


def _hash(data: bytes) -> Key:
    return hashlib.blake2b(data, digest_size=_KEY_BYTES).digest()


@dataclass(slots=True)
class Joiner:
    """Puts descriptions together again; equal parts become the same object."""

    parts: dict[Key, Any] = field(default_factory=dict)
    _shared: dict[tuple[Key, int], dict[bytes, VariableDescription]] = field(default_factory=dict)
    """By shape and position: variables that several files may have, by their bytes."""
    _layouts: dict[tuple[Key, tuple[int, ...]], Layout] = field(default_factory=dict)
    """By shape and the identities of the variables that files share."""

    def add(self, key: Key, data: bytes) -> None:
        """Take in a part."""
        if key not in self.parts:
            self.parts[key] = pickle.loads(data)

    def join(self, location: str, data: bytes) -> SourceDescription:
        """The description that was taken apart; all parts have been added before."""
        slim: _Slim = pickle.loads(data)
        shape, state, page, place, own = slim
        kind, groups, columns = self.parts[shape]
        shared: list[VariableDescription | None] = []
        rest = []
        at = 0
        for position, column in enumerate(columns):
            piece = own[at : at + column.size]
            at += column.size
            variable = self._variable((shape, position), column, piece)
            shared.append(variable)
            if variable is None:
                rest.append(piece)
        key = (shape, tuple(map(id, shared)))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._layout(columns, shared)
        return SourceDescription(
            location,
            kind,
            SourceVersion(*state),
            self.parts[groups],
            SharedVariables(layout, b"".join(rest)),
            stored_attributes=StoredAttributes(self.parts[page], place),
        )

    def _variable(
        self, where: tuple[Key, int], column: _Column, piece: bytes
    ) -> VariableDescription | None:
        """The variable that files share; None for one whose bytes stay with the file."""
        known = self._shared.setdefault(where, {})
        found = known.get(piece)
        if found is None and (column.has_key or len(known) < _MAX_SHARED):
            found = self._field(column, 0).make(piece)
            if column.has_key:
                values = self.parts[piece[DIGEST_BYTES * column.has_digest :]]
                found = replace(found, values=values)
            known[piece] = found
        return found

    def _layout(
        self, columns: tuple[_Column, ...], shared: list[VariableDescription | None]
    ) -> Layout:
        layout: Layout = {}
        at = 0
        for column, variable in zip(columns, shared, strict=True):
            found = variable or self._field(column, at)
            at += 0 if variable else column.size
            layout[found.path if isinstance(found, VariableDescription) else found.form.path] = (
                found
            )
        return layout

    def _field(self, column: _Column, start: int) -> SharedField:
        dtype, shape = (None, ()) if column.values is None else column.values
        return SharedField(
            self.parts[column.form],
            start,
            start + column.size,
            column.has_digest,
            None if dtype is None else np.dtype(dtype),
            shape,
        )
