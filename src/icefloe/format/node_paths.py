"""Columns of node paths found in files: checked all at once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.format.flat_read import FlatBuffer

# Absolute, no empty segment, no "." or ".." segment (re2 has no look-ahead, hence two patterns).
_CANONICAL = r"^/$|^(/[^/]+)+$"
_DOT_SEGMENT = r"/\.{1,2}(/|$)"


def check_paths(buffer: FlatBuffer, paths: pa.Array, what: str) -> None:
    """Refuse a column with a path that is not absolute and canonical."""
    odd = pc.invert(pc.match_substring_regex(paths, _CANONICAL))
    odd = pc.or_(odd, pc.match_substring_regex(paths, _DOT_SEGMENT))
    if pc.any(odd).as_py():
        buffer.fail(f"{what} {paths.filter(odd)[0].as_py()!r} is not absolute and canonical")
