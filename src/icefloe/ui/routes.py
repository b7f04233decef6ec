"""Which address has which answer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from icefloe import paths
from icefloe.errors import NotFoundError
from icefloe.ui import changes_pages, chunk_pages, history_pages, pictures, rulers, sizes
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
    "pictures.js": "text/javascript; charset=utf-8",
    "plots.js": "text/javascript; charset=utf-8",
    "chunks.js": "text/javascript; charset=utf-8",
    "compare.js": "text/javascript; charset=utf-8",
    "sizes.js": "text/javascript; charset=utf-8",
    "versions.js": "text/javascript; charset=utf-8",
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


def _line_of(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(history_pages.find_line(opened, query.text("snapshot")))


def _snapshot(opened: OpenedRepository, query: Query) -> Answer:
    found = history_pages.snapshot_page(opened, query.text("snapshot"), has_internal="all" in query)
    return as_json(found)


def _operations(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(history_pages.operations_page(opened, *_window(query)))


def _children(opened: OpenedRepository, query: Query) -> Answer:
    tree = opened.tree(query.text("snapshot"), has_internal="all" in query)
    found = tree.page(query.text("path", paths.ROOT), *_window(query))
    return as_json(found, is_constant=True)


def _search(opened: OpenedRepository, query: Query) -> Answer:
    tree = opened.tree(query.text("snapshot"), has_internal="all" in query)
    found = tree.search(query.text("q"))
    return as_json(found, is_constant=True)


def _node(opened: OpenedRepository, query: Query) -> Answer:
    node = opened.view(query.text("snapshot")).node(query.text("path"))
    return as_json(describe_node(node), is_constant=True)


def _axes(opened: OpenedRepository, query: Query) -> Answer:
    found = rulers.describe_axes(opened, query.text("snapshot"), query.text("path"))
    return as_json(found, is_constant=True)


def _values(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(pictures.values(opened, query), is_constant=True)


def _chunk_map(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(chunk_pages.chunk_map_page(opened, query), is_constant=True)


def _chunk_map_svg(opened: OpenedRepository, query: Query) -> Answer:
    drawn = chunk_pages.chunk_map(opened, query).to_svg()
    return Answer(drawn.encode(), "image/svg+xml", is_constant=True)


def _chunk(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(chunk_pages.chunk_page(opened, query), is_constant=True)


def _changes(opened: OpenedRepository, query: Query) -> Answer:
    both = query.text("from"), query.text("snapshot")
    found = changes_pages.changes_page(opened, *both, *_window(query), has_internal="all" in query)
    return as_json(found, is_constant=True)


def _changed_chunks(opened: OpenedRepository, query: Query) -> Answer:
    both = query.text("from"), query.text("snapshot")
    found = changes_pages.changed_chunks(
        opened, *both, query.text("path"), query.numbers("axes") or ()
    )
    return as_json(found, is_constant=True)


def _changed_steps(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(changes_pages.changed_steps(opened, query), is_constant=True)


def _sizes(opened: OpenedRepository, query: Query) -> Answer:
    tree = opened.tree(query.text("snapshot"), has_internal="all" in query)
    found = sizes.sizes_page(opened, query.text("snapshot"), tree, *_window(query))
    return as_json(found, is_constant=True)


def _totals(opened: OpenedRepository, query: Query) -> Answer:
    found = opened.repo.chunk_storage_stats(progress=lambda progress: None)
    return as_json(
        {
            "native": found.native_bytes,
            "virtual": found.virtual_bytes,
            "inline": found.inlined_bytes,
        }
    )


def _exclusive(opened: OpenedRepository, query: Query) -> Answer:
    return as_json(sizes.exclusive_bytes(opened, query.text("snapshot")))


_ROUTES: dict[str, Route] = {
    "/api/repository": _repository,
    "/api/refs": _refs,
    "/api/history": _history,
    "/api/line": _line,
    "/api/line-of": _line_of,
    "/api/snapshot": _snapshot,
    "/api/operations": _operations,
    "/api/children": _children,
    "/api/search": _search,
    "/api/node": _node,
    "/api/axes": _axes,
    "/api/scale": pictures.scale_picture,
    "/api/picture": pictures.picture,
    "/api/difference": pictures.difference,
    "/api/values": _values,
    "/api/chunk-map": _chunk_map,
    "/api/chunk-map.svg": _chunk_map_svg,
    "/api/chunk": _chunk,
    "/api/changes": _changes,
    "/api/changed-chunks": _changed_chunks,
    "/api/changed-steps": _changed_steps,
    "/api/sizes": _sizes,
    "/api/totals": _totals,
    "/api/exclusive": _exclusive,
}

ROUTES: tuple[str, ...] = tuple(_ROUTES)
"""All addresses of data, for tests."""
