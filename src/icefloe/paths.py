"""Node paths: absolute, canonical text such as `/`, `/group` and `/group/array`.

A snapshot orders its nodes by the whole path (`/a` < `/a-b` < `/a/b`), a transaction log
orders moves segment by segment (`/a` < `/a/b` < `/a-b`). Python compares strings by code
point, which is the order of their UTF-8 bytes, so a path is its own key for the first.

Snapshots of official clients also have paths such as `/q/` and `/g//x`. They are taken literally:
the last segment of the first one is empty, and so is the second one of the other.
"""

from __future__ import annotations

from collections.abc import Callable

from icefloe.errors import ErrorKind, InvalidInputError, check_text

ROOT = "/"
INTERNAL_GROUP = ".icefloe"
"""A group inside the one it is about, in which icefloe keeps tables of its own: what was ingested,
which files had problems. Views for people leave it out."""


def validate(path: str, find: Callable[[str], object] = lambda path: None) -> str:
    """Return `path` if it is absolute and canonical; say what is wrong otherwise.

    A path where `find` finds a node is good as it is: official clients store others as well.
    """
    if path == ROOT:
        return path
    if not path.startswith("/"):
        problem = "it must start with '/'"
    elif path.endswith("/"):
        problem = "it must not end with '/'"
    elif any(segment in ("", ".", "..") for segment in path[1:].split("/")):
        problem = "empty, '.' and '..' segments are not allowed"
    else:
        return check_text(path, "node path", ErrorKind.INVALID_PATH)
    if find(path) is not None:
        return path
    raise InvalidInputError(f"node path {path!r}: {problem}", ErrorKind.INVALID_PATH)


def from_key(key: str) -> str:
    """The node path for a Zarr group or array name: `""` is the root, `a/b` is `/a/b`."""
    return validate("/" + key)


def to_key(path: str) -> str:
    """The Zarr name of a node: the path without its leading slash."""
    return path[1:]


def segments(path: str) -> tuple[str, ...]:
    """The names along `path`, root excluded. Also the sort key of moves in a transaction log."""
    return () if path == ROOT else tuple(path[1:].split("/"))


def name(path: str) -> str:
    """The last segment; empty for the root."""
    return path.rpartition("/")[2]


def parent(path: str) -> str | None:
    """The path of the containing group, or None for the root."""
    return None if path == ROOT else path.rpartition("/")[0] or ROOT


def ancestors(path: str) -> list[str]:
    """Every containing group, nearest first, ending with the root."""
    found = []
    above = parent(path)
    while above is not None:
        found.append(above)
        above = parent(above)
    return found


def is_within(path: str, group: str) -> bool:
    """Whether `path` is `group` itself or lies below it."""
    return path == group or group == ROOT or path.startswith(group + "/")


def is_internal(path: str) -> bool:
    """Whether a node is one of icefloe's own tables, or a part of one.

    >>> is_internal("/era5/.icefloe/sources"), is_internal("/era5/t2m")
    (True, False)
    """
    return INTERNAL_GROUP in path and INTERNAL_GROUP in path.split("/")


def rebase(path: str, source: str, destination: str) -> str:
    """`path`, which lies within `source`, as it is called after moving `source` away."""
    below = segments(path)[len(segments(source)) :]
    return ROOT + "/".join((*segments(destination), *below))
