"""Sets of references in one JSON file, plain or compressed: versions 0 and 1 of the specification.

Version 0 is an object from keys to references. Version 1 has that object in `refs`, and may have
`templates` for parts of URLs and `gen` for references that follow a rule.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from icefloe.on_demand import on_demand
from icefloe.virtual.formats.chunk_keys import ChunkKeys, grid_of
from icefloe.virtual.formats.kerchunk_entries import (
    METADATA_NAMES,
    ChunkColumns,
    Entry,
    inline_bytes,
    texts_to_arrow,
)
from icefloe.virtual.formats.kerchunk_templates import TemplateError, generate, render
from icefloe.virtual.model.description import Json, SourceError, VariableDescription
from icefloe.virtual.places.access import SourceFile

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

MAX_JSON_BYTES = 4 << 30
_CONSOLIDATED = ".zmetadata"
_GZIP, _ZSTD, _BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"


def may_be_json(start: bytes) -> bool:
    """Whether a file that starts like this may be JSON, or compressed JSON."""
    is_packed = start.startswith((_GZIP, _ZSTD))
    return is_packed or start.removeprefix(_BOM).lstrip()[:1] == b"{"


class JsonReferences:
    """A set from a JSON file, all of it in memory."""

    def __init__(self, file: SourceFile) -> None:
        """Read a set.

        Raises:
            SourceError: it is none, or says what cannot be.
        """
        self.location, self.version = file.location, file.version
        self.documents: dict[str, Entry] = {}
        self._chunks: dict[str, Entry] = {}
        self._by_array: dict[str, list[str]] | None = None
        for key, value in self._references(_load(file)):
            entry = self._entry(key, value)
            name = key.rpartition("/")[2]
            into = self.documents if name in METADATA_NAMES else self._chunks
            into[key] = entry
        consolidated = self._chunks.pop(_CONSOLIDATED, None)
        if not self.documents and isinstance(consolidated, bytes):
            whole = json.loads(consolidated)
            inside = whole.get("metadata", {}) if isinstance(whole, dict) else {}
            self.documents = {key: json.dumps(item).encode() for key, item in inside.items()}

    def find(self, key: str) -> Entry | None:
        return self._chunks.get(key)

    def check_owners(self, paths: frozenset[str]) -> None:
        grouped: dict[str, list[str]] = {path: [] for path in paths}
        for key in self._chunks:
            path = key.rpartition("/")[0]
            while path and path not in paths:
                path = path.rpartition("/")[0]
            if path not in paths:
                raise self._wrong(f"key {key!r} belongs to no array: there is no .zarray for it")
            grouped[path].append(key)
        self._by_array = grouped

    def columns(self, variable: VariableDescription, keys: ChunkKeys) -> ChunkColumns:
        assert self._by_array is not None
        names = self._by_array[variable.path]
        rest = pa.array([name[len(variable.path) + 1 :] for name in names], pa.string())
        rows, index = keys.parse(rest, len(variable.shape))
        if len(rows) < len(names):
            first = int(np.argmax(~np.isin(np.arange(len(names)), rows)))
            raise self._wrong(
                f"key {names[first]!r} is no chunk of an array with {len(variable.shape)} "
                f"dimensions, whose keys have {keys.separator!r} between numbers"
            )
        grid = grid_of(variable.shape, variable.chunks)
        outside = (index >= np.array(grid, np.int64)).any(axis=1)
        if outside.any():
            raise self._wrong(
                f"key {names[int(np.argmax(outside))]!r} is outside of the grid of {grid} chunks"
            )
        entries = [self._chunks[name] for name in names]
        pairs = [(None, 0, 0, e) if isinstance(e, bytes) else (*e, None) for e in entries]
        url, offset, length, inline = zip(*pairs, strict=True) if pairs else ((), (), (), ())
        return ChunkColumns(
            index,
            texts_to_arrow(url),
            np.array(offset, np.int64),
            np.array(length, np.int64),
            pa.array(inline, pa.binary()),
        )

    def _references(self, document: dict[str, Json]) -> Iterator[tuple[str, Json]]:
        """Keys and references, with templates rendered."""
        if "refs" not in document:
            if "version" in document or "gen" in document:
                raise self._wrong("it has no 'refs'")
            yield from document.items()
            return
        version = document.get("version", 1)
        if version != 1 or isinstance(version, bool):
            raise self._wrong(f"version {version!r} of reference sets is unknown, expected 1")
        refs, templates = document["refs"], document.get("templates") or {}
        if not isinstance(refs, dict):
            raise self._wrong("'refs' is no JSON object")
        if not isinstance(templates, dict) or not _are_texts(templates):
            raise self._wrong("'templates' are not texts by name")
        try:
            rendered: dict[str, str] = {}  # few files have many chunks
            for key, value in refs.items():
                if isinstance(value, list) and value and isinstance(value[0], str):
                    url = value[0]
                    if url not in rendered:
                        rendered[url] = render(url, templates)
                    value[0] = rendered[url]
                yield key, value
            for gen in document.get("gen") or []:
                yield from generate(gen, templates)
        except (TemplateError, TypeError, ValueError) as error:
            raise self._wrong(str(error)) from error

    def _entry(self, key: str, value: Json) -> Entry:
        match value:
            case [str(url), int(offset), int(length)] if url and offset >= 0 and length > 0:
                if offset + length < 1 << 63:
                    return url, offset, length
            case [str(url)] if url:
                return url, 0, 0
            case dict():
                return json.dumps(value).encode()
            case str():
                try:
                    return inline_bytes(value.encode())
                except ValueError as error:
                    raise self._wrong(f"the value of key {key!r}: {error}") from None
        shown = repr(value) if len(repr(value)) < 200 else f"{repr(value)[:200]}..."
        raise self._wrong(
            f"key {key!r} has {shown}, expected text, [url], or [url, offset, length] with whole "
            "numbers and a length of at least 1"
        )

    def _wrong(self, reason: str) -> SourceError:
        return SourceError(f"{self.location}: {reason}")


def _are_texts(templates: dict[str, Any]) -> bool:
    return all(isinstance(text, str) for text in templates.values())


def _load(file: SourceFile) -> dict[str, Json]:
    size = file.version.size_bytes
    with file.open() as stream:
        # One request for a remote file, however large.
        data = stream.read(size) if file.reader is None else file.reader.read_at(0, size)
    try:
        document = json.loads(_unpacked(data))
    except (zlib.error, EOFError, OSError, zstandard.ZstdError) as error:
        raise SourceError(f"{file.location}: it cannot be decompressed ({error})") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file.location}: it is not JSON ({error})") from None
    is_set = isinstance(document, dict) and (
        "refs" in document
        or "version" in document
        or any(key.rpartition("/")[2] in (*METADATA_NAMES, _CONSOLIDATED) for key in document)
    )
    if not is_set:
        raise SourceError(
            f"{file.location}: JSON that is no set of references: it has neither 'refs' nor keys "
            "such as '.zgroup'"
        )
    found: dict[str, Json] = document
    return found


def _unpacked(data: bytes) -> bytes:
    stream: Any
    if data.startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    elif data.startswith(_ZSTD):
        stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data))
    else:
        return data
    found: bytes = stream.read(MAX_JSON_BYTES)
    if stream.read(1):
        raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes")
    return found
