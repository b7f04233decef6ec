"""Columns of node paths found in files: checked all at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from icefloe.format.flatbuffer.read import FlatBuffer


def check_paths(buffer: FlatBuffer, paths: Sequence[str], what: str) -> None:
    """Refuse a column with a path that is not absolute.

    Paths that are not canonical, such as `/q/` and `/g//x`, are in files that official clients
    wrote. Whoever reads them can move or delete the node; `paths.validate` refuses new ones.
    """
    if not all(map(str.startswith, paths, repeat("/"))):
        wrong = next(path for path in paths if not path.startswith("/"))
        buffer.fail(f"{what} {wrong!r} is not absolute")
