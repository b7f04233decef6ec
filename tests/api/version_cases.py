"""Repositories with two branches, and what tests of `cherry_pick` and its likes do to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import ConflictType


def new_repository(spec: int, *, inline_bytes: int = 2) -> icefloe.Repository:
    """Arrays `a` and `g/x` on `main` and, from the same snapshot, on `dev`."""
    arrays, axes = icefloe.ManifestSplitCondition, icefloe.ManifestSplitDimCondition
    splitting = icefloe.ManifestSplittingConfig.from_dict({arrays.AnyArray(): {axes.Axis(0): 4}})
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=inline_bytes,
        manifest=icefloe.ManifestConfig(splitting=splitting),
    )
    found = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=spec)
    session = found.writable_session("main")
    top = zarr.group(session.store)
    for name in ("a", "g/x"):
        top.create_array(name, shape=(8,), chunks=(1,), dtype="int32")[:] = 0
    found.create_branch("dev", session.commit("start"))
    return found


def edit(repo: icefloe.Repository, branch: str, change: Callable[[Any], Any]) -> str:
    session = repo.writable_session(branch)
    change(zarr.open_group(session.store, mode="a"))
    return session.commit(f"edit {branch}", {"by": branch})


def put(repo: icefloe.Repository, branch: str, at: int, value: int, name: str = "a") -> str:
    def change(top: Any) -> None:
        top[name][at] = value

    return edit(repo, branch, change)


def values(repo: icefloe.Repository, branch: str = "main", name: str = "a") -> list[int]:
    store = repo.readonly_session(branch).store
    return [int(each) for each in zarr.open_array(store, path=name, mode="r")[:]]  # type: ignore[union-attr]


def nodes(repo: icefloe.Repository, branch: str = "main") -> set[str]:
    top = zarr.open_group(repo.readonly_session(branch).store, mode="r")
    return {path for path, _ in top.members(None)}


def refused(call: Callable[[], Any]) -> list[tuple[ConflictType, str]]:
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        call()
    return [(conflict.conflict_type, conflict.path) for conflict in caught.value.conflicts]
