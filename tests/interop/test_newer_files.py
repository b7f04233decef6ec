"""Files as a later version of the format may write them: what is unknown is left alone, and all
the rest goes on working."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

pytest.importorskip("icechunk", minversion="2")

import icechunk

import icefloe
from icefloe.ids import ManifestId
from tests.fuzz.files import Flat, payload_of, with_payload
from tests.interop.sides import SIDES, Place

KINDS_OF_THE_FUTURE = [0, 17, 255]


def new_repository(folder: Path) -> Place:
    """Two commits and a tag by official: four entries in the operations log."""
    place = Place(folder)
    repo = icechunk.Repository.create(place.storage(icechunk))
    session = repo.writable_session("main")
    array = zarr.group(session.store).create_array("a", shape=(40,), chunks=(4,), dtype="i4")
    array[:] = 7
    repo.create_tag("t", snapshot_id=session.commit("one"))
    write(repo, 3)
    return place


def write(repo: Any, value: int) -> str:
    session = repo.writable_session("main")
    group: Any = zarr.open_group(session.store)
    group["a"][value] = value
    return str(session.commit(f"value {value}"))


def values(repo: Any) -> list[int]:
    group: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    return [int(value) for value in group["a"][:]]


def edit(path: Path) -> Flat:
    return Flat(path.read_bytes())


def store(path: Path, flat: Flat) -> None:
    """Official reads compressed files only."""
    path.write_bytes(with_payload(flat.file, bytes(flat.data), is_compressed=True))


def drop_identifiers(folder: Path) -> int:
    """Rewrite every metadata file without the identifier; returns how many there are."""
    found = [folder / "repo"]
    for part in ("manifests", "transactions", "snapshots"):  # sizes of manifests last
        found.extend((folder / part).iterdir())
    for path in found:
        flat = edit(path)
        assert flat.data[4:8] == b"Ichk"
        flat.data[4:8] = bytes(4)
        if path.parent.name == "snapshots":
            note_sizes(folder, flat)
        store(path, flat)
    return len(found)


def note_sizes(folder: Path, snapshot: Flat) -> None:
    """A snapshot knows the exact sizes of its manifests."""
    files = snapshot.target(snapshot.root, 7)
    for number in range(snapshot.u32(files)):
        info = snapshot.item(files, number)
        at = snapshot.field(info, 0)
        name = ManifestId(bytes(snapshot.data[at : at + 12])).text
        snapshot.set_u32(snapshot.field(info, 1), (folder / "manifests" / name).stat().st_size)


def test_files_without_a_file_identifier_are_read_and_committed_on(tmp_path: Path) -> None:
    place = new_repository(tmp_path)
    assert drop_identifiers(tmp_path) > 6
    repo = place.open(icefloe)
    assert values(repo)[:5] == [7, 7, 7, 3, 7]
    assert [entry.message for entry in repo.ancestry(branch="main")][:2] == ["value 3", "one"]
    assert len(list(repo.ops_log())) == 4
    write(repo, 9)
    for library in SIDES.values():
        assert values(place.open(library))[:10] == [7, 7, 7, 3, 7, 7, 7, 7, 7, 9]
    assert payload_of((tmp_path / "repo").read_bytes())[4:8] == b"Ichk"


def set_kind(folder: Path, row: int, kind: int) -> None:
    """Let one entry be of this kind, in the log and in the backups that have it too."""
    num_entries = entries(edit(folder / "repo"))
    for path in [folder / "repo", *(folder / "overwritten").iterdir()]:
        flat = edit(path)
        here = row - (num_entries - entries(flat))  # counted from the end, where all logs agree
        if here >= 0:
            flat.set_u8(flat.field(flat.item(flat.target(flat.root, 7), here), 0), kind)
            store(path, flat)


def entries(repo: Flat) -> int:
    return repo.u32(repo.target(repo.root, 7))


@pytest.mark.parametrize("kind", KINDS_OF_THE_FUTURE)
@pytest.mark.parametrize("row", [0, 1, 3])
def test_an_operation_of_an_unknown_kind_is_shown_and_survives_commits(
    tmp_path: Path, row: int, kind: int
) -> None:
    place = new_repository(tmp_path)
    before = list(place.open(icefloe).ops_log())
    set_kind(tmp_path, row, kind)
    repo = place.open(icefloe)
    assert values(repo)[:4] == [7, 7, 7, 3]

    shown = list(repo.ops_log())
    assert isinstance(shown[row].kind, icefloe.UpdateType.Unknown)
    assert repr(shown[row].kind) == f"icefloe.UpdateType.Unknown(number={kind})"
    assert shown[row].updated_at == before[row].updated_at
    assert shown[:row] + shown[row + 1 :] == before[:row] + before[row + 1 :]

    write(repo, 9)
    write(repo, 11)
    after = list(place.open(icefloe).ops_log())
    assert [entry.kind for entry in after[2:]] == [entry.kind for entry in shown]
    assert [entry.updated_at for entry in after[2:]] == [entry.updated_at for entry in shown]
    assert after[2 + row].backup_path is not None

    official = place.open(icechunk)  # it could not commit on the log as it was; now it can
    write(official, 13)
    assert [place.open(library).list_tags() for library in SIDES.values()] == [{"t"}, {"t"}]
    assert len(list(place.open(icefloe).ops_log())) == len(after) + 1


def test_an_availability_of_the_future_can_be_read_but_not_written(tmp_path: Path) -> None:
    place = new_repository(tmp_path)
    limited = icechunk.RepoStatus(icechunk.RepoAvailability.read_only)
    place.open(icechunk).set_status(limited)
    flat = edit(tmp_path / "repo")
    flat.set_u8(flat.field(flat.target(flat.root, 5), 0), 9)
    status = flat.target(flat.target(flat.item(flat.target(flat.root, 7), 0), 1), 0)
    flat.set_u8(flat.field(status, 0), 9)
    store(tmp_path / "repo", flat)

    repo = place.open(icefloe)
    assert values(repo)[:4] == [7, 7, 7, 3]
    assert repo.get_status().availability == icefloe.RepoAvailability.read_only
    assert next(iter(repo.ops_log())).kind.status.availability.name == "read_only"
    with pytest.raises(icefloe.ReadOnlyError, match="read-only"):
        repo.writable_session("main")
    with pytest.raises(icefloe.ReadOnlyError, match="read-only"):
        repo.create_tag("u", snapshot_id=repo.lookup_branch("main"))
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.online))
    write(repo, 9)
    assert values(place.open(icechunk))[9] == 9


def test_a_repository_whose_operations_are_gone_goes_on(tmp_path: Path) -> None:
    """Official reads and writes it, so icefloe does. Verifying it reports the loss."""
    place = new_repository(tmp_path)
    before = values(place.open(icechunk))
    flat = edit(tmp_path / "repo")
    flat.set_u32(flat.target(flat.root, 7), 0)
    store(tmp_path / "repo", flat)
    for library in SIDES.values():
        repo = place.open(library)
        assert values(repo) == before
        assert list(repo.ops_log()) == []
    repo = place.open(icefloe)
    found = repo.verify()
    assert [each.kind.value for each in found.findings] == ["operations-out-of-order"]
    write(repo, 5)
    assert len(list(repo.ops_log())) == 1
    write(place.open(icechunk), 6)
    for library in SIDES.values():
        assert values(place.open(library))[5:7] == [5, 6]
