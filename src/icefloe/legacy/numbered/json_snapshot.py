"""Snapshots as JSON, valid against the schema of document 000."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.legacy.checked import Checked, instant_text
from icefloe.legacy.numbered.json_values import dump, load, read_id, variant
from icefloe.legacy.numbered.model import (
    Ancestor,
    ArrayMetadata,
    AttributesRef,
    NamedConfiguration,
    OldManifestRef,
    OldNode,
    OldSnapshot,
    node_id,
    node_number,
)
from icefloe.legacy.numbered.zarr_values import (
    checked_data_type,
    checked_fill_value,
    raw_fill_value,
)

_U32 = 2**32 - 1
_KEY_ENCODINGS = ("Slash", "Dot", "Default")


def decode_snapshot(data: bytes | memoryview, name: str) -> OldSnapshot:
    """Decode a snapshot. `name` is the name of the file in errors."""
    checked = Checked(name)
    document = load(data, name)

    def member(key: str) -> Any:
        return checked.member(document, key, "the snapshot")

    itself = _ancestor(member("metadata"), checked)
    history = checked.items(member("short_term_history"), "short_term_history")
    return OldSnapshot(
        itself.id,
        itself.written_at,
        itself.message,
        _nodes(member("nodes"), checked),
        checked.mapping(member("properties"), "properties"),
        tuple(_ancestor(each, checked) for each in history),
        checked.whole(member("total_parents"), "total_parents", _U32),
        checked.instant(member("started_at"), "started_at"),
    )


def _ancestor(value: Any, checked: Checked) -> Ancestor:
    what = "the metadata of a snapshot"
    found = checked.mapping(value, what)
    return Ancestor(
        read_id(checked.member(found, "id", what), checked, "snapshot id"),
        checked.instant(checked.member(found, "written_at", what), "written_at"),
        checked.text(checked.member(found, "message", what), "message"),
    )


def _nodes(value: Any, checked: Checked) -> list[OldNode]:
    nodes = []
    for path, node in checked.mapping(value, "nodes").items():
        found = _node(checked.mapping(node, f"node {path!r:.80}"), checked)
        if path != found.path:
            raise checked.fail(f"the node under {path!r:.80} says its path is {found.path!r:.80}")
        nodes.append(found)
    return nodes


def _node(value: Mapping[str, Any], checked: Checked) -> OldNode:
    path = checked.text(checked.member(value, "path", "a node"), "a node path")
    where = f"node {path!r:.80}"
    number = checked.whole(checked.member(value, "id", where), f"id of {where}", _U32)
    attributes = _attributes(value.get("user_attributes"), checked, where)
    kind, content = variant(checked.member(value, "node_data", where), checked, where)
    if kind == "Group":
        return OldNode(node_id(number), path, attributes)
    if kind != "Array":
        raise checked.unexpected(f"node_data of {where}", kind, "Group or Array")
    metadata, manifests = checked.items(content, where, 2)
    found = _array(checked.mapping(metadata, where), checked, where)
    refs = tuple(
        _manifest_ref(checked.mapping(each, "a manifest reference"), len(found.shape), checked)
        for each in checked.items(manifests, f"the manifests of {where}")
    )
    return OldNode(node_id(number), path, attributes, found, refs)


def _attributes(value: Any, checked: Checked, where: str) -> Any:
    if value is None:
        return None
    what = f"user_attributes of {where}"
    kind, content = variant(value, checked, what)
    found = checked.mapping(content, what)
    if kind == "Inline":
        return found
    if kind != "Ref":
        raise checked.unexpected(what, kind, "Inline or Ref")
    raw = read_id(checked.member(found, "object_id", what), checked, "attributes id")
    return AttributesRef(
        raw, checked.whole(checked.member(found, "location", what), "location", _U32)
    )


def _manifest_ref(value: Mapping[str, Any], ndim: int, checked: Checked) -> OldManifestRef:
    what = "a manifest reference"
    raw = read_id(checked.member(value, "object_id", what), checked, "manifest id")
    extents = checked.items(checked.member(value, "extents", what), "the extents of a manifest")
    if not extents:
        return OldManifestRef(raw)
    start, stop = checked.items(extents, "the extents of a manifest", 2)
    first = [checked.whole(at, "an extent", _U32) for at in checked.items(start, "extents", ndim)]
    last = [checked.whole(at, "an extent", _U32) for at in checked.items(stop, "extents", ndim)]
    return OldManifestRef(raw, tuple(zip(first, last, strict=True)))


def _array(value: Mapping[str, Any], checked: Checked, where: str) -> ArrayMetadata:
    def member(key: str) -> Any:
        return checked.member(value, key, where)

    shape = tuple(checked.whole(at, "shape") for at in checked.items(member("shape"), "shape"))
    chunks = checked.items(member("chunk_shape"), "chunk_shape", len(shape))
    encoding = member("chunk_key_encoding")
    if encoding not in _KEY_ENCODINGS:
        raise checked.unexpected(
            f"chunk_key_encoding of {where}", encoding, "Slash, Dot or Default"
        )
    data_type = checked_data_type(member("data_type"), checked)
    kind, content = variant(member("fill_value"), checked, f"fill_value of {where}")
    transformers, names = value.get("storage_transformers"), value.get("dimension_names")
    return ArrayMetadata(
        shape,
        data_type,
        tuple(checked.whole(at, "chunk_shape") for at in chunks),
        encoding,
        checked_fill_value(kind, content, data_type, checked),
        _named(member("codecs"), checked),
        None if transformers is None else _named(transformers, checked),
        None if names is None else _names(names, len(shape), checked),
    )


def _named(value: Any, checked: Checked) -> tuple[NamedConfiguration, ...]:
    found = []
    for each in checked.items(value, "codecs"):
        entry = checked.mapping(each, "a codec")
        name = checked.text(checked.member(entry, "name", "a codec"), "the name of a codec")
        configuration = entry.get("configuration")
        if configuration is not None:
            checked.mapping(configuration, f"the configuration of {name!r:.40}")
        found.append(NamedConfiguration(name, configuration))
    return tuple(found)


def _names(value: Any, ndim: int, checked: Checked) -> tuple[str | None, ...]:
    names = checked.items(value, "dimension_names", ndim)
    return tuple(None if each is None else checked.text(each, "a name") for each in names)


def encode_snapshot(snapshot: OldSnapshot) -> bytes:
    """A snapshot that is valid against the schema."""
    started = snapshot.written_at if snapshot.started_at is None else snapshot.started_at
    return dump(
        {
            "total_parents": snapshot.total_parents,
            "short_term_parents": len(snapshot.history),
            "short_term_history": [_ancestor_document(each) for each in snapshot.history],
            "metadata": _ancestor_document(
                Ancestor(snapshot.id, snapshot.written_at, snapshot.message)
            ),
            "started_at": instant_text(started),
            "properties": dict(snapshot.properties),
            "nodes": {node.path: _node_document(node) for node in snapshot.nodes},
        }
    )


def _ancestor_document(ancestor: Ancestor) -> dict[str, Any]:
    return {
        "id": list(ancestor.id),
        "written_at": instant_text(ancestor.written_at),
        "message": ancestor.message,
    }


def _node_document(node: OldNode) -> dict[str, Any]:
    attributes: dict[str, Any] | None = None
    if isinstance(node.attributes, AttributesRef):
        attributes = {
            "Ref": {
                "object_id": list(node.attributes.object_id),
                "location": node.attributes.location,
                "flags": [],
            }
        }
    elif node.attributes is not None:
        attributes = {"Inline": dict(node.attributes)}
    data: Any = "Group"
    if node.metadata is not None:
        refs = [
            {"object_id": list(ref.object_id), "flags": [], "extents": _extents(ref)}
            for ref in node.manifests
        ]
        data = {"Array": [_array_document(node.metadata), refs]}
    number = node_number(node.id)
    assert number is not None, f"node {node.id} is not numbered"
    return {"id": number, "path": node.path, "user_attributes": attributes, "node_data": data}


def _extents(ref: OldManifestRef) -> list[list[int]]:
    """The first chunk index and the last plus one, as in releases from alpha.15 on."""
    if ref.extents is None:
        return []
    return [[first for first, _ in ref.extents], [last for _, last in ref.extents]]


def _array_document(metadata: ArrayMetadata) -> dict[str, Any]:
    fill = raw_fill_value(metadata.fill_value, metadata.data_type)
    value = list(fill.value) if isinstance(fill.value, bytes | tuple) else fill.value
    data_type = metadata.data_type
    transformers = metadata.storage_transformers
    return {
        "shape": list(metadata.shape),
        "data_type": data_type if isinstance(data_type, str) else dict(data_type),
        "chunk_shape": list(metadata.chunk_shape),
        "chunk_key_encoding": metadata.chunk_key_encoding,
        "fill_value": {fill.kind: value},
        "codecs": [each._asdict() for each in metadata.codecs],
        "storage_transformers": None
        if transformers is None
        else [each._asdict() for each in transformers],
        "dimension_names": metadata.dimension_names,
    }
