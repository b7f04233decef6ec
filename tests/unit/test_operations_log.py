"""The operations log of a repo object, entry by entry: what earlier entries look like in the file
is kept from commit to commit, and must stay what a fresh encoding would say."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from icefloe.api import values
from icefloe.errors import FormatError
from icefloe.format.operations_log import (
    RepoAvailability,
    RepoStatus,
    Update,
    UpdateKind,
    UpdateTable,
)
from icefloe.format.repo_info import (
    RepoInfo,
    decode_repo_info,
    encode_repo_info,
    with_entry,
)
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.repo.history import OperationsPage

STATUS = RepoStatus(RepoAvailability.READ_ONLY, 5, "for a while")
VALUES: dict[UpdateKind, dict[str, Any]] = {
    UpdateKind.NEW_COMMIT: {"branch": "main", "new_snap_id": SnapshotId(b"n" * 12)},
    UpdateKind.TAG_CREATED: {"name": "größer"},
    UpdateKind.BRANCH_RESET: {"name": "b", "previous_snap_id": SnapshotId(b"p" * 12)},
    UpdateKind.REPO_STATUS_CHANGED: {"status": STATUS},
    UpdateKind.FEATURE_FLAG_CHANGED: {"id": 700, "new_value": True, "is_set": False},
    UpdateKind.REPO_MIGRATED: {"from_version": 1, "to_version": 2},
    UpdateKind.GC_RAN: {},
    UpdateKind.COMMIT_AMENDED: {
        "branch": "main",
        "previous_snap_id": SnapshotId(b"p" * 12),
        "new_snap_id": SnapshotId(b"n" * 12),
    },
}


def new_repo_info() -> RepoInfo:
    """What a repository starts with."""
    first = SnapshotInfo(FIRST_SNAPSHOT_ID, None, 1, "first")
    return RepoInfo(
        {"main": FIRST_SNAPSHOT_ID},
        SnapshotTable.from_infos([first]),
        RepoStatus(RepoAvailability.ONLINE, 1),
        UpdateTable.from_updates([Update(UpdateKind.REPO_INITIALIZED, 1)]),
    )


@pytest.mark.parametrize("page_size", [1, 2, 7, 1000])
def test_a_log_that_grows_reads_as_if_it_were_encoded_anew(page_size: int) -> None:
    info = new_repo_info()
    expected = [Update(UpdateKind.REPO_INITIALIZED, 1)]
    for number in range(60):
        kind = list(VALUES)[number % len(VALUES)]
        backup = f"repo.{number}"
        info = with_entry(
            info, kind, VALUES[kind], now=number + 2, backup=backup, page_size=page_size
        )
        former = replace(expected[0], backup_path=backup)
        expected = [Update(kind, number + 2, VALUES[kind]), former, *expected[1:]]
        expected = expected[: max(page_size, 1)]
        data = encode_repo_info(info)
        found = decode_repo_info(data)
        assert list(found.latest_updates) == expected
        anew = replace(info, latest_updates=UpdateTable.from_updates(expected))
        assert found.equals(decode_repo_info(encode_repo_info(anew)))
        if number % 13 == 0:
            info = found  # as another process would go on


def test_entries_that_the_log_dropped_do_not_pile_up_in_the_file() -> None:
    info = new_repo_info()
    sizes = []
    for number in range(400):
        noise = blake2b(number.to_bytes(2), digest_size=24).digest()  # as ids and names are
        values = {"branch": "main", "new_snap_id": SnapshotId(noise[:12])}
        info = with_entry(
            info,
            UpdateKind.NEW_COMMIT,
            values,
            now=number + 2,
            backup=f"repo.{noise[12:].hex()}",
            page_size=100,
        )
        sizes.append(len(encode_repo_info(info)))
    assert max(sizes[200:]) < 1.75 * sizes[100]


def log_with_unknown(at: int, *, unnamed: int = 0) -> RepoInfo:
    """Six entries, of which one is of a kind of the future and some lack a backup."""
    entries = [
        Update(97 if row == at else UpdateKind.GC_RAN, 20 - row, {}, f"repo.{row}" if row else None)
        for row in range(6)
    ]
    for row in range(at - unnamed + 1, at + 1):
        entries[row] = replace(entries[row], backup_path=None)
    return replace(new_repo_info(), latest_updates=UpdateTable.from_updates(entries))


def with_commit(info: RepoInfo, page_size: int = 1000) -> RepoInfo:
    values = VALUES[UpdateKind.NEW_COMMIT]
    kind = UpdateKind.NEW_COMMIT
    return with_entry(info, kind, values, now=30, backup="repo.new", page_size=page_size)


@pytest.mark.parametrize(
    ("at", "unnamed", "kept", "continued"),
    [
        (0, 0, 0, "repo.new"),
        (1, 0, 1, "repo.1"),
        (5, 0, 5, "repo.5"),
        (4, 2, 2, "repo.2"),
        (3, 3, 0, "repo.new"),
    ],
)
def test_an_entry_of_an_unknown_kind_is_left_to_the_backup_that_holds_it(
    at: int, unnamed: int, kept: int, continued: str
) -> None:
    info = with_commit(log_with_unknown(at, unnamed=unnamed))
    assert len(info.latest_updates) == 1 + kept
    assert info.repo_before_updates == continued
    assert decode_repo_info(encode_repo_info(info)).equals(info)


def test_the_page_size_counts_as_well_where_a_kind_is_unknown() -> None:
    info = with_commit(log_with_unknown(5), page_size=3)
    assert len(info.latest_updates) == 3
    assert info.repo_before_updates == "repo.2"


@pytest.mark.parametrize("at", [0, 3])
def test_an_entry_of_an_unknown_kind_is_never_written(at: int) -> None:
    with pytest.raises(FormatError, match="is of kind 97, kinds 1 to 16 can be written"):
        encode_repo_info(log_with_unknown(at))


def test_entries_of_every_kind_are_shown_the_same_from_columns_and_one_by_one() -> None:
    kinds = [*VALUES, *VALUES, UpdateKind.CONFIG_CHANGED]
    entries = [
        Update(kind, 10**15 + number, VALUES.get(kind, {}), f"backup {number}")
        for number, kind in enumerate(kinds)
    ]
    entries.append(Update(77, 5, {}, None))
    table = UpdateTable.from_updates(entries)
    from_columns = list(values.Update.all_of(OperationsPage(table, None)))
    one_by_one = list(values.Update.all_of(OperationsPage(entries, None)))
    assert from_columns == one_by_one
    assert list(map(repr, from_columns)) == list(map(repr, one_by_one))
    assert from_columns[0].kind == values.UpdateType.NewCommit("main", SnapshotId(b"n" * 12).text)
