"""Tables of nodes: replacing some nodes gives the table that all of them together make."""

from __future__ import annotations

import random

import pytest

from icefloe.format.nodes import ArrayData, Dimension, Node, NodeTable
from icefloe.ids import NodeId


def node(chooser: random.Random, path: str) -> Node:
    """A group, or an array of one or two dimensions."""
    array = ArrayData((Dimension(4, 2, 2),) * chooser.randrange(1, 3), None, ())
    node_id = NodeId(chooser.randbytes(NodeId.size))
    return Node(node_id, path, path.encode(), array if chooser.random() < 0.7 else None)


@pytest.mark.parametrize("seed", range(30))
def test_replacing_nodes_gives_the_table_of_all_that_are_left(seed: int) -> None:
    chooser = random.Random(seed)
    paths = [f"/{number}/{name}" for number in range(200) for name in "ab"]
    before = chooser.sample(paths, chooser.choice([1, 40, 100, 300]))
    gone = chooser.sample(before, chooser.choice([0, 1, len(before) // 2, len(before)]))
    came = chooser.sample(paths, chooser.choice([0, 1, 5, 200]))
    nodes = {path: node(chooser, path) for path in before}
    table = NodeTable.from_nodes(nodes.values()).columns
    new = [node(chooser, path) for path in came]
    found = table.replace(table.rows_of([*gone, *came]), new)
    left = [nodes[path] for path in before if path not in {*gone, *came}]
    assert list(found) == sorted([*left, *new], key=lambda one: one.path)
    assert found.columns.equals(NodeTable.from_nodes([*left, *new]).columns)
