"""Snapshot files, from columns to bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.envelope import FileType, encode_envelope
from icefloe.format.flatbuffer.schema import (
    ARRAY_NODE_DATA,
    CHUNK_INDEX_RANGE,
    DIMENSION_NAME,
    DIMENSION_SHAPE,
    DIMENSION_SHAPE_V2,
    GROUP_NODE_DATA,
    MANIFEST_FILE_INFO,
    MANIFEST_FILE_INFO_V2,
    MANIFEST_REF,
    NODE_SNAPSHOT,
    SNAPSHOT,
    TableSpec,
)
from icefloe.format.flatbuffer.write import FlatWriter, Positions, SingleTable
from icefloe.format.metadata.items import encode_metadata, write_item_vector
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import (
    ARRAY,
    GROUP,
    ArrayData,
    Node,
    NodeTable,
    derived_chunk_lengths,
)

_SHAPE_V2 = ("array_length", "num_chunks")
_REF = ("object_id", "extents")


def encode_snapshot(snapshot: Snapshot, *, spec_version: int, level: int = 3) -> bytes:
    """Encode a snapshot. Version 1 keeps the parent in the file, version 2 in the repo object."""
    writer = FlatWriter()
    fields = ["id", "nodes", "flushed_at", "message", "metadata", "manifest_files"]
    fields += ["parent_id"] if snapshot.parent_id is not None else []
    fields += ["manifest_files_v2"] if spec_version > 1 else []
    fields += ["extra"] if snapshot.extra is not None else []
    root = writer.table(SNAPSHOT, fields)
    root.set("id", snapshot.id)
    root.set("flushed_at", snapshot.flushed_at)
    if snapshot.parent_id is not None:
        root.set("parent_id", snapshot.parent_id)
    vector = writer.offsets(len(snapshot.nodes))
    root.point("nodes", vector.position)
    vector.point(_add_nodes(writer, snapshot.nodes, spec_version))
    root.point("message", writer.text(snapshot.message))
    items = encode_metadata(snapshot.metadata, spec_version)
    root.point("metadata", write_item_vector(writer, items))
    _add_manifest_files(writer, root, snapshot.manifest_files, spec_version)
    if snapshot.extra is not None:
        root.point("extra", writer.blob(snapshot.extra))
    return encode_envelope(writer.finish(root), spec_version, FileType.SNAPSHOT, level)


def _add_manifest_files(
    writer: FlatWriter, root: SingleTable, files: ManifestFiles, spec_version: int
) -> None:
    structs = np.zeros(0 if spec_version > 1 else len(files), MANIFEST_FILE_INFO)
    if spec_version == 1 and len(files):
        structs["id"] = np.ascontiguousarray(files.id).view("V12").reshape(-1)
        structs["size_bytes"] = files.size_bytes
        structs["num_chunk_refs"] = files.num_chunk_refs
    root.point("manifest_files", writer.vector(structs, align=8))
    if spec_version == 1:
        return
    vector = writer.offsets(len(files))
    root.point("manifest_files_v2", vector.position)
    extra = np.zeros(len(files), np.bool_)
    if files.extra is not None:
        extra = files.extra.is_valid()
    tables = writer.tables(
        MANIFEST_FILE_INFO_V2,
        len(files),
        {"id": None, "size_bytes": None, "num_chunk_refs": None, "extra": extra},
    )
    vector.point(tables.position)
    tables.set("id", files.id)
    tables.set("size_bytes", files.size_bytes)
    tables.set("num_chunk_refs", files.num_chunk_refs)
    if files.extra is not None:
        tables.point("extra", writer.blobs(files.extra, terminator=0))


def _add_nodes(writer: FlatWriter, nodes: NodeTable, spec_version: int) -> Positions:
    """Place all nodes and what hangs on them; returns the positions of the node tables."""
    if nodes.few and spec_version > 1:
        return [_add_node(writer, node) for node in nodes.few]
    extra = np.zeros(len(nodes), np.bool_)
    if nodes.extra is not None:
        extra = nodes.extra.is_valid()
    required = dict.fromkeys(("id", "path", "user_data", "node_data_type", "node_data"))
    tables = writer.tables(NODE_SNAPSHOT, len(nodes), {**required, "extra": extra})
    tables.set("id", nodes.id)
    tables.set("node_data_type", np.where(nodes.is_array, ARRAY, GROUP))
    tables.point("path", writer.blobs(nodes.path))
    tables.point("user_data", writer.blobs(nodes.user_data, terminator=0))
    if nodes.extra is not None:
        tables.point("extra", writer.blobs(nodes.extra, terminator=0))
    data = np.zeros(len(nodes), np.int64)
    if not nodes.is_array.all():
        # Group data has no fields, so one empty table serves every group.
        data[~nodes.is_array] = writer.table(GROUP_NODE_DATA, []).position
    data[nodes.is_array] = _add_arrays(writer, nodes, spec_version)
    tables.point("node_data", data)
    return tables.position


def _add_node(writer: FlatWriter, node: Node) -> int:
    """Place one node. Up to some dozens this takes a third of the time of columns."""
    fields = ["id", "path", "user_data", "node_data_type", "node_data"]
    table = writer.table(NODE_SNAPSHOT, fields if node.extra is None else [*fields, "extra"])
    table.set("id", node.id)
    table.set("node_data_type", GROUP if node.array is None else ARRAY)
    table.point("path", writer.text(node.path))
    table.point("user_data", writer.blob(node.user_data))
    if node.extra is not None:
        table.point("extra", writer.blob(node.extra))
    if node.array is None:
        table.point("node_data", writer.table(GROUP_NODE_DATA, []).position)
    else:
        table.point("node_data", _add_array(writer, node.array))
    return table.position


def _add_array(writer: FlatWriter, array: ArrayData) -> int:
    names = array.dimension_names
    fields = ["shape", "manifests", "shape_v2"]
    table = writer.table(ARRAY_NODE_DATA, fields if names is None else [*fields, "dimension_names"])
    table.point("shape", writer.structs(b"", 0, align=8))
    position, rows = _add_vector(writer, DIMENSION_SHAPE_V2, [_SHAPE_V2] * len(array.shape))
    table.point("shape_v2", position)
    for row, dimension in zip(rows, array.shape, strict=True):
        _check_num_chunks(dimension.num_chunks)
        row.set("array_length", dimension.array_length)
        row.set("num_chunks", dimension.num_chunks)
    if names is not None:
        named = [() if name is None else ("name",) for name in names]
        position, rows = _add_vector(writer, DIMENSION_NAME, named)
        table.point("dimension_names", position)
        for row, name in zip(rows, names, strict=True):
            if name is not None:
                row.point("name", writer.text(name))
    position, rows = _add_vector(writer, MANIFEST_REF, [_REF] * len(array.manifests))
    table.point("manifests", position)
    for row, ref in zip(rows, array.manifests, strict=True):
        row.set("object_id", ref.id)
        box = struct.pack(f"<{2 * len(ref.extents)}I", *chain.from_iterable(ref.extents))
        row.point("extents", writer.structs(box, len(ref.extents)))
    return table.position


def _add_vector(
    writer: FlatWriter, spec: TableSpec, fields: Sequence[tuple[str, ...]]
) -> tuple[int, list[SingleTable]]:
    """Reserve a vector of tables with these fields: its position, and the tables."""
    vector = writer.offsets(len(fields))
    rows = [writer.table(spec, names) for names in fields]
    vector.point([row.position for row in rows])
    return vector.position, rows


def _check_num_chunks(largest: int) -> None:
    if largest >= 2**32:
        raise FormatError(
            f"an array has {largest:,} chunks along one dimension, "
            f"the format counts to {2**32 - 1:,}; use larger chunks",
            ErrorKind.SERIALIZATION,
        )


def _add_arrays(writer: FlatWriter, nodes: NodeTable, spec_version: int) -> Positions:
    count = len(nodes.num_dimensions)
    fields = {"shape": None, "dimension_names": nodes.has_names, "manifests": None}
    tables = writer.tables(
        ARRAY_NODE_DATA, count, {**fields, "shape_v2": None} if spec_version > 1 else fields
    )
    if spec_version > 1:
        none = np.zeros(count, np.int64)
        shapes = writer.vectors(np.empty(0, DIMENSION_SHAPE), none, align=8)
        tables.point("shape_v2", _add_shapes_v2(writer, nodes))
    else:
        shapes = writer.vectors(_shapes_v1(nodes), nodes.num_dimensions, align=8)
    tables.point("shape", shapes)
    if nodes.has_names.any():
        tables.point("dimension_names", _add_names(writer, nodes))
    tables.point("manifests", _add_manifest_refs(writer, nodes))
    return tables.position


def _shapes_v1(nodes: NodeTable) -> NDArray[Any]:
    """Version 1 stores chunk lengths, from which readers work the numbers of chunks out."""
    structs = np.zeros(len(nodes.array_length), DIMENSION_SHAPE)
    chunk = nodes.chunk_length
    if chunk is None:
        chunk = derived_chunk_lengths(nodes.array_length, nodes.num_chunks)
    structs["array_length"] = nodes.array_length
    structs["chunk_length"] = chunk
    divisor = np.maximum(chunk, np.uint64(1))
    counted = nodes.array_length // divisor + (nodes.array_length % divisor > 0)
    wrong = np.flatnonzero(counted != nodes.num_chunks)
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            f"a dimension of {int(nodes.array_length[row]):,} elements in "
            f"{int(nodes.num_chunks[row]):,} chunks cannot be written with spec version 1, which "
            "knows equal chunks only; use version 2",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    return structs


def _add_shapes_v2(writer: FlatWriter, nodes: NodeTable) -> Positions:
    _check_num_chunks(int(nodes.num_chunks.max(initial=0)))
    vectors = writer.nested_offsets(nodes.num_dimensions)
    tables = writer.tables(
        DIMENSION_SHAPE_V2, len(nodes.num_chunks), {"array_length": None, "num_chunks": None}
    )
    vectors.point(tables.position)
    tables.set("array_length", nodes.array_length)
    tables.set("num_chunks", nodes.num_chunks)
    return vectors.position


def _add_names(writer: FlatWriter, nodes: NodeTable) -> Positions:
    """Vectors of dimension names, one for every array; those without names share nothing."""
    counts = np.where(nodes.has_names, nodes.num_dimensions, 0)
    rows = np.flatnonzero(np.repeat(nodes.has_names, nodes.num_dimensions))
    names = nodes.dimension_name.take(rows)
    vectors = writer.nested_offsets(counts)
    is_named = names.is_valid()
    tables = writer.tables(DIMENSION_NAME, len(names), {"name": is_named})
    vectors.point(tables.position)
    tables.point("name", writer.blobs(names))
    return vectors.position


def _add_manifest_refs(writer: FlatWriter, nodes: NodeTable) -> Positions:
    vectors = writer.nested_offsets(nodes.num_manifests)
    tables = writer.tables(
        MANIFEST_REF, len(nodes.manifest_id), {"object_id": None, "extents": None}
    )
    vectors.point(tables.position)
    tables.set("object_id", nodes.manifest_id)
    counts = np.repeat(nodes.num_dimensions, nodes.num_manifests)
    boxes = np.ascontiguousarray(nodes.extents, "<u4").reshape(-1).view(CHUNK_INDEX_RANGE)
    tables.point("extents", writer.vectors(boxes, counts))
    return vectors.position
