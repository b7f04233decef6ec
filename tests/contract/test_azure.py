"""Repositories and virtual chunks on an Azure server."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.store import AzureStore

import icefloe
from icefloe.storage.run import run_blocking
from tests.azure_server import ACCOUNT, CONTAINER, KEY, PROGRAM, AzureServer
from tests.contract.racers import race_in_threads

pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="no Azure server: run `make services`, or put azurite-blob on PATH or name it in "
    "ICEFLOE_AZURITE",
)


def test_one_of_16_threads_wins_each_time(azure: AzureServer) -> None:
    storage = azure.storage()
    run_blocking(storage.driver(blocking=True).put("counter", b"0"))
    won = race_in_threads(storage, "here", threading.Barrier(16), 4, 16)
    assert sorted(won) == sorted(
        f"{what} {number}" for number in range(4) for what in ("create", "update")
    )


def test_many_writers_of_one_repository(azure: AzureServer) -> None:
    storage = azure.storage()
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4, 1000), chunks=(1, 1000), dtype="i8")
    session.commit("an array")

    def work(row: int) -> None:
        mine = icefloe.Repository.open(storage)
        for number in range(5):
            session = mine.writable_session("main")
            array: Any = zarr.open_array(session.store, path="a")
            array[row] = 10 * row + number + 1
            session.commit(f"{row} {number}", rebase_with=icefloe.ConflictDetector())

    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    messages = [snapshot.message for snapshot in repository.ancestry(branch="main")]
    assert len(messages) == 22
    assert set(messages[:-2]) == {f"{row} {number}" for row in range(4) for number in range(5)}
    array: Any = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert array[:, 0].tolist() == [5, 15, 25, 35]


def test_branches_tags_and_another_creator(azure: AzureServer) -> None:
    storage = azure.storage()
    repository = icefloe.Repository.create(storage)
    tip = repository.lookup_branch("main")
    repository.create_tag("first", tip)
    repository.create_branch("other", tip)
    repository.delete_branch("other")
    assert (repository.list_branches(), repository.list_tags()) == ({"main"}, {"first"})
    with pytest.raises(icefloe.IcechunkError, match="is not empty"):
        icefloe.Repository.create(storage)


def test_virtual_chunks(azure: AzureServer) -> None:
    values = np.arange(8, dtype="<i4")
    files = AzureStore(
        container_name=CONTAINER,
        account_name=ACCOUNT,
        account_key=KEY,
        endpoint=azure.config["endpoint"],
        client_options={"allow_http": True},
    )
    obstore.put(files, "files/one.bin", b"head" + values.tobytes())
    prefix = f"az://{CONTAINER}/files/"
    config = icefloe.RepositoryConfig()
    store = icefloe.azure_store(account=ACCOUNT, config=azure.config)
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    credentials = icefloe.containers_credentials(
        {prefix: icefloe.azure_credentials(access_key=KEY)}
    )
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(), config, authorize_virtual_chunk_access=credentials
    )
    session = repository.writable_session("main")
    array: Any = zarr.create_array(
        session.store, name="a", shape=(8,), chunks=(4,), dtype="<i4", compressors=None
    )
    etag = obstore.head(files, "files/one.bin")["e_tag"]
    for number in range(2):
        session.store.set_virtual_ref(
            f"a/c/{number}", f"{prefix}one.bin", offset=4 + 16 * number, length=16, checksum=etag
        )
    assert np.array_equal(array[:], values)
    obstore.put(files, "files/one.bin", b"HEAD" + values.tobytes())
    with pytest.raises(icefloe.IcechunkError, match=r"one\.bin"):
        array[:]
