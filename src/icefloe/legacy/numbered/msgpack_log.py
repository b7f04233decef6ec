"""Transaction logs as MessagePack: Icechunk alpha.5 to 0.1.3, and document 004.

Eight items, of which the first is a version, to alpha.15; seven since. They are new groups, new
arrays, deleted groups, deleted arrays, nodes with updated user attributes, nodes with updated Zarr
metadata, and updated chunks by node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from icefloe.format.columns.chunk_index import Index, sort_rows
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.messagepack import pack, pack_array, pack_map, pairs, unpack
from icefloe.legacy.numbered.model import node_number
from icefloe.legacy.numbered.msgpack_ids import read_node_id

_U32 = 2**32 - 1


def decode_log(
    data: bytes | memoryview, name: str, snapshot_id: SnapshotId, arrays: Collection[NodeId]
) -> TransactionLog:
    """Decode a log. `arrays` are the nodes that are arrays, which a log does not record."""
    checked = Checked(name)
    items = checked.items(unpack(data, name), "the transaction log", 7, 8)
    *lists, chunks = items[-7:]
    nodes = [_nodes(each, checked) for each in lists]
    updated = nodes[4] | nodes[5]
    updated_chunks: dict[NodeId, Index] = {}
    for raw, rows in pairs(chunks, checked, "updated_chunks"):
        node = read_node_id(raw, checked)
        if node in updated_chunks:
            raise checked.fail(f"updated_chunks has node {node} twice")
        updated_chunks[node] = _index(checked.items(rows, "updated chunks"), checked)
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


def _nodes(value: Any, checked: Checked) -> frozenset[NodeId]:
    found = [read_node_id(each, checked) for each in checked.items(value, "a list of nodes")]
    if len(set(found)) != len(found):
        raise checked.fail("a list of nodes has one twice")
    return frozenset(found)


def _index(rows: Any, checked: Checked) -> Index:
    ndim = len(checked.items(rows[0], "a chunk index")) if rows else 0
    flat = [
        checked.whole(at, "a chunk index", _U32)
        for row in rows
        for at in checked.items(row, "a chunk index", ndim)
    ]
    index = np.array(flat, np.uint32).reshape(len(rows), ndim)
    return index[sort_rows(index)]


def encode_log(log: TransactionLog) -> bytes:
    """A log of eight items, of a repository whose nodes are numbered.

    Updates are recorded as updated Zarr metadata, because user attributes are in the same document.
    """
    updated = sorted(log.updated_arrays | log.updated_groups)
    lists = (log.new_groups, log.new_arrays, log.deleted_groups, log.deleted_arrays, (), updated)
    chunks: Mapping[NodeId, Index] = log.updated_chunks
    entries = [(pack(node_number(node)), pack(rows.tolist())) for node, rows in chunks.items()]
    items = [pack(1), *(pack([node_number(node) for node in sorted(each)]) for each in lists)]
    return pack_array([*items, pack_map(entries, len(entries))], 8)
