"""A str of Python can have half a surrogate pair, which no file can hold. It is refused where it
is given, and the session or repository goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import icefloe
from tests.api.test_rank_changes import document, get

HALVES = ["\ud800", "a\udfffb", "größer \udc80"]
GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{}}'


@pytest.fixture(params=[1, 2], ids=["spec 1", "spec 2"])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=request.param)
    session = repo.writable_session("main")
    zarr.group(session.store).create_group("g")
    session.commit("first")
    return repo


def put(session: icefloe.Session, key: str, value: bytes = GROUP) -> None:
    sync(session.store.set(key, cpu.Buffer.from_bytes(value)))


@pytest.mark.parametrize("half", HALVES)
def test_a_node_name_of_half_a_surrogate_pair_is_refused(
    repo: icefloe.Repository, half: str
) -> None:
    session = repo.writable_session("main")
    for key in (f"{half}/zarr.json", f"g/{half}/zarr.json", f"g/{half}/x/zarr.json"):
        with pytest.raises(icefloe.InvalidInputError, match="half a surrogate pair"):
            put(session, key)
    with pytest.raises(icefloe.InvalidInputError, match="half a surrogate pair"):
        zarr.open_group(session.store, path="g").create_group(half)
    put(session, "g/good/zarr.json")
    session.commit("good")


@pytest.mark.parametrize("half", HALVES)
def test_a_dimension_name_of_half_a_surrogate_pair_is_refused(
    repo: icefloe.Repository, half: str
) -> None:
    session = repo.writable_session("main")
    with pytest.raises(icefloe.InvalidInputError, match="half a surrogate pair"):
        put(session, "g/a/zarr.json", document([4], dimension_names=[half]))
    put(session, "g/a/zarr.json", document([4], dimension_names=["x"]))
    session.commit("good")


@pytest.mark.parametrize("half", HALVES)
def test_attributes_stay_as_they_are_escaped(repo: icefloe.Repository, half: str) -> None:
    """JSON can escape what UTF-8 cannot hold, and a zarr.json is kept byte for byte."""
    session = repo.writable_session("main")
    stored = document([4], attributes={half: half})
    put(session, "g/a/zarr.json", stored)
    session.commit("escaped")
    assert get(repo.readonly_session("main"), "g/a/zarr.json") == stored


def calls(repo: icefloe.Repository, half: str) -> dict[str, Callable[[], Any]]:
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    put(session, "g/new/zarr.json")
    put(session, "g/a/zarr.json", document([4]))
    found: dict[str, Callable[[], Any]] = {
        "message": lambda: session.commit(half),
        "metadata key": lambda: session.commit("m", metadata={half: 1}),
        "metadata value": lambda: session.commit("m", metadata={"a": {"b": [half]}}),
        "nested key": lambda: session.commit("m", metadata={"a": {half: 1}}),
        "branch": lambda: repo.create_branch(half, tip),
        "tag": lambda: repo.create_tag(half, tip),
        "default metadata key": lambda: repo.set_default_commit_metadata({half: 1}),
        "default metadata value": lambda: repo.set_default_commit_metadata({"a": [half]}),
        "location": lambda: session.store.set_virtual_ref(
            "g/a/c/0", f"s3://b/{half}", offset=0, length=4, validate_container=False
        ),
        "etag": lambda: session.store.set_virtual_ref(
            "g/a/c/0", "s3://b/x", offset=0, length=4, checksum=half, validate_container=False
        ),
        "many locations": lambda: session.store.set_virtual_refs(
            "g/a", [icefloe.VirtualChunkSpec([0], f"s3://b/{half}", 0, 4)]
        ),
        "many etags": lambda: session.store.set_virtual_refs(
            "g/a", [icefloe.VirtualChunkSpec([0], "s3://b/x", 0, 4, half)]
        ),
        "lookup": lambda: repo.lookup_branch(half),
        "node id": lambda: session.get_node_id(f"/{half}"),
    }
    if int(repo.spec_version) > 1:
        reason = icefloe.RepoStatus(
            icefloe.RepoAvailability.read_only, limited_availability_reason=half
        )
        found |= {
            "repository metadata": lambda: repo.set_metadata({half: 1}),
            "reason": lambda: repo.set_status(reason),
            "move": lambda: repo.rearrange_session("main").move("/g", f"/{half}"),
            "flush": lambda: session.flush(half),
        }
    return found


@pytest.mark.parametrize("half", HALVES)
def test_other_text_of_half_a_surrogate_pair_is_refused(
    repo: icefloe.Repository, half: str
) -> None:
    session = repo.writable_session("main")
    for call in calls(repo, half).values():
        with pytest.raises(icefloe.InvalidInputError, match="half a surrogate pair"):
            call()
    put(session, "g/good/zarr.json")
    session.commit("good")
    assert repo.list_branches() == {"main"}


def test_a_directory_whose_name_no_file_system_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(icefloe.InvalidInputError, match="is not the path of a directory"):
        icefloe.local_filesystem_storage(f"{tmp_path}/\ud800")
    # Bytes that are no UTF-8 are such halves in Python, and are a name.
    icefloe.Repository.create(icefloe.local_filesystem_storage(f"{tmp_path}/\udc80"))


@pytest.mark.parametrize("level", [22, 23, 100, 255])
def test_a_compression_level_beyond_the_last_one_is_the_last_one(level: int) -> None:
    config = icefloe.RepositoryConfig(compression=icefloe.CompressionConfig(level=level))
    storage = icefloe.in_memory_storage()
    session = icefloe.Repository.create(storage, config=config).writable_session("main")
    zarr.group(session.store).create_array("a", shape=(4,), dtype="i4")[:] = 1
    session.commit("compressed")
    assert icefloe.Repository.open(storage).readonly_session("main").get_node_id("/a")
