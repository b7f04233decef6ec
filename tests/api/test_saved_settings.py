"""Saved storage settings: every driver has them, apart from the unsafe ones."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig, StorageSettings
from icefloe.config import StorageRetriesSettings, StorageTimeoutSettings
from tests.servers import BUCKET, S3Server

SAVED = StorageSettings(
    retries=StorageRetriesSettings(max_tries=3, initial_backoff_ms=1),
    timeouts=StorageTimeoutSettings(read_timeout_ms=20_000),
    storage_class="STANDARD_IA",
)
UNSAFE = StorageSettings(
    unsafe_use_conditional_create=False,
    unsafe_use_conditional_update=False,
    unsafe_use_metadata=False,
)
WRITERS = 6


def opened(storage: icefloe.Storage, config: RepositoryConfig | None = None) -> list[Repository]:
    """One repository opened in every way there is."""
    blocking = Repository.open(storage, config)
    awaited = asyncio.run(Repository.open_async(storage, config))
    created = Repository.open_or_create(storage, config)
    sent = pickle.loads(pickle.dumps(blocking))
    return [blocking, awaited, created, sent, blocking.reopen()]


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_every_driver_has_the_saved_and_the_given_settings(
    kind: str, spec_version: int, tmp_path: Path, s3_server: S3Server
) -> None:
    storage = s3_server.storage() if kind == "s3" else icefloe.local_filesystem_storage(tmp_path)
    saved = RepositoryConfig(storage=SAVED, max_concurrent_requests=17)
    Repository.create(storage, saved, spec_version=spec_version)
    given = RepositoryConfig(
        storage=StorageSettings(retries=StorageRetriesSettings(initial_backoff_ms=2))
    )
    expected = storage.default_settings().merge(SAVED)
    assert given.storage is not None
    for repository in opened(storage, given):
        for handle in (repository._handles.blocking, repository._handles.eventloop):
            assert handle.driver.settings == expected.merge(given.storage).resolved()
            assert handle.settings.storage == handle.driver.settings
        assert repository._handles.blocking.driver is storage.driver(
            expected.merge(given.storage).resolved(), blocking=True, max_concurrent_requests=17
        )


def test_objects_get_the_saved_storage_class_from_both_drivers(s3_server: S3Server) -> None:
    storage = s3_server.storage(prefix="saved-class")
    Repository.create(storage, RepositoryConfig(storage=SAVED, inline_chunk_threshold_bytes=0))
    repository = Repository.open(storage)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(1,), dtype="i4", fill_value=1)[:] = 7
    session.commit("blocking")
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test-secret",
    )
    for folder in ("chunks", "manifests"):
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"saved-class/{folder}/")
        assert [found["StorageClass"] for found in listed["Contents"]] == ["STANDARD_IA"], folder


@pytest.mark.parametrize("spec_version", [1, 2])
def test_unsafe_switches_are_taken_from_the_caller_only(
    spec_version: int, s3_server: S3Server
) -> None:
    storage = s3_server.storage()
    Repository.create(storage, RepositoryConfig(storage=UNSAFE), spec_version=spec_version)
    safe = storage.default_settings().resolved()
    for repository in opened(storage):
        for handle in (repository._handles.blocking, repository._handles.eventloop):
            assert handle.driver.settings == safe
    for repository in opened(storage, RepositoryConfig(storage=UNSAFE)):
        for handle in (repository._handles.blocking, repository._handles.eventloop):
            assert handle.driver.settings == storage.default_settings().merge(UNSAFE).resolved()


def _commit_in_threads(repository: Repository) -> None:
    def work(number: int) -> None:
        _session(pickle.loads(pickle.dumps(repository)), number).commit(
            str(number), rebase_with=icefloe.ConflictDetector()
        )

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS)))


def _commit_in_a_loop(repository: Repository) -> None:
    async def work() -> None:
        await asyncio.gather(
            *(
                session.commit_async(str(number), rebase_with=icefloe.ConflictDetector())
                for number, session in enumerate(sessions)
            )
        )

    sessions = [_session(repository, number) for number in range(WRITERS)]
    asyncio.run(work())


def _session(repository: Repository, number: int) -> icefloe.Session:
    session = repository.writable_session("main")
    zarr.create_group(session.store, path=f"g{number}")
    return session


@pytest.mark.parametrize("commit_all", [_commit_in_threads, _commit_in_a_loop])
def test_no_commit_is_lost_where_unsafe_settings_were_saved(
    commit_all: Callable[[Repository], None], s3_server: S3Server
) -> None:
    storage = s3_server.storage()
    first: Any = Repository.create(storage, RepositoryConfig(storage=UNSAFE))
    session = first.writable_session("main")
    zarr.create_group(session.store)
    session.commit("root")
    commit_all(Repository.open(storage))
    messages = {snapshot.message for snapshot in first.ancestry(branch="main")}
    assert messages >= {str(number) for number in range(WRITERS)}
