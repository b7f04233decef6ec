"""Where objects live below the root, and the names of backups."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format import layout
from icefloe.ids import FIRST_SNAPSHOT_ID, ChunkId, ManifestId, ObjectId

TEXT = "000G40R40M30E209185G"
RAW = bytes(range(12))


def test_objects_are_filed_by_kind_under_their_id() -> None:
    assert layout.snapshot_key(FIRST_SNAPSHOT_ID) == "snapshots/1CECHNKREP0F1RSTCMT0"
    assert layout.transaction_log_key(FIRST_SNAPSHOT_ID) == "transactions/1CECHNKREP0F1RSTCMT0"
    assert layout.manifest_key(ManifestId(RAW)) == f"manifests/{TEXT}"
    assert layout.chunk_key(ChunkId(RAW)) == f"chunks/{TEXT}"


def test_refs_of_version_1_are_folders_named_after_their_kind() -> None:
    assert layout.branch_key("main") == "refs/branch.main/ref.json"
    assert layout.tag_key("v1.0 ü") == "refs/tag.v1.0 ü/ref.json"
    # One specification page says `tags.`; no release ever wrote that.
    assert layout.tag_tombstone_key("v1") == "refs/tag.v1/ref.json.deleted"


@pytest.mark.parametrize("name", ["", "/", "a/b", "/a"])
@pytest.mark.parametrize("key", [layout.branch_key, layout.tag_key, layout.tag_tombstone_key])
def test_a_ref_name_that_is_no_folder_name_is_refused(key: object, name: str) -> None:
    assert callable(key)
    with pytest.raises(InvalidInputError, match=re.escape(repr(name))) as caught:
        key(name)
    assert caught.value.kind == ErrorKind.INVALID_REF_NAME


def test_a_backup_is_named_after_what_it_replaces_and_when() -> None:
    # Both numbers are from a repository that official 2.3.0 wrote.
    written_at = dt.datetime(2026, 11, 15, 21, 8, 54, 947000, tzinfo=dt.UTC)
    now_ms = int(written_at.timestamp() * 1000)
    name = layout.backup_name(layout.REPO, now_ms, ObjectId(RAW))
    assert name == f"repo.30708903065053.{TEXT}"
    assert layout.backup_name(layout.CONFIG_YAML, now_ms, ObjectId(RAW)).startswith("config.yaml.3")


def test_newer_backups_sort_before_older_ones() -> None:
    times = [0, 1, 10**12, 1794776934947, 32503679999999]
    names = [layout.backup_name("repo", now_ms, ObjectId(RAW)) for now_ms in times]
    assert sorted(names) == names[::-1]
    assert all(re.fullmatch(r"repo\.\d{14}\.[0-9A-Z]{20}", name) for name in names)


def test_folders_end_with_a_slash_and_single_objects_do_not() -> None:
    folders = (
        layout.SNAPSHOTS,
        layout.MANIFESTS,
        layout.TRANSACTIONS,
        layout.CHUNKS,
        layout.REFS,
        layout.OVERWRITTEN,
    )
    assert folders == (
        "snapshots/",
        "manifests/",
        "transactions/",
        "chunks/",
        "refs/",
        "overwritten/",
    )
    assert (layout.REPO, layout.CONFIG_YAML) == ("repo", "config.yaml")
