"""Which address has which answer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from icefloe import paths
from icefloe.errors import NotFoundError
from icefloe.ui import pages, pictures
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.query import Answer, Query, as_json
from icefloe.ui.tree import describe_node

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".js": "text/javascript; charset=utf-8",
}
_STATIC = {file.name: file for file in (files(__package__) / "static").iterdir()}
"""The files of the page. No other file is ever opened."""

Route = Callable[[OpenedRepository, Query], Any]


def find_answer(opened: OpenedRepository, path: str, query: Query) -> Answer:
    """The answer to a request. Raises `NotFoundError` for an unknown address."""
    name = "index.html" if path == "/" else path.removeprefix("/static/")
    if name in _STATIC and path in ("/", f"/static/{name}"):
        return Answer(_STATIC[name].read_bytes(), _CONTENT_TYPES[PurePath(name).suffix])
    if path in _CHANGING:
        return as_json(_CHANGING[path](opened, query))
    if path not in _CONSTANT:
        raise NotFoundError("there is nothing at this address")
    found = _CONSTANT[path](opened, query)
    return found if isinstance(found, Answer) else as_json(found, is_constant=True)


def _children(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    tree = opened.tree(query)
    return query.page(tree.children(query.text("path", paths.ROOT)), tree.describe)


def _search(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    return opened.tree(query).search(query.text("q"))


def _node(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    return describe_node(opened.view(query.text("snapshot")).node(query.text("path")))


_CHANGING: dict[str, Route] = {
    "/api/repository": pages.repository_page,
    "/api/refs": pages.refs_page,
    "/api/history": pages.history_page,
    "/api/line": pages.line_page,
    "/api/line-of": pages.find_line,
    "/api/snapshot": pages.snapshot_page,
    "/api/operations": pages.operations_page,
    "/api/totals": pages.total_bytes,
    "/api/exclusive": pages.exclusive_bytes,
}
"""Answers that depend on refs and on other snapshots."""
_CONSTANT: dict[str, Route] = {
    "/api/children": _children,
    "/api/search": _search,
    "/api/node": _node,
    "/api/axes": pictures.describe_axes,
    "/api/scale": pictures.scale_picture,
    "/api/picture": pictures.picture,
    "/api/difference": pictures.difference,
    "/api/values": pictures.values,
    "/api/chunk-map": pages.chunk_map_page,
    "/api/chunk-map.svg": pages.chunk_map_svg,
    "/api/chunk": pages.chunk_page,
    "/api/changes": pages.changes_page,
    "/api/changed-chunks": pages.changed_chunks,
    "/api/changed-steps": pages.changed_steps,
    "/api/sizes": pages.sizes_page,
}
"""Answers about snapshots that are named by their ids."""

ROUTES: tuple[str, ...] = (*_CHANGING, *_CONSTANT)
"""All addresses of data, for tests."""
