"""The log of several consecutive commits, which an amended commit needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from icefloe.format.columns.chunk_index import Index, sort_rows
from icefloe.format.transaction_log import NODE_LISTS, Move, TransactionLog
from icefloe.ids import NodeId


def union_of_logs(earlier: TransactionLog, later: TransactionLog) -> TransactionLog:
    """The changes of both, under the id of the later one."""
    chunks: dict[NodeId, Index] = dict(earlier.updated_chunks)
    for node_id, index in later.updated_chunks.items():
        if node_id in chunks and chunks[node_id].shape[1] == index.shape[1]:
            joined = np.concatenate([chunks[node_id], index])
            index = joined[sort_rows(joined)]  # noqa: PLW2901
        chunks[node_id] = index
    lists = {name: getattr(earlier, name) | getattr(later, name) for name in NODE_LISTS}
    moves = _composed_moves(earlier.moved_nodes or (), later.moved_nodes or ())
    return replace(later, **lists, updated_chunks=chunks, moved_nodes=moves)


def _composed_moves(earlier: tuple[Move, ...], later: tuple[Move, ...]) -> tuple[Move, ...]:
    """Combine moves: A to B and then B to C is A to C. A node that came back did not move."""
    net = {move.node_id: move for move in earlier}
    for move in later:
        first = net.get(move.node_id)
        net[move.node_id] = move if first is None else move._replace(source=first.source)
    return tuple(move for move in net.values() if move.source != move.destination)
