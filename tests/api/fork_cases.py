"""Edits that two sessions make at the same time, to be merged; and where we refuse and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.api.outcomes import put, remove

Edit = Callable[[Any], Any]


def array(length: int, **members: Any) -> bytes:
    grid = {"name": "regular", "configuration": {"chunk_shape": [2]}}
    document = {"node_type": "array", "zarr_format": 3, "shape": [length], "chunk_grid": grid}
    return json.dumps({**document, **members}).encode()


def group(**attributes: Any) -> bytes:
    return json.dumps({"node_type": "group", "attributes": attributes}).encode()


def _both(*edits: Edit) -> Edit:
    return lambda store: [edit(store) for edit in edits]


EDITS: dict[str, Edit] = {
    "nothing": lambda _store: None,
    "new group n": lambda store: put(store, "n/zarr.json", group()),
    "new array n": lambda store: put(store, "n/zarr.json", array(4)),
    "new array n with a chunk": _both(
        lambda store: put(store, "n/zarr.json", array(4)),
        lambda store: put(store, "n/c/0", b"n" * 8),
    ),
    "new group n/k": lambda store: put(store, "n/k/zarr.json", group()),
    "a is one": lambda store: put(store, "a/zarr.json", array(8, attributes={"v": 1})),
    "a is two": lambda store: put(store, "a/zarr.json", array(8, attributes={"v": 2})),
    "a is short": lambda store: put(store, "a/zarr.json", array(2)),
    "g is one": lambda store: put(store, "g/zarr.json", group(v=1)),
    "g is two": lambda store: put(store, "g/zarr.json", group(v=2)),
    "x to a 0": lambda store: put(store, "a/c/0", b"x" * 8),
    "y to a 0": lambda store: put(store, "a/c/0", b"y" * 8),
    "z to a 3": lambda store: put(store, "a/c/3", b"z" * 8),
    "no a 0": lambda store: remove(store, "a/c/0"),
    "delete a": lambda store: remove(store, "a/zarr.json"),
    "delete g": lambda store: remove(store, "g/zarr.json"),
    "another a": _both(
        lambda store: remove(store, "a/zarr.json"),
        lambda store: put(store, "a/zarr.json", array(6)),
    ),
    "new group g/q": lambda store: put(store, "g/q/zarr.json", group()),
    "w to g/x 0": lambda store: put(store, "g/x/c/0", b"w" * 8),
    "g/x is one": lambda store: put(store, "g/x/zarr.json", array(8, attributes={"v": 1})),
    "new n and gone": _both(
        lambda store: put(store, "n/zarr.json", group()),
        lambda store: remove(store, "n/zarr.json"),
    ),
}

# Pairs that official merges and we refuse, in either order, with the reason.
REFUSED: dict[frozenset[str], str] = {
    frozenset(pair): reason
    for reason, pairs in {
        "two nodes at one path, of which one is lost": [
            ("new group n", "new array n"),
            ("new group n", "new array n with a chunk"),
        ],
        "a group inside an array": [
            ("new group n/k", "new array n"),
            ("new group n/k", "new array n with a chunk"),
        ],
        "a chunk outside the array is lost": [("a is short", "z to a 3")],
        "a node without a group above it": [("delete g", "new group g/q")],
    }.items()
    for pair in pairs
}

# Edits of a session before it forks, and of the fork: official loses the second or refuses it.
IN_TURN: list[tuple[str, str]] = [
    ("new array n", "new array n"),
    ("a is one", "a is two"),
    ("a is one", "delete a"),
    ("a is one", "another a"),
    ("another a", "delete a"),
    ("another a", "another a"),
    ("another a", "a is one"),
    ("another a", "x to a 0"),
    ("g is one", "g is two"),
    ("g is one", "delete g"),
    ("new group g/q", "delete g"),
    ("x to a 0", "y to a 0"),
    ("x to a 0", "no a 0"),
    ("no a 0", "x to a 0"),
    ("a is one", "x to a 0"),
    ("new array n with a chunk", "z to a 3"),
]
