"""The nodes of a snapshot: children of a group by page, nodes by a part of their path, one node."""

from __future__ import annotations

import json
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from icefloe import paths
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.format.nodes import ArrayData, Node, NodeTable

_MOST_FOUND = 500
_ATTRIBUTES = "attributes"


class Tree:
    """Rows of a table of nodes by the path of their parent; all, or those that are not internal."""

    def __init__(self, table: NodeTable, *, has_internal: bool) -> None:
        nodes = self._nodes = table.columns
        self._lowered: list[str] | None = None
        self._children: dict[str, list[int]] = {}
        is_shown = [has_internal or not paths.is_internal(path) for path in nodes.path]
        self._rows = np.flatnonzero(np.array(is_shown, np.bool_))
        for row, path in enumerate(nodes.path):
            if path != paths.ROOT and is_shown[row]:
                self._children.setdefault(_parent(path), []).append(row)
        for rows in self._children.values():  # groups first, as in a file browser
            rows.sort(key=lambda row: (bool(nodes.is_array[row]), nodes.path[row]))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_arrays(self) -> int:
        return int(self._nodes.is_array[self._rows].sum())

    def array_paths(self) -> list[str]:
        """The paths of the arrays, ascending."""
        rows = self._rows[self._nodes.is_array[self._rows]]
        return [self._nodes.path[row] for row in rows.tolist()]

    @property
    def first_array(self) -> str | None:
        """The array that a page shows first: the largest that has a plane, or the largest."""
        nodes = self._nodes
        lengths = iter(nodes.array_length.tolist())
        sizes = [(count > 1, prod(islice(lengths, count))) for count in nodes.num_dimensions]
        size_of = dict(zip(nodes.is_array.nonzero()[0].tolist(), sizes, strict=True))
        shown = [row for row in self._rows.tolist() if row in size_of]
        return nodes.path[max(shown, key=lambda row: (*size_of[row], -row))] if shown else None

    def children(self, parent: str) -> list[int]:
        """The rows of the nodes in a group. A new repository has no root group."""
        rows = self._children.get(parent, [])
        if not rows and parent != paths.ROOT and self._nodes.find(parent) is None:
            raise NodeNotFoundError(f"{parent!r}")
        return rows

    def search(self, part: str) -> dict[str, Any]:
        """Nodes whose path has this part, in upper or lower case."""
        if self._lowered is None:
            self._lowered = [self._nodes.path[row].lower() for row in self._rows]
        wanted = part.lower()
        found = [
            row
            for row, path in zip(self._rows.tolist(), self._lowered, strict=True)
            if wanted in path
        ]
        return {"total": len(found), "rows": [self.describe(row) for row in found[:_MOST_FOUND]]}

    def describe(self, row: int) -> dict[str, Any]:
        """What a list shows of a node."""
        node = self._nodes.node(row)
        shown: dict[str, Any] = {
            "path": node.path,
            "name": paths.name(node.path) or node.path,
            "children": len(self._children.get(node.path, ())),
        }
        if node.array is not None:
            shown["shape"] = [one.array_length for one in node.array.shape]
        return shown


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or paths.ROOT


def describe_node(node: Node) -> dict[str, Any]:
    """Everything a snapshot knows of a node."""
    try:
        document = json.loads(node.user_data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInputError(f"the metadata of {node.path!r} is no JSON object")
    attributes = document.pop(_ATTRIBUTES, {})
    shown: dict[str, Any] = {
        "path": node.path,
        "id": node.id.text,
        "type": "group" if node.array is None else "array",
        "attributes": attributes,
        "document": document,
    }
    if node.array is not None:
        shown |= _describe_array(node.array, document)
    return shown


def _describe_array(array: ArrayData, document: dict[str, Any]) -> dict[str, Any]:
    grid = document.get("chunk_grid")
    configuration = grid.get("configuration", {}) if isinstance(grid, dict) else {}
    names = array.dimension_names or (None,) * len(array.shape)
    return {
        "data_type": document.get("data_type"),
        "fill_value": document.get("fill_value"),
        "codecs": document.get("codecs"),
        "shape": [one.array_length for one in array.shape],
        "chunk_shape": configuration.get("chunk_shape"),
        "num_chunks": [one.num_chunks for one in array.shape],
        "dimension_names": list(names),
        "num_manifests": len(array.manifests),
    }
