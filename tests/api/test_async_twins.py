"""Every operation that touches storage has a twin for event loops, with the same result."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe import (
    RefNotFoundError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepoStatus,
    Session,
    Storage,
    in_memory_storage,
)
from tests.api.histories import make
from tests.places import fresh_storage

TWIN_NAMES = {"ancestry": "async_ancestry"}
# Not an operation of its own: a session and a commit, which both have twins.
WITHOUT_TWIN = {"transaction"}


def touches_storage(method: Any) -> bool:
    return "run_blocking(" in inspect.getsource(method)


def blocking_methods(owner: type) -> list[str]:
    return [
        name
        for name, value in inspect.getmembers(owner)
        if not name.startswith("_")
        and callable(value)
        and not inspect.iscoroutinefunction(value)
        and not inspect.isasyncgenfunction(value)
        and name not in WITHOUT_TWIN
        and touches_storage(value)
    ]


METHODS = [(owner, name) for owner in (Repository, Session) for name in blocking_methods(owner)]


def test_there_are_methods_to_look_at() -> None:
    assert len(METHODS) > 35


@pytest.mark.parametrize(("owner", "name"), METHODS)
def test_a_method_has_a_twin_with_the_same_parameters(owner: type, name: str) -> None:
    twin = getattr(owner, TWIN_NAMES.get(name, f"{name}_async"))
    assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)
    original = inspect.signature(getattr(owner, name)).parameters
    assert dict(inspect.signature(twin).parameters) == dict(original)
    assert twin.__doc__


@pytest.fixture(params=["memory", "s3"])
def storages(request: pytest.FixtureRequest, tmp_path: Path) -> list[Storage]:
    """Two empty places: one for the blocking methods, one for their twins."""
    server = request.getfixturevalue("s3_server") if request.param == "s3" else None
    return [fresh_storage(request.param, tmp_path / name, server) for name in ("one", "two")]


QUERIES: dict[str, dict[str, Any]] = {
    "list_branches": {},
    "list_tags": {},
    "lookup_branch": {"branch": "dev"},
    "lookup_tag": {"tag": "v1"},
    "lookup_snapshot": {"snapshot_id": 1},
    "list_manifest_files": {"snapshot_id": 3},
    "diff": {"from_snapshot_id": 1, "to_branch": "main"},
    "ancestry_graph": {"plain": True},
    "readonly_session": {"branch": "main"},
}
QUERIES_V2: dict[str, dict[str, Any]] = {
    "get_metadata": {},
    "get_status": {},
    "feature_flags": {},
    "enabled_feature_flags": {},
    "disabled_feature_flags": {},
}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_questions_have_the_same_answers(storages: list[Storage], spec_version: int) -> None:
    storage = storages[0]
    repository, ids = make(storage, spec_version)
    repository.create_branch("dev", ids[1])
    repository.create_tag("v1", ids[2])

    async def ask_all() -> None:
        opened = await Repository.open_async(storage)
        for name, options in (QUERIES | (QUERIES_V2 if spec_version == 2 else {})).items():
            arguments = {
                key: ids[value] if key.endswith("snapshot_id") else value
                for key, value in options.items()
            }
            expected = await asyncio.to_thread(getattr(repository, name), **arguments)
            found = await getattr(opened, f"{name}_async")(**arguments)
            if name == "ancestry_graph":
                found, expected = str(found), str(expected)
            assert found == expected, name
        history = [info async for info in opened.async_ancestry(branch="main")]
        assert history == list(repository.ancestry(branch="main"))
        if spec_version == 2:
            log = [update async for update in opened.ops_log_async()]
            assert log == list(repository.ops_log())
        assert await Repository.exists_async(storage)
        assert not await Repository.exists_async(storages[1])
        assert await Repository.fetch_spec_version_async(storage) == spec_version
        assert await Repository.fetch_config_async(storage) is None
        reader = await opened.readonly_session_async(tag="v1")
        assert await reader.get_node_id_async("/one") == reader.get_node_id("/one")
        assert await reader.chunk_type_async("/one", [0]) == reader.chunk_type("/one", [0])
        assert await reader.all_virtual_chunk_locations_async() == []
        with pytest.raises(RefNotFoundError, match="nothing"):
            await opened.lookup_branch_async("nothing")

    asyncio.run(ask_all())


async def call(target: Any, name: str, is_async: bool, *arguments: Any, **options: Any) -> Any:
    """The method itself, or its twin."""
    if is_async:
        return await getattr(target, f"{name}_async")(*arguments, **options)
    return getattr(target, name)(*arguments, **options)


async def write(session: Session, key: str, data: bytes) -> None:
    await session.store.set(key, default_buffer_prototype().buffer.from_bytes(data))


ARRAY = (
    b'{"node_type":"array","zarr_format":3,"shape":[4],"data_type":"uint8","fill_value":0,'
    b'"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},'
    b'"chunk_key_encoding":{"name":"default"},"codecs":[{"name":"bytes"}]}'
)


async def tell_story(storage: Storage, spec_version: int, is_async: bool) -> list[Any]:
    """Use everything that writes, blocking or not; what can be seen afterwards is the result."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=1)

    async def do(target: Any, name: str, *arguments: Any, **options: Any) -> Any:
        return await call(target, name, is_async, *arguments, **options)

    repository = await do(Repository, "create", storage, config, spec_version=spec_version)
    repository = await do(Repository, "open_or_create", storage)
    session = await do(repository, "writable_session", "main")
    await write(session, "zarr.json", b'{"node_type":"group","zarr_format":3}')
    await write(session, "a/zarr.json", ARRAY)
    await write(session, "a/c/0", b"ab")
    first = await do(session, "commit", "first", {"by": "story"})
    await do(repository, "create_branch", "dev", first)
    session = await do(repository, "writable_session", "dev")
    await write(session, "a/c/1", b"cd")
    second = await do(session, "commit", "second")
    session = await do(repository, "writable_session", "dev")
    await write(session, "a/c/1", b"ef")
    if spec_version == 2:
        await do(session, "amend", "amended")
        await do(repository, "set_metadata", {"a": 1})
        await do(repository, "update_metadata", {"b": 2})
        await do(repository, "set_feature_flag", "move_node", False)
        await do(repository, "set_status", RepoStatus(RepoAvailability.read_only))
        await do(repository, "set_status", RepoStatus(RepoAvailability.online))
    else:
        await do(session, "commit", "third")
    session = await do(repository, "writable_session", "main")
    await write(session, "a/c/0", b"gh")
    flushed = await do(session, "flush", "aside")
    await do(repository, "create_tag", "v1", flushed)
    await do(repository, "create_tag", "v2", first)
    await do(repository, "delete_tag", "v2")
    await do(repository, "create_branch", "gone", first)
    await do(repository, "delete_branch", "gone")
    await do(repository, "reset_branch", "main", second, from_snapshot_id=first)
    reopened = await do(repository, "reopen", RepositoryConfig(get_partial_values_concurrency=3))
    await do(reopened, "save_config")
    return _seen(storage, spec_version)


def _seen(storage: Storage, spec_version: int) -> list[Any]:
    repository = Repository.open(storage)
    seen: list[Any] = [repository.list_branches(), repository.list_tags(), repository.config]
    for branch in sorted(repository.list_branches()):
        history = repository.ancestry(branch=branch)
        seen.append([(info.message, info.metadata) for info in history])
        array: Any = zarr.open_array(repository.readonly_session(branch).store, path="a", mode="r")
        seen.append(array[:].tolist())
    if spec_version == 2:
        seen += [repository.metadata, repository.status.availability, repository.feature_flags()]
        seen.append([type(update.kind).__name__ for update in repository.ops_log()])
    return seen


@pytest.mark.parametrize("spec_version", [1, 2])
def test_operations_have_the_same_effect(storages: list[Storage], spec_version: int) -> None:
    # Blocking methods are called inside an event loop as well: they must not need to own it.
    blocking, awaited = (
        asyncio.run(tell_story(storage, spec_version, is_async))
        for storage, is_async in zip(storages, (False, True), strict=True)
    )
    assert blocking == awaited
    assert blocking[0] == {"main", "dev"}
    kinds = [[key.split("/")[0] for key, _ in storage.list_objects()] for storage in storages]
    assert kinds[0] == kinds[1]


def test_many_operations_run_at_the_same_time(storages: list[Storage]) -> None:
    repository, ids = make(storages[0])

    async def tag_all() -> None:
        await asyncio.gather(
            *(repository.create_tag_async(f"tag{number}", ids[1]) for number in range(8))
        )

    asyncio.run(tag_all())
    assert len(Repository.open(storages[0]).list_tags()) == 8


def test_one_repository_is_used_from_several_event_loops() -> None:
    repository, ids = make(in_memory_storage())
    for _ in range(3):
        assert asyncio.run(repository.lookup_branch_async("main")) == ids[-1]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("lookup_branch", (5,)),
        ("create_tag", (None, "id")),
        ("writable_session", (None,)),
        ("set_feature_flag", ("create_tag", "yes")),
    ],
)
def test_twins_refuse_wrong_types_too(name: str, arguments: tuple[Any, ...]) -> None:
    repository, _ = make(in_memory_storage())
    with pytest.raises(TypeError) as blocking:
        getattr(repository, name)(*arguments)
    with pytest.raises(TypeError) as awaited:
        asyncio.run(getattr(repository, f"{name}_async")(*arguments))
    messages = [str(caught.value).partition("(): ") for caught in (blocking, awaited)]
    assert messages[0][2]
    assert messages[0][2] == messages[1][2]
