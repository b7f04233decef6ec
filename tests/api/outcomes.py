"""What a call gives, in a form that is the same for icefloe and for official icechunk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype

GROUP = b'{"node_type":"group","zarr_format":3}'


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The value a call returns, or the class and kind of what it raises."""
    try:
        return call(*arguments, **named)
    except (KeyboardInterrupt, SystemExit, AssertionError):
        raise
    except BaseException as error:  # noqa: BLE001 - official code panics outside of Exception
        kind = getattr(error, "kind", None)
        return type(error).__name__ if kind is None else f"{type(error).__name__} {kind}"


def is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 20 and " " not in value


def happened(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Like `outcome`; the id of a new snapshot is random and becomes "id"."""
    value = outcome(call, *arguments, **named)
    return "id" if is_id(value) else value


def put(store: Any, key: str, data: bytes = GROUP) -> None:
    asyncio.run(store.set(key, default_buffer_prototype().buffer.from_bytes(data)))


def remove(store: Any, key: str) -> None:
    asyncio.run(store.delete(key))


def keys(store: Any) -> dict[str, bytes]:
    """Every key with its bytes."""

    async def collect() -> dict[str, bytes]:
        found = {}
        async for key in store.list():
            value = await store.get(key, default_buffer_prototype())
            found[key] = b"" if value is None else value.to_bytes()
        return found

    return asyncio.run(collect())


def changes(diff: Any) -> dict[str, Any]:
    """A diff or status without what is empty, in plain values."""
    names = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays")
    found = {name: sorted(getattr(diff, name)) for name in (*names, "updated_groups")}
    found["updated_arrays"] = sorted(diff.updated_arrays)
    found["chunks"] = sorted((p, sorted(map(tuple, c))) for p, c in diff.updated_chunks.items())
    found["moves"] = list(diff.moved_nodes)
    return {name: value for name, value in found.items() if value}


def hierarchy(library: Any, storage: Any, *, spec_version: int = 2) -> Any:
    """A repository with arrays /a, /b, /g/x, /g/h/y and an empty group /e."""
    repository = library.Repository.create(storage, spec_version=spec_version)
    session = repository.writable_session("main")
    top = zarr.open_group(session.store, mode="a")
    for number, path in enumerate(["a", "b", "g/x", "g/h/y"]):
        array = top.create_array(path, shape=(8,), chunks=(2,), dtype="i4", fill_value=-1)
        array[:6] = number
    top.create_group("e")
    session.commit("hierarchy")
    return repository
