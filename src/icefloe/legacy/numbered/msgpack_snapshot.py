"""Snapshots as MessagePack: read in every form from document 000 to 0.1.3, written in that of 000.

| items | generation |
|---|---|
| 7 | the weeks of document 000 |
| 11 | alpha.1 to alpha.8: version, flags, manifest files and attribute files come first |
| 9 | alpha.10 to alpha.15: without version and flags |
| 8 | 0.1.0 to 0.1.3: the parent's id instead of a history |
"""

from __future__ import annotations

from typing import Any

from icefloe.legacy.checked import Checked, instant_text
from icefloe.legacy.numbered.messagepack import (
    pack,
    pack_array,
    pack_float32,
    pack_map,
    pairs,
    plain,
    unpack,
    variant,
)
from icefloe.legacy.numbered.model import (
    Ancestor,
    ArrayMetadata,
    AttributesRef,
    FillValue,
    NamedConfiguration,
    OldManifestFile,
    OldManifestRef,
    OldNode,
    OldSnapshot,
    node_number,
)
from icefloe.legacy.numbered.msgpack_ids import read_node_id, read_object_id, text_id
from icefloe.legacy.numbered.zarr_values import checked_data_type, checked_fill_value

_U32 = 2**32 - 1
_KEY_ENCODINGS = ("Slash", "Dot", "Default")


def decode_snapshot(data: bytes | memoryview, name: str) -> OldSnapshot:
    """Decode a snapshot. `name` is the name of the file in errors."""
    checked = Checked(name)
    items = checked.items(unpack(data, name), "the snapshot", 7, 8, 9, 11)
    if len(items) == 8:
        return _decode_last(items, checked)
    manifests, attributes = ((), ()) if len(items) == 7 else (items[-9], items[-8])
    total, short, history, metadata, started, properties, nodes = items[-7:]
    itself = _ancestor(metadata, checked)
    checked.whole(short, "short_term_parents", _U32)
    return OldSnapshot(
        itself.id,
        itself.written_at,
        itself.message,
        _nodes(nodes, checked),
        plain(pairs(properties, checked, "properties"), checked, "properties"),
        tuple(_ancestor(each, checked) for each in checked.items(history, "short_term_history")),
        checked.whole(total, "total_parents", _U32),
        checked.instant(started, "started_at"),
        None,
        _manifest_files(manifests, checked),
        _attribute_files(attributes, checked),
    )


def _decode_last(items: Any, checked: Checked) -> OldSnapshot:
    identity, parent, flushed, message, metadata, manifests, attributes, nodes = items
    return OldSnapshot(
        read_object_id(identity, checked, "snapshot id"),
        checked.instant(flushed, "flushed_at"),
        checked.text(message, "message"),
        _nodes(nodes, checked),
        plain(pairs(metadata, checked, "metadata"), checked, "metadata"),
        parent_id=None if parent is None else read_object_id(parent, checked, "parent_id"),
        manifest_files=_manifest_files(manifests, checked),
        attribute_files=_attribute_files(attributes, checked),
    )


def _ancestor(value: Any, checked: Checked) -> Ancestor:
    identity, written_at, message = checked.items(value, "the metadata of a snapshot", 3)
    return Ancestor(
        read_object_id(identity, checked, "snapshot id"),
        checked.instant(written_at, "written_at"),
        checked.text(message, "message"),
    )


def _manifest_files(value: Any, checked: Checked) -> tuple[OldManifestFile, ...]:
    """[id, version] in alpha.1 to .8, then [id, version, size], [.., rows], [id, size, rows]."""
    files = []
    for entry in checked.items(value, "manifest_files"):
        items = checked.items(entry, "a manifest file", 2, 3, 4)
        numbers = [checked.whole(each, "a number of a manifest file") for each in items[1:]]
        size, rows = 0, 0
        if len(items) == 4:
            _, size, rows = numbers
        elif len(items) == 3:
            # A version is 0 or 1, and no file is that small. The other form ends with rows.
            size, rows = (numbers[1], 0) if numbers[0] <= 1 else (numbers[0], numbers[1])
        raw = read_object_id(items[0], checked, "manifest id")
        files.append(OldManifestFile(raw, size, rows))
    return tuple(files)


def _attribute_files(value: Any, checked: Checked) -> tuple[bytes, ...]:
    return tuple(
        read_object_id(checked.items(entry, "an attribute file", 1, 2)[0], checked, "attributes id")
        for entry in checked.items(value, "attribute_files")
    )


def _nodes(value: Any, checked: Checked) -> list[OldNode]:
    nodes = []
    for path, node in pairs(value, checked, "nodes"):
        found = _node(node, checked)
        if path != found.path:
            raise checked.fail(f"the node under {path!r:.80} says its path is {found.path!r:.80}")
        nodes.append(found)
    return nodes


def _node(value: Any, checked: Checked) -> OldNode:
    identity, path, attributes, data = checked.items(value, "a node", 4)
    text = checked.text(path, "a node path")
    where = f"of node {text!r:.80}"
    kind, content = variant(data, checked, f"node_data {where}")
    node = read_node_id(identity, checked)
    if kind == "Group":
        return OldNode(node, text, _attributes(attributes, checked, where))
    if kind != "Array":
        raise checked.unexpected(f"node_data {where}", kind, "Group or Array")
    metadata, manifests = checked.items(content, f"the array {where}", 2)
    found = _array(metadata, checked, where)
    refs = tuple(
        _manifest_ref(each, len(found.shape), checked)
        for each in checked.items(manifests, f"the manifests {where}")
    )
    return OldNode(node, text, _attributes(attributes, checked, where), found, refs)


def _attributes(value: Any, checked: Checked, where: str) -> Any:
    if value is None:
        return None
    what = f"user_attributes {where}"
    kind, content = variant(value, checked, what)
    if kind == "Inline":
        return plain(pairs(content, checked, what), checked, what)
    if kind != "Ref":
        raise checked.unexpected(what, kind, "Inline or Ref")
    items = checked.items(content, what, 2, 3)
    raw = read_object_id(items[0], checked, "attributes id")
    return AttributesRef(raw, checked.whole(items[1], "location", _U32))


def _manifest_ref(value: Any, ndim: int, checked: Checked) -> OldManifestRef:
    """[id, flags, extents] in document 000, then [id, extents]; extents are a box from alpha.15."""
    items = checked.items(value, "a manifest reference", 2, 3)
    extents = checked.items(items[-1], "the extents of a manifest")
    raw = read_object_id(items[0], checked, "manifest id")
    if not extents:
        return OldManifestRef(raw)
    start, stop = checked.items(extents, "the extents of a manifest", 2)
    box = tuple(
        (checked.whole(first, "an extent", _U32), checked.whole(last, "an extent", _U32))
        for first, last in zip(
            checked.items(start, "the start of an extent", ndim),
            checked.items(stop, "the end of an extent", ndim),
            strict=True,
        )
    )
    return OldManifestRef(raw, box)


def _array(value: Any, checked: Checked, where: str) -> ArrayMetadata:
    shape, data_type, chunk_shape, encoding, fill, codecs, transformers, names = checked.items(
        value, f"the metadata {where}", 8
    )
    lengths = tuple(checked.whole(each, "shape") for each in checked.items(shape, "shape"))
    chunks = checked.items(chunk_shape, "chunk_shape", len(lengths))
    if encoding not in _KEY_ENCODINGS:
        raise checked.unexpected(f"chunk_key_encoding {where}", encoding, "Slash, Dot or Default")
    found_type = checked_data_type(
        data_type if isinstance(data_type, str) else plain(data_type, checked, "data type"), checked
    )
    kind, content = variant(fill, checked, f"fill_value {where}")
    return ArrayMetadata(
        lengths,
        found_type,
        tuple(checked.whole(each, "chunk_shape") for each in chunks),
        encoding,
        checked_fill_value(kind, content, found_type, checked),
        tuple(_named(each, checked) for each in checked.items(codecs, f"codecs {where}")),
        None
        if transformers is None
        else tuple(_named(each, checked) for each in checked.items(transformers, "transformers")),
        None if names is None else _names(names, len(lengths), checked),
    )


def _names(value: Any, ndim: int, checked: Checked) -> tuple[str | None, ...]:
    names = checked.items(value, "dimension_names", ndim)
    return tuple(None if each is None else checked.text(each, "a name") for each in names)


def _named(value: Any, checked: Checked) -> NamedConfiguration:
    name, configuration = checked.items(value, "a codec", 2)
    if configuration is not None:
        configuration = plain(pairs(configuration, checked, "a configuration"), checked, "a codec")
    return NamedConfiguration(checked.text(name, "the name of a codec"), configuration)


# -- writing, in the form of document 000


def encode_snapshot(snapshot: OldSnapshot) -> bytes:
    """A snapshot of seven items."""
    history = [_packed_ancestor(each) for each in snapshot.history]
    started = snapshot.written_at if snapshot.started_at is None else snapshot.started_at
    nodes = [(pack(node.path), _packed_node(node)) for node in snapshot.nodes]
    itself = Ancestor(snapshot.id, snapshot.written_at, snapshot.message)
    items = [
        pack(snapshot.total_parents),
        pack(len(history)),
        pack_array(history, len(history)),
        _packed_ancestor(itself),
        pack(instant_text(started)),
        pack(dict(snapshot.properties)),
        pack_map(nodes, len(nodes)),
    ]
    return pack_array(items, len(items))


def _packed_ancestor(ancestor: Ancestor) -> bytes:
    return pack([text_id(ancestor.id), instant_text(ancestor.written_at), ancestor.message])


def _packed_node(node: OldNode) -> bytes:
    number = node_number(node.id)
    assert number is not None, f"node {node.id} is not numbered"
    data = pack("Group")
    if node.metadata is not None:
        refs = [[text_id(ref.object_id), [], _box(ref)] for ref in node.manifests]
        array = pack_array([_packed_array(node.metadata), pack(refs)], 2)
        data = pack_map([(pack("Array"), array)], 1)
    return pack_array([pack(number), pack(node.path), _packed_attributes(node), data], 4)


def _box(ref: OldManifestRef) -> list[list[int]]:
    """The first chunk index and the last plus one, as in releases from alpha.15 on."""
    if ref.extents is None:
        return []
    return [[first for first, _ in ref.extents], [last for _, last in ref.extents]]


def _packed_attributes(node: OldNode) -> bytes:
    if node.attributes is None:
        return pack(None)
    if isinstance(node.attributes, AttributesRef):
        ref = node.attributes
        return pack({"Ref": [text_id(ref.object_id), ref.location, []]})
    return pack({"Inline": dict(node.attributes)})


def _packed_array(metadata: ArrayMetadata) -> bytes:
    data_type = metadata.data_type
    transformers = metadata.storage_transformers
    names = metadata.dimension_names
    items = [
        pack(list(metadata.shape)),
        pack(data_type if isinstance(data_type, str) else dict(data_type)),
        pack(list(metadata.chunk_shape)),
        pack(metadata.chunk_key_encoding),
        pack_map([(pack(metadata.fill_value.kind), _packed_fill(metadata.fill_value))], 1),
        pack([list(codec) for codec in metadata.codecs]),
        pack(None if transformers is None else [list(each) for each in transformers]),
        pack(None if names is None else list(names)),
    ]
    return pack_array(items, len(items))


def _packed_fill(fill: FillValue) -> bytes:
    if fill.kind in ("Float16", "Float32"):
        return pack_float32(fill.value)
    if fill.kind == "Complex64":
        return pack_array([pack_float32(part) for part in fill.value], 2)
    if fill.kind in ("RawBits", "Bytes"):
        return pack(list(fill.value))
    return pack(fill.value)
