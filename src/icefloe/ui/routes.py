"""Which address has which answer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from icefloe import paths
from icefloe.errors import NotFoundError
from icefloe.ui import history_pages
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.query import Answer, Query, as_json
from icefloe.ui.tree import describe_node

_PAGE = 200
_MOST_ROWS = 1000

_STATIC = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "main.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "lists.js": "text/javascript; charset=utf-8",
    "history.js": "text/javascript; charset=utf-8",
    "data.js": "text/javascript; charset=utf-8",
    "operations.js": "text/javascript; charset=utf-8",
}
"""The files of the page. No other file is ever opened."""

Route = Callable[[OpenedRepository, Query], Answer]


def find_answer(opened: OpenedRepository, path: str, query: Query) -> Answer:
    """The answer to a request. Raises `NotFoundError` for an unknown address."""
    name = "index.html" if path == "/" else path.removeprefix("/static/")
    if name in _STATIC and path in ("/", f"/static/{name}"):
        return Answer((files(__package__) / "static" / name).read_bytes(), _STATIC[name])
    if path not in _ROUTES:
        raise NotFoundError("there is nothing at this address")
    return _ROUTES[path](opened, query)


def _window(query: Query) -> tuple[int, int]:
    return query.number("offset", 0), query.number("limit", _PAGE, 1, _MOST_ROWS)


def _repository(opened: OpenedRepository, query: Query) -> Answer:
    history = opened.history()
    repo = opened.repo
    main = history.branches.get("main") or next(iter(history.branches.values()))
    has_object = opened.handle.family.has_repo_object
    return as_json(
        {
            "name": opened.name,
            "generation": repo.generation.value,
            "spec_version": int(repo.spec_version),
            "status": repo.status.availability.name if has_object else "online",
            "metadata": repo.metadata if has_object else {},
            "version": history.version,
            "snapshots": len(history.rows),
            "branches": len(history.branches),
            "tags": len(history.tags),
            "main": main.text,
        }
    )


def _refs(opened: OpenedRepository, query: Query) -> Answer:
    limit = query.number("limit", _PAGE, 1, _MOST_ROWS)
    return as_json(history_pages.refs_page(opened, query.text("q", ""), limit))


def _history(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(history_pages.history_page(opened, *_window(query)))


def _line(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(history_pages.line_page(opened, query.text("snapshot"), *_window(query)))


def _snapshot(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(history_pages.snapshot_page(opened, query.text("snapshot")))


def _operations(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(history_pages.operations_page(opened, *_window(query)))


def _children(opened: OpenedRepository, query: Query) -> Answer:
    tree = opened.tree(query.text("snapshot"))
    found = tree.page(query.text("path", paths.ROOT), *_window(query))
    return as_json(found, is_constant=True)


def _search(opened: OpenedRepository, query: Query) -> Answer:
    found = opened.tree(query.text("snapshot")).search(query.text("q"))
    return as_json(found, is_constant=True)


def _node(opened: OpenedRepository, query: Query) -> Answer:
    node = opened.view(query.text("snapshot")).node(query.text("path"))
    return as_json(describe_node(node), is_constant=True)


_ROUTES: dict[str, Route] = {
    "/api/repository": _repository,
    "/api/refs": _refs,
    "/api/history": _history,
    "/api/line": _line,
    "/api/snapshot": _snapshot,
    "/api/operations": _operations,
    "/api/children": _children,
    "/api/search": _search,
    "/api/node": _node,
}

ROUTES: tuple[str, ...] = tuple(_ROUTES)
"""All addresses of data, for tests."""
