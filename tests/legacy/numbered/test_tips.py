"""The newest file of a branch is found without listing all of its files again and again."""

from __future__ import annotations

import pytest

import icefloe
from icefloe import NumberedRefs, Repository
from icefloe.errors import RefNotFoundError
from icefloe.repo import commit, session
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.wrapping import WrappingDriver
from tests.safety.worlds import driver_of, open_handle

GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{"turn":%d}}'


class Recording(WrappingDriver):
    requests: list[tuple[str, str]]

    async def before(self, method: str, key: str) -> None:
        self.requests.append((method, key))


@pytest.fixture
def storage() -> Storage:
    storage = icefloe.in_memory_storage()
    Repository.create(storage, generation=NumberedRefs("msgpack"))
    return storage


def commit_once(handle: RepoHandle, turn: int) -> str:
    state = run_blocking(session.open_writable(handle, "main"))
    work = Workspace(handle, state)
    run_blocking(operations.set_key(work, "zarr.json", GROUP % turn))
    return run_blocking(commit.commit(work, f"turn {turn}", None)).text


def test_commits_do_not_list_what_is_known(storage: Storage) -> None:
    driver = Recording(driver_of(storage))
    driver.requests = []
    handle = open_handle(storage, driver)
    driver.requests.clear()
    made = [commit_once(handle, turn) for turn in range(30)]
    assert [method for method, _ in driver.requests].count("list") == 1
    assert len(driver.requests) < 12 * 30
    assert run_blocking(handle.format.lookup_branch(handle, "main")).text == made[-1]


@pytest.mark.parametrize("behind", [1, 7, 8, 50])
def test_files_of_others_are_found(storage: Storage, behind: int) -> None:
    ours, theirs = open_handle(storage), open_handle(storage)
    commit_once(ours, -1)
    made = [commit_once(theirs, turn) for turn in range(behind)]
    assert run_blocking(ours.format.lookup_branch(ours, "main")).text == made[-1]
    assert (
        commit_once(ours, behind) == run_blocking(theirs.format.lookup_branch(theirs, "main")).text
    )


def test_a_repository_made_anew_is_seen(storage: Storage) -> None:
    handle = open_handle(storage)
    for turn in range(3):
        commit_once(handle, turn)
    driver = driver_of(storage)
    run_blocking(driver.delete_many([entry.key for entry in run_blocking(driver.list(""))]))
    with pytest.raises(RefNotFoundError):
        run_blocking(handle.format.lookup_branch(handle, "main"))
    new = Repository.create(storage, generation=NumberedRefs("msgpack"))
    assert run_blocking(handle.format.lookup_branch(handle, "main")).text == new.lookup_branch(
        "main"
    )
