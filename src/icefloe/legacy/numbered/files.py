"""Metadata files in all encodings, which are detected from the first bytes of a file.

MessagePack is read in every form from document 000 to 0.1.3. Both encodings are written in the form
of document 000.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.chunk_index import Index, sort_rows
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.envelope import (
    MAGIC,
    FileType,
    decode_any_envelope,
    encode_envelope,
    encode_header,
)
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.legacy.checked import dump, instant_text
from icefloe.legacy.numbered.encodings import (
    U32,
    JsonReader,
    JsonWriter,
    MsgpackReader,
    MsgpackWriter,
    Pairs,
)
from icefloe.legacy.numbered.model import (
    Ancestor,
    ArrayMetadata,
    AttributesRef,
    DecodedManifest,
    NamedConfiguration,
    OldManifestFile,
    OldManifestRef,
    OldNode,
    OldSnapshot,
    RefLists,
    RefRows,
)
from icefloe.legacy.numbered.names import IdMap
from icefloe.legacy.numbered.zarr_documents import checked_data_type, checked_fill_value
from icefloe.legacy.state_file.state import node_number

SPEC_VERSION = 1
"""The file types of document 004, byte 36."""

_ANCESTOR = ("id", "written_at", "message")
_SNAPSHOT = (
    "total_parents",
    "short_term_parents",
    "short_term_history",
    "metadata",
    "started_at",
    "properties",
    "nodes",
)
_NODE = ("id", "path", "user_attributes", "node_data")
_ARRAY = (
    "shape",
    "data_type",
    "chunk_shape",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "storage_transformers",
    "dimension_names",
)
_KEY_ENCODINGS = ("Slash", "Dot", "Default")


class Form(StrEnum):
    """The encoding of the metadata files of a repository. Document 000 does not define it."""

    JSON = "json"
    """JSON that is valid against the schemas of document 000."""
    MSGPACK = "msgpack"
    """MessagePack without a header, as early programs wrote it."""
    BINARY = "binary"
    """MessagePack, compressed with zstd, after the header of document 004."""
    UNCOMPRESSED = "binary-uncompressed"
    """The same with the compression byte 0."""

    @property
    def has_header(self) -> bool:
        return self in (Form.BINARY, Form.UNCOMPRESSED)

    def reader(self, name: str) -> JsonReader:
        return JsonReader(name) if self is Form.JSON else MsgpackReader(name)

    def writer(self) -> JsonWriter:
        return JsonWriter() if self is Form.JSON else MsgpackWriter()


def form_of(data: bytes | memoryview) -> Form:
    """The encoding of a file, from its first bytes."""
    start = bytes(data[: len(MAGIC)])
    if start == MAGIC:
        return Form.UNCOMPRESSED if bytes(data[38:39]) == b"\0" else Form.BINARY
    return Form.JSON if start.lstrip()[:1] == b"{" else Form.MSGPACK


def open_file(
    data: bytes | memoryview, file_type: FileType, name: str
) -> tuple[Form, bytes | memoryview]:
    """The encoding of a file, and its content without the header, if it has one.

    Raises:
        FormatError: it has another type, is damaged, or is of a later generation.
    """
    form = form_of(data)
    if not form.has_header:
        return form, data
    _, payload, size = decode_any_envelope(data, file_type, name)
    if payload[4:8].tobytes() == b"Ichk":
        raise FormatError(
            f"{name}: the payload is a flatbuffer, as files of spec versions 1 and 2 hold it, "
            "expected MessagePack",
            ErrorKind.INVALID_FILE_FORMAT,
        )
    return form, memoryview(payload)[:size]


def _opened(data: bytes | memoryview, file_type: FileType, name: str) -> tuple[JsonReader, Any]:
    form, body = open_file(data, file_type, name)
    reader = form.reader(name)
    return reader, reader.load(body)


def _enclosed(data: bytes, file_type: FileType, form: Form, level: int) -> bytes:
    if form is Form.BINARY:
        return encode_envelope([data], SPEC_VERSION, file_type, level)
    if form is Form.UNCOMPRESSED:
        return encode_header(SPEC_VERSION, file_type, is_compressed=False) + data
    return data


# -- branch and tag files, which are JSON in every generation


def decode_ref(data: bytes | memoryview, name: str) -> bytes:
    """The id of the snapshot that a branch or tag file points at."""
    reader = JsonReader(name)
    (snapshot,) = reader.record(reader.load(data), "the ref", ["snapshot"])
    return reader.object_id(snapshot, "snapshot")


def encode_ref(snapshot_id: bytes, timestamp: int, properties: Mapping[str, Any] | None) -> bytes:
    """A branch or tag file of document 000."""
    return dump(
        {
            "snapshot": list(snapshot_id),
            "timestamp": instant_text(timestamp),
            "properties": dict(properties or {}),
        }
    )


# -- attributes files
#
# No release ever wrote one, and documents 000 and 004 do not define their content. The location of
# a reference is taken as a position in their list.


def decode_attributes(data: bytes | memoryview, name: str) -> list[Mapping[str, Any]]:
    """The attribute sets of a file, by location."""
    reader, value = _opened(data, FileType.ATTRIBUTES, name)
    (sets,) = reader.record(value, "the attributes file", ["attributes"])
    return [reader.table(each, "a set of attributes") for each in reader.items(sets, "attributes")]


def encode_attributes(sets: Sequence[Mapping[str, Any]], form: Form, level: int) -> bytes:
    """A file with these sets of attributes. The location of a set is its position."""
    write = form.writer()
    value = write.record(attributes=write.value([dict(each) for each in sets]))
    return _enclosed(write.file(value), FileType.ATTRIBUTES, form, level)


def attributes_json(attributes: Mapping[str, Any]) -> bytes:
    """A set of attributes as canonical JSON, to measure its size and to find equal sets."""
    return dump(attributes)


# -- snapshots
#
# | items | generation |
# |---|---|
# | 7 | the weeks of document 000, and JSON |
# | 11 | alpha.1 to alpha.8: version, flags, manifest files and attribute files come first |
# | 9 | alpha.10 to alpha.15: without version and flags |
# | 8 | 0.1.0 to 0.1.3: the parent's id instead of a history |


def decode_snapshot(data: bytes | memoryview, name: str) -> OldSnapshot:
    """Decode a snapshot in any encoding. `name` is the name of the file in errors."""
    reader, value = _opened(data, FileType.SNAPSHOT, name)
    items = reader.record(value, "the snapshot", _SNAPSHOT, 7, 8, 9, 11)
    if len(items) == 8:
        return _decode_last(reader, items)
    manifests, attributes = ((), ()) if len(items) == 7 else (items[-9], items[-8])
    total, short, history, metadata, started, properties, nodes = items[-7:]
    itself = _ancestor(reader, metadata)
    reader.whole(0 if short is None else short, "short_term_parents", U32)
    return OldSnapshot(
        itself.id,
        itself.written_at,
        itself.message,
        _nodes(reader, nodes),
        reader.table(properties, "properties"),
        tuple(_ancestor(reader, each) for each in reader.items(history, "short_term_history")),
        reader.whole(total, "total_parents", U32),
        reader.instant(started, "started_at"),
        None,
        _manifest_files(reader, manifests),
        _attribute_files(reader, attributes),
    )


def _decode_last(reader: JsonReader, items: Sequence[Any]) -> OldSnapshot:
    identity, parent, flushed, message, metadata, manifests, attributes, nodes = items
    return OldSnapshot(
        reader.object_id(identity, "snapshot id"),
        reader.instant(flushed, "flushed_at"),
        reader.text(message, "message"),
        _nodes(reader, nodes),
        reader.table(metadata, "metadata"),
        parent_id=None if parent is None else reader.object_id(parent, "parent_id"),
        manifest_files=_manifest_files(reader, manifests),
        attribute_files=_attribute_files(reader, attributes),
    )


def _ancestor(reader: JsonReader, value: Any) -> Ancestor:
    identity, written_at, message = reader.record(value, "the metadata of a snapshot", _ANCESTOR)
    return Ancestor(
        reader.object_id(identity, "snapshot id"),
        reader.instant(written_at, "written_at"),
        reader.text(message, "message"),
    )


def _manifest_files(reader: JsonReader, value: Any) -> tuple[OldManifestFile, ...]:
    """[id, version] in alpha.1 to .8, then [id, version, size], [.., rows], [id, size, rows]."""
    files = []
    for entry in reader.items(value, "manifest_files"):
        raw, *rest = reader.items(entry, "a manifest file", 2, 3, 4)
        numbers = [reader.whole(each, "a number of a manifest file") for each in rest]
        size, rows = 0, 0
        if len(numbers) == 3:
            _, size, rows = numbers
        elif len(numbers) == 2:
            # A version is 0 or 1, and no file is that small. The other form ends with rows.
            size, rows = (numbers[1], 0) if numbers[0] <= 1 else (numbers[0], numbers[1])
        files.append(OldManifestFile(reader.object_id(raw, "manifest id"), size, rows))
    return tuple(files)


def _attribute_files(reader: JsonReader, value: Any) -> tuple[bytes, ...]:
    return tuple(
        reader.object_id(reader.items(entry, "an attribute file", 1, 2)[0], "attributes id")
        for entry in reader.items(value, "attribute_files")
    )


def _nodes(reader: JsonReader, value: Any) -> list[OldNode]:
    nodes = []
    for path, node in reader.entries(value, "nodes"):
        found = _node(reader, node)
        if path != found.path:
            raise reader.fail(f"the node under {path!r:.80} says its path is {found.path!r:.80}")
        nodes.append(found)
    return nodes


def _node(reader: JsonReader, value: Any) -> OldNode:
    identity, path, attributes, data = reader.record(value, "a node", _NODE)
    where = f"of node {reader.text(path, 'a node path')!r:.80}"
    kind, content = reader.variant(data, f"node_data {where}")
    node = OldNode(reader.node_id(identity), path, _attributes(reader, attributes, where))
    if kind == "Group":
        return node
    if kind != "Array":
        raise reader.unexpected(f"node_data {where}", kind, "Group or Array")
    metadata, manifests = reader.items(content, f"the array {where}", 2)
    found = _array(reader, metadata, where)
    refs = tuple(
        _manifest_ref(reader, each, len(found.shape))
        for each in reader.items(manifests, f"the manifests {where}")
    )
    return replace(node, metadata=found, manifests=refs)


def _attributes(
    reader: JsonReader, value: Any, where: str
) -> Mapping[str, Any] | AttributesRef | None:
    if value is None:
        return None
    what = f"user_attributes {where}"
    kind, content = reader.variant(value, what)
    if kind == "Inline":
        return reader.table(content, what)
    if kind != "Ref":
        raise reader.unexpected(what, kind, "Inline or Ref")
    raw, location = reader.record(content, what, ["object_id", "location", "flags"], 2, 3)[:2]
    return AttributesRef(
        reader.object_id(raw, "attributes id"), reader.whole(location, "location", U32)
    )


def _manifest_ref(reader: JsonReader, value: Any, ndim: int) -> OldManifestRef:
    """[id, flags, extents] in document 000, then [id, extents]; extents are a box from alpha.15."""
    members = ["object_id", "flags", "extents"]
    items = reader.record(value, "a manifest reference", members, 2, 3)
    extents = reader.items(items[-1], "the extents of a manifest")
    raw = reader.object_id(items[0], "manifest id")
    if not extents:
        return OldManifestRef(raw)
    first, last = (
        [reader.whole(at, "an extent", U32) for at in reader.items(each, "an extent", ndim)]
        for each in reader.items(extents, "the extents of a manifest", 2)
    )
    return OldManifestRef(raw, tuple(zip(first, last, strict=True)))


def _array(reader: JsonReader, value: Any, where: str) -> ArrayMetadata:
    shape, data_type, chunk_shape, encoding, fill, codecs, transformers, names = reader.record(
        value, f"the metadata {where}", _ARRAY
    )
    lengths = tuple(reader.whole(each, "shape") for each in reader.items(shape, "shape"))
    chunks = reader.items(chunk_shape, "chunk_shape", len(lengths))
    if encoding not in _KEY_ENCODINGS:
        raise reader.unexpected(f"chunk_key_encoding {where}", encoding, "Slash, Dot or Default")
    found_type = checked_data_type(reader.plain(data_type, "data type"), reader)
    kind, content = reader.variant(fill, f"fill_value {where}")
    if names is not None:
        names = tuple(
            None if each is None else reader.text(each, "a name")
            for each in reader.items(names, "dimension_names", len(lengths))
        )
    return ArrayMetadata(
        lengths,
        found_type,
        tuple(reader.whole(each, "chunk_shape") for each in chunks),
        encoding,
        checked_fill_value(kind, content, found_type, reader),
        _named(reader, codecs, f"codecs {where}"),
        None if transformers is None else _named(reader, transformers, "transformers"),
        names,
    )


def _named(reader: JsonReader, value: Any, what: str) -> tuple[NamedConfiguration, ...]:
    found = []
    for each in reader.items(value, what):
        name, configuration = reader.record(each, "a codec", ["name", "configuration"])
        if configuration is not None:
            configuration = reader.table(configuration, "the configuration of a codec")
        found.append(NamedConfiguration(reader.text(name, "the name of a codec"), configuration))
    return tuple(found)


def encode_snapshot(snapshot: OldSnapshot, form: Form, level: int) -> bytes:
    """A snapshot of seven items."""
    write = form.writer()
    started = snapshot.written_at if snapshot.started_at is None else snapshot.started_at
    itself = Ancestor(snapshot.id, snapshot.written_at, snapshot.message)
    value = write.record(
        total_parents=write.value(snapshot.total_parents),
        short_term_parents=write.value(len(snapshot.history)),
        short_term_history=write.items(_write_ancestor(write, one) for one in snapshot.history),
        metadata=_write_ancestor(write, itself),
        started_at=write.value(instant_text(started)),
        properties=write.value(dict(snapshot.properties)),
        nodes=write.table(
            (write.value(node.path), _write_node(write, node)) for node in snapshot.nodes
        ),
    )
    return _enclosed(write.file(value), FileType.SNAPSHOT, form, level)


def _write_ancestor(write: JsonWriter, ancestor: Ancestor) -> Any:
    return write.record(
        id=write.object_id(ancestor.id),
        written_at=write.value(instant_text(ancestor.written_at)),
        message=write.value(ancestor.message),
    )


def _write_node(write: JsonWriter, node: OldNode) -> Any:
    attributes = write.value(None)
    if isinstance(node.attributes, AttributesRef):
        ref = write.record(
            object_id=write.object_id(node.attributes.object_id),
            location=write.value(node.attributes.location),
            flags=write.value([]),
        )
        attributes = write.variant("Ref", ref)
    elif node.attributes is not None:
        attributes = write.variant("Inline", write.value(dict(node.attributes)))
    data = write.value("Group")
    if node.metadata is not None:
        refs = write.items(
            write.record(
                object_id=write.object_id(ref.object_id),
                flags=write.value([]),
                extents=write.value(_box(ref)),
            )
            for ref in node.manifests
        )
        data = write.variant("Array", write.items([_write_array(write, node.metadata), refs]))
    return write.record(
        id=write.value(_number(node.id)),
        path=write.value(node.path),
        user_attributes=attributes,
        node_data=data,
    )


def _box(ref: OldManifestRef) -> list[list[int]]:
    """The first chunk index and the last plus one, as in releases from alpha.15 on."""
    if ref.extents is None:
        return []
    return [[first for first, _ in ref.extents], [last for _, last in ref.extents]]


def _number(node: NodeId) -> int:
    number = node_number(node)
    assert number is not None, f"node {node} is not numbered"
    return number


def _write_array(write: JsonWriter, metadata: ArrayMetadata) -> Any:
    data_type, transformers = metadata.data_type, metadata.storage_transformers
    return write.record(
        shape=write.value(list(metadata.shape)),
        data_type=write.value(data_type if isinstance(data_type, str) else dict(data_type)),
        chunk_shape=write.value(list(metadata.chunk_shape)),
        chunk_key_encoding=write.value(metadata.chunk_key_encoding),
        fill_value=write.fill_value(metadata.fill_value, data_type),
        codecs=_write_named(write, metadata.codecs),
        storage_transformers=write.value(None)
        if transformers is None
        else _write_named(write, transformers),
        dimension_names=write.value(metadata.dimension_names),
    )


def _write_named(write: JsonWriter, named: Sequence[NamedConfiguration]) -> Any:
    return write.items(
        write.record(name=write.value(name), configuration=write.value(configuration))
        for name, configuration in named
    )


# -- manifests
#
# | items | form | generation |
# |---|---|---|
# | 1 | [chunks by (node, coordinates)] | the weeks of document 000, and JSON |
# | 3 | [0, {}, chunks by (node, coordinates)] | alpha.1 to alpha.8; [1, {}, ...] alpha.10 |
# | 3 | [1, {}, chunks by node, by coordinates] | alpha.11, alpha.12 |
# | 4 | [1, {}, id, chunks by node, by coordinates] | alpha.15 |
# | 2 | [id, chunks by node, by coordinates] | 0.1.0 to 0.1.3 |


def decode_manifest(data: bytes | memoryview, name: str, ids: IdMap) -> DecodedManifest:
    """Decode a manifest in any encoding."""
    reader, value = _opened(data, FileType.MANIFEST, name)
    items = reader.record(value, "the manifest", ["chunks"], 1, 2, 3, 4)
    object_id = reader.object_id(items[-2], "manifest id") if len(items) in (2, 4) else None
    rows: dict[NodeId, RefRows] = {}
    for node, index, payload in reader.chunks(items[-1]):
        found = rows.get(node)
        if found is None:
            found = rows[node] = RefRows()
        _add(found, index, payload, reader)
    arrays = {node: found.columns(reader, ids) for node, found in rows.items()}
    return DecodedManifest(object_id, arrays)


def _add(rows: RefRows, index: Sequence[int], payload: Any, reader: JsonReader) -> None:
    kind, value = reader.variant(payload, "the payload of a chunk")
    if kind == "Ref":
        members = ["id", "offset", "length"]
        raw, offset, length = reader.record(value, "a chunk reference", members)
        # Texts are decoded later, all at once.
        found = raw if isinstance(raw, str) else reader.object_id(raw, "chunk id")
        rows.add(ChunkKind.NATIVE, index, found, offset, length)
    elif kind == "Inline":
        rows.add(ChunkKind.INLINE, index, reader.octets(value, "an inline chunk"))
    elif kind == "Virtual":
        rows.add(ChunkKind.VIRTUAL, index, *_virtual(reader, value))
    else:
        raise reader.unexpected("the payload of a chunk", kind, "Inline, Virtual or Ref")


def _virtual(reader: JsonReader, value: Any) -> tuple[str, int, int, str | None, int]:
    members = ["location", "offset", "length", "checksum"]
    location, offset, length, *more = reader.record(value, "a virtual reference", members, 3, 4)
    if isinstance(location, Pairs):
        kind, location = reader.variant(location, "a virtual location")
        if kind != "Absolute":
            raise reader.unexpected("a virtual location", kind, "Absolute")
    etag, modified = None, 0
    if more and more[0] is not None:
        kind, content = reader.variant(more[0], "a checksum")
        if kind == "LastModified":
            modified = reader.whole(content, "LastModified", U32)
        elif kind == "ETag":
            etag = reader.text(content, "ETag")
        else:
            raise reader.unexpected("a checksum", kind, "LastModified or ETag")
    return reader.text(location, "a virtual location"), offset, length, etag, modified


def encode_manifest(
    arrays: Mapping[NodeId, ChunkRefs], ids: IdMap, form: Form, level: int
) -> bytes:
    """A manifest of document 000. It cannot store ETags and times of virtual chunks."""
    write = form.writer()
    entries: list[tuple[Any, Any]] = []
    for node, refs in sorted(arrays.items()):
        number, columns = _number(node), RefLists.of(refs, ids)
        keys = (write.chunk_key(number, index) for index in columns.index)
        entries.extend(zip(keys, _payloads(write, columns), strict=True))
    value = write.record(chunks=write.table(entries))
    return _enclosed(write.file(value), FileType.MANIFEST, form, level)


def _payloads(write: JsonWriter, columns: RefLists) -> Iterator[Any]:
    for row, kind in enumerate(columns.kind):
        if kind == ChunkKind.INLINE:
            yield write.variant("Inline", write.inline(columns.inline[row] or b""))
            continue
        span = {
            "offset": write.value(columns.offset[row]),
            "length": write.value(columns.length[row]),
        }
        if kind == ChunkKind.VIRTUAL:
            location = write.value(columns.location[row])
            yield write.variant("Virtual", write.record(location=location, **span))
        else:
            chunk_id = write.object_id(columns.chunk_id[row])
            yield write.variant("Ref", write.record(id=chunk_id, **span))


# -- transaction logs, which are never JSON: Icechunk alpha.5 to 0.1.3, and document 004
#
# Eight items, of which the first is a version, to alpha.15; seven since. They are new groups, new
# arrays, deleted groups, deleted arrays, nodes with updated user attributes, nodes with updated
# Zarr metadata, and updated chunks by node.


def decode_log(
    data: bytes | memoryview, name: str, snapshot_id: SnapshotId, arrays: Collection[NodeId]
) -> TransactionLog:
    """Decode a log. `arrays` are the nodes that are arrays, which a log does not record."""
    reader = MsgpackReader(name)
    value = reader.load(open_file(data, FileType.TRANSACTION_LOG, name)[1])
    *lists, chunks = reader.items(value, "the transaction log", 7, 8)[-7:]
    nodes = [_changed_nodes(reader, each) for each in lists]
    updated = nodes[4] | nodes[5]
    updated_chunks: dict[NodeId, Index] = {}
    for raw, rows in reader.entries(chunks, "updated_chunks"):
        node = reader.node_id(raw)
        if node in updated_chunks:
            raise reader.fail(f"updated_chunks has node {node} twice")
        updated_chunks[node] = _index(reader, reader.items(rows, "updated chunks"))
    return TransactionLog(
        snapshot_id,
        new_groups=nodes[0],
        new_arrays=nodes[1],
        deleted_groups=nodes[2],
        deleted_arrays=nodes[3],
        updated_arrays=frozenset(node for node in updated if node in arrays),
        updated_groups=frozenset(node for node in updated if node not in arrays),
        updated_chunks=updated_chunks,
        moved_nodes=None,
    )


def _changed_nodes(reader: JsonReader, value: Any) -> frozenset[NodeId]:
    found = [reader.node_id(each) for each in reader.items(value, "a list of nodes")]
    if len(set(found)) != len(found):
        raise reader.fail("a list of nodes has one twice")
    return frozenset(found)


def _index(reader: JsonReader, rows: Sequence[Any]) -> Index:
    ndim = len(reader.items(rows[0], "a chunk index")) if rows else 0
    flat = [
        reader.whole(at, "a chunk index", U32)
        for row in rows
        for at in reader.items(row, "a chunk index", ndim)
    ]
    index = np.array(flat, np.uint32).reshape(len(rows), ndim)
    return index[sort_rows(index)]


def encode_log(log: TransactionLog, form: Form, level: int) -> bytes | None:
    """A log of eight items; None if the generation cannot store it.

    Document 000 has no logs, and those of document 004 cannot record moves. The changes of such a
    commit are computed by comparing snapshots. Updates are recorded as updated Zarr metadata,
    because user attributes are in the same document.
    """
    if not form.has_header or log.moved_nodes:
        return None
    write = MsgpackWriter()
    updated = log.updated_arrays | log.updated_groups
    lists = (log.new_groups, log.new_arrays, log.deleted_groups, log.deleted_arrays, (), updated)
    chunks = write.table(
        (write.value(node_number(node)), write.value(rows.tolist()))
        for node, rows in log.updated_chunks.items()
    )
    numbers = (write.value([node_number(node) for node in sorted(each)]) for each in lists)
    data = write.items([write.value(1), *numbers, chunks])
    return _enclosed(data, FileType.TRANSACTION_LOG, form, level)
