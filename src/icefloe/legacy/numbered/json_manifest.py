"""Manifests as JSON, valid against the schema of document 000.

The document does not say how the key of a chunk is written in the object `chunks`. Here it is the
node's number and the chunk's indices, joined by slashes: `7/0/12`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.ids import NodeId
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.json_values import dump, load, read_id, variant
from icefloe.legacy.numbered.model import node_id, node_number
from icefloe.legacy.numbered.refs import DecodedManifest, RefLists, RefRows
from icefloe.legacy.numbered.wide_ids import IdMap

_U32 = 2**32 - 1


def decode_manifest(data: bytes | memoryview, name: str, ids: IdMap) -> DecodedManifest:
    """Decode a manifest. `name` is the name of the file in errors."""
    checked = Checked(name)
    chunks = checked.mapping(checked.member(load(data, name), "chunks", "the manifest"), "chunks")
    rows: dict[NodeId, RefRows] = {}
    for key, payload in chunks.items():
        node, index = _chunk_key(key, checked)
        _add(rows.setdefault(node, RefRows()), index, payload, checked)
    arrays = {node: found.columns(checked, ids) for node, found in rows.items()}
    return DecodedManifest(None, arrays)


def _chunk_key(key: str, checked: Checked) -> tuple[NodeId, list[int]]:
    parts = key.split("/")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 20 for part in parts):
        raise checked.unexpected(
            "the key of a chunk", key, "numbers joined by '/', the node's first"
        )
    number, *index = map(int, parts)
    return node_id(checked.whole(number, "node id", _U32)), index


def _add(rows: RefRows, index: Sequence[int], payload: Any, checked: Checked) -> None:
    kind, content = variant(payload, checked, "the payload of a chunk")
    if kind == "Inline":
        rows.add_inline(index, checked.octets(content, "an inline chunk"))
        return
    what = f"a chunk of kind {kind!r:.40}"
    value = checked.mapping(content, what)
    offset, length = (checked.member(value, key, what) for key in ("offset", "length"))
    if kind == "Ref":
        raw = read_id(checked.member(value, "id", what), checked, "chunk id")
        rows.add_native(index, (raw, offset, length))
    elif kind == "Virtual":
        location = checked.text(checked.member(value, "location", what), "location")
        rows.add_virtual(index, (location, offset, length, None, 0))
    else:
        raise checked.unexpected("the payload of a chunk", kind, "Inline, Virtual or Ref")


def encode_manifest(arrays: Mapping[NodeId, ChunkRefs], ids: IdMap) -> bytes:
    """A manifest that is valid against the schema."""
    chunks: dict[str, Any] = {}
    for node, refs in sorted(arrays.items()):
        columns = RefLists.of(refs, ids)
        number = str(node_number(node))
        keys = ("/".join((number, *map(str, index))) for index in columns.index)
        chunks.update(zip(keys, _payloads(columns), strict=True))
    return dump({"chunks": chunks})


def _payloads(columns: RefLists) -> Iterator[dict[str, Any]]:
    for row, kind in enumerate(columns.kind):
        if kind == ChunkKind.INLINE:
            yield {"Inline": list(columns.inline[row] or b"")}
            continue
        place: dict[str, Any] = {"offset": columns.offset[row], "length": columns.length[row]}
        if kind == ChunkKind.VIRTUAL:
            yield {"Virtual": {"location": columns.location[row], **place}}
        else:
            yield {"Ref": {"id": list(columns.chunk_id[row]), **place}}
