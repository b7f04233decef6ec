"""Which generation a directory holds is told from names and headers alone."""

from __future__ import annotations

import pytest

import icefloe
from icefloe import Generation, NumberedRefs, Repository
from icefloe.errors import FormatError, InvalidInputError, RepositoryNotFoundError
from icefloe.legacy.detect import detect, generation_of
from icefloe.legacy.numbered.names import DOCUMENT, FIRST_ALPHA, PROTOTYPE, RELEASED, Names
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from tests.legacy.numbered.old_repositories import Builder
from tests.legacy.numbered.releases import MAGIC, RELEASES, Release


@pytest.mark.parametrize(
    ("key", "names", "generation"),
    [
        ("r/main/ZZZZZZZZ.json", DOCUMENT, Generation.NUMBERED),
        ("r/main/00000000.json", DOCUMENT, Generation.NUMBERED),
        ("r/branch:main/ZZZZZZZZZZZZY.json", PROTOTYPE, Generation.NUMBERED),
        ("refs/branch:main/ZZZZZZZZZZZZY.json", FIRST_ALPHA, Generation.ALPHA),
        ("refs/branch.main/ZZZZZZZZ.json", RELEASED, Generation.ALPHA),
    ],
)
def test_names_tell(key: str, names: Names, generation: Generation) -> None:
    found = detect(["r/tag.json", "refs/tag.x/ref.json", key, "recovered/other"])
    assert found is not None
    assert (found.names, found.key) == (names, key)
    assert generation_of(found.names) is generation


def test_the_header_tells_alphas_from_later_releases() -> None:
    assert generation_of(RELEASED, b"\x9b\x00") is Generation.ALPHA
    assert generation_of(RELEASED, MAGIC + bytes(27)) is Generation.BETA
    assert generation_of(DOCUMENT, MAGIC + bytes(27)) is Generation.NUMBERED


def test_a_state_file_tells() -> None:
    found = detect(["state.json"])
    assert found is not None
    assert found.names is None


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["r/other/ZZZZZZZZ.json"],
        ["r/main/ref.json", "refs/branch.main/ref.json", "r/main.json"],
        ["refs/branch.main/ZZZZZZZZZZZZY.json", "r/main/zzzzzzzz.json"],
    ],
)
def test_other_names_tell_nothing(keys: list[str]) -> None:
    assert detect(keys) is None


def test_two_generations_in_one_place_are_refused() -> None:
    with pytest.raises(
        FormatError,
        match=r"r/main/ZZZZZZZZ\.json belongs to .*numbered refs.*and "
        r"refs/branch\.main/ZZZZZZZZ\.json to .*alpha",
    ):
        detect(["r/main/ZZZZZZZZ.json", "refs/branch.main/ZZZZZZZZ.json"])


# -- through the API


def put(storage: Storage, key: str, data: bytes) -> None:
    settings = storage.default_settings().resolved()
    driver = storage.driver(settings, blocking=True, max_concurrent_requests=1)
    run_blocking(driver.put(key, data))


def test_an_empty_place_holds_nothing() -> None:
    storage = icefloe.in_memory_storage()
    assert not Repository.exists(storage)
    with pytest.raises(RepositoryNotFoundError, match="nor a file of an older generation"):
        Repository.open(storage)


def test_mixed_directories_are_refused() -> None:
    storage = icefloe.in_memory_storage()
    Repository.create(storage, generation=NumberedRefs())
    Builder(RELEASES["alpha.2"], storage, 1, "file:///nowhere").build()
    with pytest.raises(FormatError, match=r"r/main/.* belongs to .*, and refs/branch\.main/.* to"):
        Repository.open(storage)


def test_a_newer_repository_in_the_same_place_wins() -> None:
    """A migration in place only adds files."""
    storage = icefloe.in_memory_storage()
    Repository.create(storage, generation=NumberedRefs())
    put(storage, "refs/branch.main/ref.json", b'{"snapshot":"1CECHNKREP0F1RSTCMT0"}')
    assert Repository.open(storage).generation is Generation.SPEC_1


def test_repositories_are_created_once() -> None:
    storage = icefloe.in_memory_storage()
    Repository.create(storage, generation=NumberedRefs())
    with pytest.raises(InvalidInputError, match="is not empty"):
        Repository.create(storage, generation=NumberedRefs())
    with pytest.raises(icefloe.AlreadyExistsError, match="numbered refs"):
        Repository.create(storage, generation=NumberedRefs(), check_clean_root=False)
    with pytest.raises(icefloe.AlreadyExistsError, match="numbered refs"):
        Repository.create(storage, check_clean_root=False)


@pytest.mark.parametrize(
    ("key", "data", "problem"),
    [
        ("r/main/ZZZZZZZZ.json", b"{}", r"r/main/ZZZZZZZZ\.json of a repository with numbered"),
        ("r/main/ZZZZZZZZ.json", b'{"snapshot":"AB"}', "expected 26 or 20 characters"),
        (
            "r/main/ZZZZZZZZ.json",
            b'{"snapshot":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}',
            "points at s/00000000000000000000000000, which does not exist",
        ),
        ("refs/branch.main/ZZZZZZZZ.json", b"x", r"refs/branch\.main/ZZZZZZZZ\.json of .*alpha"),
    ],
)
def test_damaged_refs_are_refused_by_file_and_generation(
    key: str, data: bytes, problem: str
) -> None:
    storage = icefloe.in_memory_storage()
    put(storage, key, data)
    with pytest.raises(FormatError, match=problem):
        Repository.open(storage)


@pytest.mark.parametrize("found", RELEASES.values(), ids=lambda release: release.name)
@pytest.mark.parametrize("folder", ["snapshots", "manifests", "transactions"])
def test_damaged_files_are_refused_by_file_and_generation(found: Release, folder: str) -> None:
    storage = icefloe.in_memory_storage()
    world = Builder(found, storage, 3, "file:///nowhere").build()
    at = found.folder(folder)
    keys = [at + key for key, _ in storage.list_objects(prefix=at)]
    if not keys:
        return  # the release has no such files
    repo = Repository.open(storage)
    for key in keys:
        put(storage, key, b"\x93\x01\x02\x03")
    line = world.branches["main"].line()
    with pytest.raises(FormatError) as caught:
        look_at_everything(repo, line[1].text, line[0].text)
    assert caught.value.message.startswith(found.folder(folder))
    assert f"of {repo.generation.noun}: " in caught.value.message


def look_at_everything(repo: Repository, older: str, newer: str) -> None:
    repo.diff(from_snapshot_id=older, to_snapshot_id=newer)
    session = repo.readonly_session("main")
    run_blocking(operations.list_prefix(Workspace(*session.workspace), ""))
