"""Small store scripts that run on icefloe and on official icechunk alike.

A script is a list of steps `(method, *arguments)`; its outcome is a list with what each step
gave: bytes, a sorted list of names, a number, or the class and kind of an exception.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

Step = tuple[Any, ...]

GROUP = b'{"node_type":"group"}'


def array(lengths: Sequence[int], chunks: Sequence[int], **members: Any) -> bytes:
    """The zarr.json of an array, with no more members than a repository looks at."""
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}
    document = {"node_type": "array", "shape": list(lengths), "chunk_grid": grid, **members}
    return json.dumps(document).encode()


def rectilinear(shape: Sequence[int], axes: Any) -> bytes:
    grid = {"name": "rectilinear", "configuration": {"chunk_shapes": axes}}
    return array(shape, [], chunk_grid=grid)


PREPARED: tuple[Step, ...] = (
    ("set", "zarr.json", GROUP),
    ("set", "a/zarr.json", array([4, 6], [2, 3])),
    ("set", "a/c/0/0", b"12345678"),  # inline
    ("set", "a/c/1/1", b"x" * 600),  # native
    ("set", "a/c/0/1", b"gone"),
    ("delete", "a/c/0/1"),
    ("set", "g/zarr.json", GROUP),
    ("set", "g/s/zarr.json", array([], [])),
    ("set", "g/s/c", b"scalar"),
    ("set", "g/e/zarr.json", array([0, 5], [2, 3])),  # a dimension of length 0
    ("set", "abc/zarr.json", array([2], [1])),
    ("set", "lone/deep/zarr.json", GROUP),  # no node at lone
)
"""What every script finds: the smallest hierarchy that has one of everything."""


def prepare(library: Any, spec_version: int, *, is_committed: bool) -> Any:
    """A writable session of a new repository in memory that holds `PREPARED`."""
    repository = library.Repository.create(library.in_memory_storage(), spec_version=spec_version)
    session = repository.writable_session("main")
    for step in PREPARED:
        assert run_step(session.store, step) is None
    if is_committed:
        session.commit("prepared")
        session = repository.writable_session("main")
    return session


def run(store: Any, steps: Sequence[Step]) -> list[Any]:
    return [run_step(store, step) for step in steps]


def run_step(store: Any, step: Step) -> Any:
    """The outcome of one step in a form that can be compared."""
    method, *arguments = step
    try:
        result = asyncio.run(_call(store, method, arguments))
    except (KeyboardInterrupt, SystemExit, AssertionError):
        raise
    except BaseException as error:  # noqa: BLE001 - official code panics outside of Exception
        kind = getattr(error, "kind", None)
        return type(error).__name__ if kind is None else f"{type(error).__name__} {kind}"
    return None if result == () else result  # official's nothing, where Rust returns it


async def _call(store: Any, method: str, arguments: list[Any]) -> Any:
    prototype = default_buffer_prototype()
    if method == "get":
        key, *byte_range = arguments
        found = await store.get(key, prototype, _request(*byte_range))
        return None if found is None else found.to_bytes()
    if method == "get_partial_values":
        wanted = [(key, _request(*rest)) for key, *rest in arguments]
        values = await store.get_partial_values(prototype, wanted)
        return [None if value is None else value.to_bytes() for value in values]
    if method in ("set", "set_if_not_exists"):
        key, data = arguments
        await getattr(store, method)(key, prototype.buffer.from_bytes(data))
        return None
    if method == "set_on_read_only":
        key, data = arguments
        await store.with_read_only(read_only=True).set(key, prototype.buffer.from_bytes(data))
        return None
    if method == "delete_on_read_only":
        await store.with_read_only(read_only=True).delete(*arguments)
        return None
    result = getattr(store, method)(*arguments)
    if isinstance(result, Coroutine):
        return await result
    if isinstance(result, AsyncIterator) or hasattr(result, "__aiter__"):
        return sorted([item async for item in result])
    return result


def _request(*byte_range: Any) -> Any:
    """`(start, end)`, `("offset", n)` or `("suffix", n)` as zarr writes it."""
    if not byte_range:
        return None
    first, number = byte_range
    if first == "offset":
        return OffsetByteRequest(number)
    if first == "suffix":
        return SuffixByteRequest(number)
    return RangeByteRequest(first, number)
