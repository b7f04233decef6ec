"""The list of snapshots in a repo object. What earlier snapshots look like in the file is kept from
commit to commit, and must stay what a fresh encoding would say."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.format.columns import BlobColumn
from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot_table import ListedSnapshots, SnapshotInfo, SnapshotTable
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId


def repo_of(snapshots: SnapshotTable) -> RepoInfo:
    status = RepoStatus(RepoAvailability.ONLINE, 1)
    updates = (Update(UpdateKind.REPO_INITIALIZED, 1),)
    return RepoInfo({"main": FIRST_SNAPSHOT_ID}, snapshots, status, updates)


def noise(number: int) -> SnapshotId:
    return SnapshotId(blake2b(number.to_bytes(4), digest_size=12).digest())


def snapshot(number: int, parent: SnapshotId) -> SnapshotInfo:
    metadata: dict[str, Any] = {"run": number, "größe": [1.5, None]} if number % 3 == 0 else {}
    pruned = (noise(1000 + number), noise(2000 + number)) if number % 5 == 0 else ()
    return SnapshotInfo(noise(number), parent, number + 2, f"nº {number}", metadata, pruned)


@pytest.mark.parametrize("every", [1, 7, 150])
def test_a_list_that_grows_reads_as_if_it_were_encoded_anew(every: int) -> None:
    infos = [SnapshotInfo(FIRST_SNAPSHOT_ID, None, 1, "first")]
    table = SnapshotTable.from_infos(infos)
    for number in range(150):
        # A tree: every snapshot is a child of one that is about half as old.
        infos.append(snapshot(number, infos[len(infos) // 2].id))
        table = table.with_snapshot(infos[-1])
        if (number + 1) % every == 0 or number == 149:
            found = decode_repo_info(encode_repo_info(repo_of(table))).snapshots
            assert found.equals(SnapshotTable.from_infos(infos))
            assert found.equals(table)
            rows = np.arange(len(table))
            assert table.infos(rows) == SnapshotTable.from_infos(infos).infos(rows)


def test_what_was_written_is_not_what_a_changed_list_writes() -> None:
    table = SnapshotTable.from_infos([SnapshotInfo(FIRST_SNAPSHOT_ID, None, 1, "first")])
    encode_repo_info(repo_of(table))
    message = BlobColumn.from_values(["other"], is_text=True)
    other = ListedSnapshots(table.id, table.parent, table.columns._replace(message=message))
    found = decode_repo_info(encode_repo_info(repo_of(other))).snapshots
    assert found[FIRST_SNAPSHOT_ID].message == "other"


def test_a_snapshot_is_listed_once() -> None:
    table = SnapshotTable.from_infos([SnapshotInfo(FIRST_SNAPSHOT_ID, None, 1, "first")])
    table = table.with_snapshot(snapshot(1, FIRST_SNAPSHOT_ID))
    with pytest.raises(FormatError, match="is listed already"):
        table.with_snapshot(snapshot(1, FIRST_SNAPSHOT_ID))


def test_one_snapshot_reads_as_it_does_among_many() -> None:
    infos = [SnapshotInfo(FIRST_SNAPSHOT_ID, None, 1, "first")]
    for number in range(20):
        infos.append(snapshot(number, infos[-1].id))
    table = SnapshotTable.from_infos(infos)
    rows = np.arange(len(table))
    assert [table.info(row) for row in rows.tolist()] == table.infos(rows)
    assert {info.id: info for info in table.infos(rows)} == {info.id: info for info in infos}


def test_snapshots_with_equal_metadata_do_not_share_it() -> None:
    values = {"who": "a", "more": {"list": [1, {}]}}
    infos = [
        SnapshotInfo(noise(number), None, 1, "same", {"each": values, "n": 1})
        for number in range(2)
    ]
    one, other = SnapshotTable.from_infos(infos).metadata(np.arange(2))
    one["each"]["more"]["list"][1]["changed"] = True
    assert other == {"each": values, "n": 1}


def test_metadata_that_cannot_be_read_is_named() -> None:
    infos = [SnapshotInfo(noise(number), None, 1, "same", {"a": 1}) for number in range(3)]
    table = SnapshotTable.from_infos(infos)
    values = [*table.columns.metadata_value.to_list()[:2], b"\0"]
    columns = table.columns._replace(metadata_value=BlobColumn.from_values(values))
    damaged = ListedSnapshots(table.id, table.parent, columns)
    name = SnapshotId(table.id[2].tobytes())
    for read in (lambda: damaged.info(2), lambda: damaged.metadata(np.arange(3))):
        with pytest.raises(FormatError, match=f"snapshot {name}: metadata 'a'"):
            read()


@pytest.mark.parametrize("names", [["ab", "c"], ["a", "bc"], ["a", "b", ""], [""], []])
def test_metadata_reads_the_same_whether_names_repeat_or_not(names: list[str]) -> None:
    """Names may be as long together and yet others."""
    plain = [dict.fromkeys(names, number) for number in range(20)]
    for other in (plain[0], {"ab": 1, "c": [2]}, {}):
        infos = [
            SnapshotInfo(noise(number), None, 1, "same", metadata)
            for number, metadata in enumerate([*plain, other])
        ]
        table = SnapshotTable.from_infos(infos)
        rows = np.arange(len(table))
        assert table.metadata(rows) == [table.info(row).metadata for row in rows.tolist()]
        assert table.infos(rows) == sorted(infos, key=lambda info: info.id)
