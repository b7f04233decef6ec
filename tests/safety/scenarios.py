"""Every operation that changes a repository, in a form that can be run, cut and run again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from icefloe.config import RepositoryConfig
from icefloe.config.repository import ResolvedPacking
from icefloe.format.operations_log import RepoAvailability, RepoStatus
from icefloe.ids import SnapshotId
from icefloe.repo import commit, refs, session, spec2_publish
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionState, Workspace
from icefloe.store import operations
from tests.safety.worlds import NATIVE_CHUNK


async def nothing(_handle: RepoHandle) -> None:
    """Most operations need no preparation."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`prepare` is done before anything goes wrong; `run` may be called again with its result."""

    name: str
    run: Callable[[RepoHandle, Any], Coroutine[Any, Any, Any]]
    prepare: Callable[[RepoHandle], Coroutine[Any, Any, Any]] = nothing
    specs: tuple[int, ...] = (1, 2)
    is_visible: bool = True
    """Whether it changes what can be seen in a repository of version 1."""
    has_config: bool = False
    """Whether the repository has a saved configuration before."""

    def __str__(self) -> str:
        return self.name


def cases(operations_: list[Operation]) -> list[tuple[int, Operation]]:
    """Every operation with every version that has it."""
    return [(spec, operation) for operation in operations_ for spec in operation.specs]


# -- sessions


async def open_main(handle: RepoHandle) -> SessionState:
    return await session.open_writable(handle, "main")


async def edit(handle: RepoHandle, state: SessionState) -> None:
    """Changes of every kind; making them again on the same session changes nothing more."""
    number = (7).to_bytes(8, "little")
    await operations.set_key(Workspace(handle, state), "inline/c/2", number)
    await operations.set_key(Workspace(handle, state), "native/c/1", number * NATIVE_CHUNK)
    await operations.delete(Workspace(handle, state), "native/c/3")
    await operations.delete(Workspace(handle, state), "doomed/zarr.json")
    document = b'{"zarr_format":3,"node_type":"group","attributes":{"title":"edited"}}'
    await operations.set_key(Workspace(handle, state), "zarr.json", document)
    await operations.set_key(Workspace(handle, state), "fresh/zarr.json", document)


async def _commit(handle: RepoHandle, state: SessionState) -> SnapshotId:
    await edit(handle, state)
    return await commit.commit(Workspace(handle, state), "edited", {"by": "us"})


async def _amend(handle: RepoHandle, state: SessionState) -> SnapshotId:
    await edit(handle, state)
    return await commit.amend(Workspace(handle, state), "edited", {"by": "us"})


async def _flush(handle: RepoHandle, state: SessionState) -> SnapshotId:
    await edit(handle, state)
    return await commit.flush(Workspace(handle, state), "edited", {"by": "us"})


def with_packing(handle: RepoHandle) -> RepoHandle:
    """Two of the chunks of array `native` fill a pack."""
    size = 8 * NATIVE_CHUNK
    packing = ResolvedPacking(target_size_bytes=2 * size, max_chunk_size_bytes=size)
    changed = replace(handle.assets.settings, packing=packing)
    return replace(handle, assets=replace(handle.assets, settings=changed))


async def _commit_packs(handle: RepoHandle, state: SessionState) -> SnapshotId:
    """One pack is stored when it is full, the other one by the commit."""
    handle = with_packing(handle)
    for at in (2, 0):
        chunk = at.to_bytes(8, "big") * NATIVE_CHUNK
        await operations.set_key(Workspace(handle, state), f"native/c/{at}", chunk)
    await edit(handle, state)
    return await commit.commit(Workspace(handle, state), "edited", {"by": "us"})


# -- refs


async def tip_and_first(handle: RepoHandle) -> tuple[SnapshotId, SnapshotId]:
    """Where `main` is, and where it was one commit ago."""
    tip = await handle.format.lookup_branch(handle, "main")
    return tip, (await handle.format.ancestry(handle, tip))[1].id


async def _create_tag(handle: RepoHandle, ids: tuple[SnapshotId, SnapshotId]) -> None:
    await refs.create_tag(handle, "new", ids[0])


async def _create_branch(handle: RepoHandle, ids: tuple[SnapshotId, SnapshotId]) -> None:
    await refs.create_branch(handle, "new", ids[0])


async def _reset_branch(handle: RepoHandle, ids: tuple[SnapshotId, SnapshotId]) -> None:
    await refs.reset_branch(handle, "main", ids[1], ids[0])


async def _delete_tag(handle: RepoHandle, _prepared: Any) -> None:
    await refs.delete_tag(handle, "old")


async def _delete_branch(handle: RepoHandle, _prepared: Any) -> None:
    await refs.delete_branch(handle, "side")


# -- settings


def with_config(handle: RepoHandle, threshold: int) -> RepoHandle:
    config = handle.config.merge(RepositoryConfig(inline_chunk_threshold_bytes=threshold))
    return replace(handle, config=config)


async def _save_config(handle: RepoHandle, _prepared: Any) -> None:
    await handle.format.save_config(with_config(handle, 17))


async def _set_metadata(handle: RepoHandle, _prepared: Any) -> None:
    await spec2_publish.set_metadata(handle, {"owner": "us", "list": [1, 2]})


async def _update_metadata(handle: RepoHandle, _prepared: Any) -> None:
    await spec2_publish.update_metadata(handle, {"owner": "us"})


async def _set_status(handle: RepoHandle, _prepared: Any) -> None:
    status = RepoStatus(RepoAvailability.READ_ONLY, handle.clock.now_us(), "being moved")
    await spec2_publish.set_status(handle, status)


async def _set_flag(handle: RepoHandle, _prepared: Any) -> None:
    await spec2_publish.set_feature_flag(handle, "delete_tag", False)


COMMIT = Operation("commit", _commit, open_main)
AMEND = Operation("amend", _amend, open_main, specs=(2,))
COMMIT_PACKS = Operation("commit packs", _commit_packs, open_main)
FLUSH = Operation("flush", _flush, open_main, is_visible=False)
OPERATIONS = [
    COMMIT,
    COMMIT_PACKS,
    AMEND,
    FLUSH,
    Operation("create tag", _create_tag, tip_and_first),
    Operation("delete tag", _delete_tag),
    Operation("create branch", _create_branch, tip_and_first),
    Operation("reset branch", _reset_branch, tip_and_first),
    Operation("delete branch", _delete_branch),
    Operation("save config", _save_config),
    Operation("save config again", _save_config, has_config=True),
    Operation("set metadata", _set_metadata, specs=(2,)),
    Operation("update metadata", _update_metadata, specs=(2,)),
    Operation("set status", _set_status, specs=(2,)),
    Operation("set feature flag", _set_flag, specs=(2,)),
]
