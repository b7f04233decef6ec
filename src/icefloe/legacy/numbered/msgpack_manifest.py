"""Manifests as MessagePack: read in every form from document 000 to 0.1.3, written in that of 000.

| items | form | generation |
|---|---|---|
| 1 | [chunks by (node, coordinates)] | the weeks of document 000 |
| 3 | [0, {}, chunks by (node, coordinates)] | alpha.1 to alpha.8; [1, {}, ...] alpha.10 |
| 3 | [1, {}, chunks by node, by coordinates] | alpha.11, alpha.12 |
| 4 | [1, {}, id, chunks by node, by coordinates] | alpha.15 |
| 2 | [id, chunks by node, by coordinates] | 0.1.0 to 0.1.3 |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.ids import NodeId
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.messagepack import (
    Pairs,
    pack,
    pack_array,
    pack_map,
    pairs,
    unpack,
    variant,
)
from icefloe.legacy.numbered.model import node_number
from icefloe.legacy.numbered.msgpack_ids import read_node_id, read_object_id, text_id
from icefloe.legacy.numbered.refs import DecodedManifest, RefLists, RefRows
from icefloe.legacy.numbered.wide_ids import IdMap

_MAX_SECONDS = 2**32 - 1


def decode_manifest(data: bytes | memoryview, name: str, ids: IdMap) -> DecodedManifest:
    """Decode a manifest. `name` is the name of the file in errors."""
    checked = Checked(name)
    items = checked.items(unpack(data, name), "the manifest", 1, 2, 3, 4)
    object_id = None
    if len(items) in (2, 4):
        object_id = read_object_id(items[-2], checked, "manifest id")
    chunks = pairs(items[-1], checked, "the chunks of the manifest")
    rows: dict[NodeId, RefRows] = {}
    for node, index, payload in _entries(chunks, checked):
        found = rows.get(node)
        if found is None:
            found = rows[node] = RefRows()
        _add(found, index, payload, checked)
    arrays = {node: found.columns(checked, ids) for node, found in rows.items()}
    return DecodedManifest(object_id, arrays)


def _entries(chunks: Pairs, checked: Checked) -> Iterator[tuple[NodeId, Sequence[int], Any]]:
    """Node, chunk index and payload of every chunk, from a flat or a nested map."""
    nodes: dict[Any, NodeId] = {}
    is_nested = bool(chunks) and isinstance(chunks[0][1], Pairs) and _is_nested(chunks[0])
    for key, value in chunks:
        if is_nested:
            node = read_node_id(key, checked)
            for index, payload in pairs(value, checked, "the chunks of an array"):
                yield node, checked.items(index, "a chunk index"), payload
            continue
        raw, index = checked.items(key, "the key of a chunk", 2)
        found = nodes.get(raw)
        if found is None:
            found = nodes[raw] = read_node_id(raw, checked)
        yield found, checked.items(index, "a chunk index"), value


def _is_nested(entry: tuple[Any, Any]) -> bool:
    """Whether the value belongs to an array rather than to a chunk: its keys are indices."""
    key, value = entry
    if isinstance(key, tuple) and len(key) == 2 and not isinstance(key[0], bytes):
        return False  # (node, coordinates)
    return not value or isinstance(value[0][0], tuple)


def _add(rows: RefRows, index: Sequence[int], payload: Any, checked: Checked) -> None:
    kind, value = variant(payload, checked, "the payload of a chunk")
    if kind == "Ref":
        raw, offset, length = checked.items(value, "a chunk reference", 3)
        found = raw if isinstance(raw, str) else read_object_id(raw, checked, "chunk id")
        rows.add_native(index, (found, offset, length))
    elif kind == "Inline":
        rows.add_inline(index, checked.octets(value, "an inline chunk"))
    elif kind == "Virtual":
        rows.add_virtual(index, _virtual(value, checked))
    else:
        raise checked.unexpected("the payload of a chunk", kind, "Inline, Virtual or Ref")


def _virtual(value: Any, checked: Checked) -> tuple[str, int, int, str | None, int]:
    items = checked.items(value, "a virtual reference", 3, 4)
    location = items[0]
    if isinstance(location, Pairs):
        kind, location = variant(location, checked, "a virtual location")
        if kind != "Absolute":
            raise checked.unexpected("a virtual location", kind, "Absolute")
    etag, modified = None, 0
    if len(items) == 4 and items[3] is not None:
        kind, content = variant(items[3], checked, "a checksum")
        if kind == "LastModified":
            modified = checked.whole(content, "LastModified", _MAX_SECONDS)
        elif kind == "ETag":
            etag = checked.text(content, "ETag")
        else:
            raise checked.unexpected("a checksum", kind, "LastModified or ETag")
    return checked.text(location, "a virtual location"), items[1], items[2], etag, modified


# -- writing, in the form of document 000


def encode_manifest(arrays: Mapping[NodeId, ChunkRefs], ids: IdMap) -> bytes:
    """A manifest of document 000. It cannot store ETags and times of virtual chunks."""
    entries: list[tuple[bytes, bytes]] = []
    for node, refs in sorted(arrays.items()):
        number = node_number(node)
        assert number is not None, f"node {node} is not numbered"
        columns = RefLists.of(refs, ids)
        keys = (pack([number, index]) for index in columns.index)
        entries.extend(zip(keys, _payloads(columns), strict=True))
    return pack_array([pack_map(entries, len(entries))], 1)


def _payloads(columns: RefLists) -> Iterator[bytes]:
    for row, kind in enumerate(columns.kind):
        if kind == ChunkKind.INLINE:
            yield pack({"Inline": columns.inline[row]})
        elif kind == ChunkKind.VIRTUAL:
            ref = [columns.location[row], columns.offset[row], columns.length[row]]
            yield pack({"Virtual": ref})
        else:
            chunk = text_id(columns.chunk_id[row])
            yield pack({"Ref": [chunk, columns.offset[row], columns.length[row]]})
