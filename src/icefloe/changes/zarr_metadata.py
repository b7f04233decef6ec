"""The parts of a zarr.json that a repository uses: node type, grid, dimension names.

The rest of the document is kept byte for byte and not interpreted.
"""

from __future__ import annotations

import json
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError, check_text
from icefloe.format.snapshot.nodes import ArrayData, Dimension

_MAX_CHUNKS = 2**32 - 1


def parse_zarr_json(
    data: bytes, path: str, *, has_rectilinear_grids: bool = True
) -> ArrayData | None:
    """Shape and dimension names from an array's zarr.json; None for a group's.

    Raises:
        InvalidInputError: the document describes neither; kind `bad-metadata`.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _bad(path, f"it holds a JSON {type(document).__name__}, expected an object")
    node_type = document.get("node_type")
    if node_type == "group":
        return None
    if node_type != "array":
        raise _bad(path, f"node_type is {node_type!r}, expected 'array' or 'group'")
    lengths = _lengths(document.get("shape"), path)
    chunks = _num_chunks(document.get("chunk_grid"), lengths, path, has_rectilinear_grids)
    if max(chunks, default=0) > _MAX_CHUNKS:
        raise _bad(
            path,
            f"{max(chunks):,} chunks along one dimension, the format counts to {_MAX_CHUNKS:,}; "
            "use larger chunks",
        )
    shape = tuple(Dimension(*pair) for pair in zip(lengths, chunks, strict=True))
    return ArrayData(shape, _dimension_names(document.get("dimension_names"), len(shape), path))


def _lengths(shape: Any, path: str) -> list[int]:
    if not isinstance(shape, list) or not all(_is_size(length) for length in shape):
        raise _bad(path, f"shape is {shape!r}, expected a list of whole numbers")
    return shape


def _num_chunks(grid: Any, lengths: list[int], path: str, has_rectilinear_grids: bool) -> list[int]:
    name = grid.get("name") if isinstance(grid, dict) else None
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    if not isinstance(configuration, dict):
        raise _bad(path, f"chunk_grid is {grid!r}, expected a name and a configuration")
    if name == "regular":
        sizes = configuration.get("chunk_shape")
        if not isinstance(sizes, list) or not all(_is_size(size) for size in sizes):
            raise _bad(path, f"chunk_shape is {sizes!r}, expected a list of whole numbers")
        _check_rank(sizes, lengths, path)
        return [_equal_chunks(size, length) for size, length in zip(sizes, lengths, strict=True)]
    if name == "rectilinear":
        if not has_rectilinear_grids:
            raise _bad(path, "rectilinear chunk grids need spec version 2; migrate the repository")
        axes = configuration.get("chunk_shapes")
        if not isinstance(axes, list):
            raise _bad(path, f"chunk_shapes is {axes!r}, expected a list for each dimension")
        _check_rank(axes, lengths, path)
        return [
            _rectilinear_chunks(axis, length, path)
            for axis, length in zip(axes, lengths, strict=True)
        ]
    raise _bad(path, f"chunk grid {name!r} is not known, expected 'regular' or 'rectilinear'")


def _equal_chunks(size: int, length: int) -> int:
    return -(-length // size) if size else 0


def _rectilinear_chunks(axis: Any, length: int, path: str) -> int:
    """The number of chunks along one axis, which is a size for all of them, or a list of sizes.

    Items of the list are single sizes, or [size, count] for a run of equal chunks.
    """
    if _is_size(axis):
        return _equal_chunks(axis, length)
    if not isinstance(axis, list):
        raise _bad(path, f"chunk_shapes has {axis!r}, expected a size or a list of sizes")
    total = 0
    for item in axis:
        if _is_size(item):
            total += 1
        elif isinstance(item, list) and len(item) == 2 and all(_is_size(part) for part in item):
            total += item[1]
        else:
            raise _bad(path, f"chunk_shapes has {item!r}, expected a size or [size, count]")
    return total


def _dimension_names(names: Any, ndim: int, path: str) -> tuple[str | None, ...] | None:
    if names is None:
        return None
    is_list = isinstance(names, list)
    if not is_list or not all(name is None or isinstance(name, str) for name in names):
        raise _bad(path, f"dimension_names is {names!r}, expected a list of names or nulls")
    if len(names) != ndim:
        raise _bad(path, f"{len(names)} dimension names for {ndim} dimensions")
    for name in names:
        check_text(name or "", f"zarr.json of {path!r}: dimension name", ErrorKind.BAD_METADATA)
    return tuple(name or None for name in names)


def _check_rank(sizes: list[Any], lengths: list[int], path: str) -> None:
    if len(sizes) != len(lengths):
        raise _bad(path, f"the chunk grid has {len(sizes)} dimensions, the shape {len(lengths)}")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _bad(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"zarr.json of {path!r}: {problem}", ErrorKind.BAD_METADATA)
