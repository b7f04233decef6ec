"""Workers write into forks of a session, also into arrays that the session has just made."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.legacy.state_file.tables import Profile
from tests.legacy.state_file.datasets import create


@pytest.mark.parametrize("profile", Profile)
def test_forks_write_into_new_arrays(profile: Profile) -> None:
    repo = create(icefloe.in_memory_storage(), profile)
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    session.commit("root")
    session = repo.writable_session("main")
    top: Any = zarr.open_group(session.store, mode="r+")
    for name in ("a", "b"):
        top.create_array(name, shape=(9,), chunks=(3,), dtype="i4")[:3] = 1
    forks = [pickle.loads(pickle.dumps(session.fork())) for _ in range(2)]
    for at, fork in enumerate(forks):
        group: Any = zarr.open_group(fork.store, mode="r+")
        assert group["a"][:].tolist() == [1] * 3 + [0] * 6
        group["a"][3 + 3 * at : 6 + 3 * at] = at + 2
        group.create_array(f"of-fork-{at}", shape=(2,), chunks=(2,), dtype="i4")[:] = at
        inner = pickle.loads(pickle.dumps(fork.fork()))
        zarr.open_group(inner.store, mode="r+")[f"of-fork-{at}"][0] = 9  # type: ignore[index]
        fork.merge(inner)
    other = repo.writable_session("main")
    zarr.create_group(other.store, path="somebody")
    other.commit("others take numbers too")
    session.merge(*forks)
    session.commit("all", rebase_with=icefloe.ConflictDetector())
    found: Any = zarr.open_group(
        icefloe.Repository.open(repo.storage).readonly_session("main").store, mode="r"
    )
    assert found["a"][:].tolist() == [1] * 3 + [2] * 3 + [3] * 3
    assert found["b"][:].tolist() == [1] * 3 + [0] * 6
    assert found["of-fork-0"][:].tolist() == [9, 0]
    assert found["of-fork-1"][:].tolist() == [9, 1]
    assert "somebody" in found
