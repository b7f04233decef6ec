"""Chunk references of the numbered generations, converted between rows of a file and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from icefloe.errors import IcechunkError
from icefloe.format.columns.blobs import Bytes
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.file import ArrayManifest, Manifest
from icefloe.ids import ManifestId, NodeId, decode_base32_rows
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.wide_ids import IdMap

_MAX_INDEX = 2**32 - 1


class RefRows:
    """References of one array as read from a file, one list per column."""

    __slots__ = ("inline", "inline_index", "native", "native_index", "virtual", "virtual_index")

    def __init__(self) -> None:
        self.inline_index: list[Sequence[int]] = []
        self.inline: list[bytes] = []
        self.native_index: list[Sequence[int]] = []
        self.native: list[tuple[bytes | str, int, int]] = []
        """Id, as bytes or as text, offset and length."""
        self.virtual_index: list[Sequence[int]] = []
        self.virtual: list[tuple[str, int, int, str | None, int]] = []
        """Location, offset, length, ETag, and seconds of the last change or 0."""

    def add_inline(self, index: Sequence[int], data: bytes) -> None:
        self.inline_index.append(index)
        self.inline.append(data)

    def add_native(self, index: Sequence[int], chunk: tuple[bytes | str, int, int]) -> None:
        self.native_index.append(index)
        self.native.append(chunk)

    def add_virtual(
        self, index: Sequence[int], chunk: tuple[str, int, int, str | None, int]
    ) -> None:
        self.virtual_index.append(index)
        self.virtual.append(chunk)

    def columns(self, checked: Checked, ids: IdMap) -> ChunkRefs:
        """The references as columns, checked."""
        ranks = {len(i) for i in (*self.inline_index, *self.native_index, *self.virtual_index)}
        if len(ranks) > 1:
            raise checked.fail(
                f"chunks of one array have {sorted(ranks)} dimensions, expected one number"
            )
        ndim = ranks.pop() if ranks else 0
        parts = []
        try:
            if self.inline:
                index = _matrix(self.inline_index, ndim, checked)
                parts.append(ChunkRefs.inline_chunks(index, self.inline))
            if self.native:
                raw, offset, length = zip(*self.native, strict=True)
                index = _matrix(self.native_index, ndim, checked)
                short = ids.shorten(_id_rows(raw, ids, checked))
                parts.append(
                    ChunkRefs.native(
                        index, short, _numbers(offset, checked), _numbers(length, checked)
                    )
                )
            if self.virtual:
                parts.append(self._virtual_columns(ndim, checked))
        except IcechunkError as error:
            raise checked.fail(error.message.removeprefix(f"{checked.name}: ")) from None
        layers = [(part, None) for part in parts]
        refs = ChunkRefs.overlay(layers, ndim)[0]
        if len(refs) != len(self.inline) + len(self.native) + len(self.virtual):
            raise checked.fail("a chunk of an array is listed twice")
        return refs

    def _virtual_columns(self, ndim: int, checked: Checked) -> ChunkRefs:
        location, offset, length, etag, modified = zip(*self.virtual, strict=True)
        return ChunkRefs.virtual(
            _matrix(self.virtual_index, ndim, checked),
            list(location),
            _numbers(offset, checked),
            _numbers(length, checked),
            list(etag) if any(each is not None for each in etag) else None,
            np.array(modified, np.uint32) if any(modified) else None,
        )


def _id_rows(raw: Sequence[bytes | str], ids: IdMap, checked: Checked) -> Bytes:
    if all(isinstance(each, str) and each.isascii() for each in raw):
        # All texts are decoded at once, unless one of them is not canonical.
        rows, is_id = decode_base32_rows(np.array(raw, np.bytes_), ids.size)
        if is_id.all():
            return rows
    found = [
        checked.id_text(each, "chunk id", 12, 16) if isinstance(each, str) else each for each in raw
    ]
    sizes = set(map(len, found))
    if len(sizes) > 1:
        raise checked.fail(f"chunk ids have {sorted(sizes)} bytes, expected one size in a file")
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, sizes.pop())


def _matrix(rows: Sequence[Sequence[int]], ndim: int, checked: Checked) -> Index:
    flat = _numbers([at for row in rows for at in row], checked)
    if len(flat) and int(flat.max()) > _MAX_INDEX:
        raise checked.fail(f"chunk index {int(flat.max()):,}, at most {_MAX_INDEX:,} can be read")
    matrix: Index = flat.astype(np.uint32).reshape(len(rows), ndim)
    return matrix


def _numbers(values: Sequence[Any], checked: Checked) -> Any:
    if set(map(type, values)) - {int}:
        raise checked.fail("an offset, length or chunk index is not a whole number")
    try:
        return np.array(values, np.uint64) if values else np.empty(0, np.uint64)
    except (OverflowError, ValueError):
        raise checked.fail("an offset, length or chunk index is not from 0 to 2**64 - 1") from None


class DecodedManifest(NamedTuple):
    """A manifest file: the references of each array. Old files do not have their own id."""

    object_id: bytes | None
    arrays: dict[NodeId, ChunkRefs]

    def manifest(self, manifest_id: ManifestId) -> Manifest:
        """The manifest as sessions use it."""
        ordered = sorted(self.arrays.items())
        return Manifest(manifest_id, tuple(ArrayManifest(*entry) for entry in ordered))


@dataclass(frozen=True, slots=True)
class RefLists:
    """References as lists, to be written to a file."""

    index: list[list[int]]
    kind: list[int]
    chunk_id: list[bytes]
    offset: list[int]
    length: list[int]
    location: list[str | None]
    inline: list[bytes | None]
    etag: list[str | None]
    last_modified: list[int]

    @classmethod
    def of(cls, refs: ChunkRefs, ids: IdMap) -> RefLists:
        """Ids as in files, one row per reference; empty for a chunk without an id."""
        count = len(refs)
        chunk_id = [b""] * count
        if refs.chunk_id is not None:
            native = np.flatnonzero(refs.kind == ChunkKind.NATIVE)
            wide = ids.widen(np.ascontiguousarray(refs.chunk_id[native]))
            for row, each in zip(native.tolist(), wide, strict=True):
                chunk_id[row] = each.tobytes()
        location = [None] * count if refs.location is None else refs.location.to_arrow().to_pylist()
        etag = [None] * count if refs.etag is None else refs.etag.to_arrow().to_pylist()
        modified = [0] * count if refs.last_modified is None else refs.last_modified.tolist()
        inline = [None] * count if refs.inline is None else refs.inline.to_list()
        return cls(
            refs.index.tolist(),
            refs.kind.tolist(),
            chunk_id,
            refs.offset.tolist(),
            refs.length.tolist(),
            location,
            inline,
            etag,
            modified,
        )
