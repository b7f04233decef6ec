"""What the calls that look show is what official icechunk shows of the same files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import icefloe
from tests.maintenance.histories import make_history, open_official, open_ours


def without_note(shown: dict[str, Any]) -> dict[str, Any]:
    """Official says in its own words that logs were joined."""
    shown.get("synthetic_composite", {}).pop("note", None)
    return shown


@pytest.mark.filterwarnings("ignore:the expiration cuts")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", [1, 2])
def test_files_are_shown_as_official_shows_them(
    official: Any, tmp_path: Path, spec: int, seed: int
) -> None:
    made = make_history(official, tmp_path / "made", spec, seed)
    theirs, ours = open_official(official, made.folder), open_ours(made.folder)
    for round_ in range(2):
        for path in sorted((made.folder / "snapshots").iterdir()):
            assert ours.inspect_snapshot(path.name) == theirs.inspect_snapshot(path.name)
            files = [(f.id, f.size_bytes) for f in theirs.list_manifest_files(path.name)]
            listed = ours.list_manifest_files(path.name)
            assert sorted((f.id, f.size_bytes) for f in listed) == sorted(files)
        for path in sorted((made.folder / "manifests").iterdir()):
            assert ours.inspect_manifest(path.name) == theirs.inspect_manifest(path.name)
        for path in sorted((made.folder / "transactions").iterdir()):
            found = without_note(ours.inspect_transaction_log(path.name))
            assert found == without_note(theirs.inspect_transaction_log(path.name))
        if spec == 2:
            assert ours.inspect_repo_info() == theirs.inspect_repo_info()
        if round_ == 0:
            ours.expire_snapshots(datetime.now(UTC))
            theirs = open_official(official, made.folder)
    if spec == 2:
        theirs.set_status(official.RepoStatus(official.RepoAvailability.read_only))
        assert ours.inspect_repo_info() == theirs.inspect_repo_info()
        with pytest.raises(icefloe.ReadOnlyError):
            ours.garbage_collect(datetime.now(UTC))
        with pytest.raises(icefloe.ReadOnlyError):
            ours.expire_snapshots(datetime.now(UTC))


@pytest.mark.parametrize("spec", [1, 2])
def test_what_is_missing_is_named(spec: int) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec)
    text = "000000000000000000G0"
    looks = (repo.inspect_snapshot, repo.inspect_manifest, repo.inspect_transaction_log)
    for look in looks:
        with pytest.raises(icefloe.StorageError, match=text) as caught:
            look(text)
        assert caught.value.kind == icefloe.ErrorKind.OBJECT_NOT_FOUND
        with pytest.raises(icefloe.InvalidInputError, match="xx"):
            look("xx")
    if spec == 1:
        with pytest.raises(icefloe.FormatError, match="version 2"):
            repo.inspect_repo_info()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", [1, 2])
def test_storage_is_counted_as_official_counts_it(
    official: Any, tmp_path: Path, spec: int, seed: int
) -> None:
    made = make_history(official, tmp_path / "made", spec, seed)
    theirs, ours = open_official(official, made.folder), open_ours(made.folder)
    expected, found = theirs.chunk_storage_stats(), ours.chunk_storage_stats()
    assert (found.virtual_bytes, found.inlined_bytes) == (
        expected.virtual_bytes,
        expected.inlined_bytes,
    )
    if "pack" in made.steps:  # official counts one chunk of a packed object
        assert found.native_bytes >= expected.native_bytes
    else:
        assert found.native_bytes == expected.native_bytes
    assert found.total_bytes() == found.non_virtual_bytes() + found.virtual_bytes
    assert (found + found).native_bytes == 2 * found.native_bytes
    with pytest.warns(DeprecationWarning, match="chunk_storage_stats"):
        assert ours.total_chunks_storage() == found.native_bytes
