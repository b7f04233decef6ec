"""Columns of node paths found in files: checked all at once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.format.flat_read import FlatBuffer


def check_paths(buffer: FlatBuffer, paths: pa.Array, what: str) -> None:
    """Refuse a column with a path that is not absolute.

    Paths that are not canonical, such as `/q/` and `/g//x`, are in files that official clients
    wrote. Whoever reads them can move or delete the node; `paths.validate` refuses new ones.
    """
    odd = pc.invert(pc.starts_with(paths, "/"))
    if pc.any(odd).as_py():
        buffer.fail(f"{what} {paths.filter(odd)[0].as_py()!r} is not absolute")
