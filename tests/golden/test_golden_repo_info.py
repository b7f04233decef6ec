"""Repo objects of official writers, and the backups of earlier ones, give what official reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import SnapshotId
from tests.golden.decoded import (
    Json,
    expectation,
    microseconds,
    repo_infos,
    repo_states,
    with_spec,
    without_header,
)

every_repository = pytest.mark.parametrize("name", with_spec(2))

FLAGS = {3: "move_node", 4: "create_tag", 5: "delete_tag"}
AVAILABILITY = {
    RepoAvailability.ONLINE: "online",
    RepoAvailability.READ_ONLY: "read_only",
    RepoAvailability.OFFLINE: "offline",
}


def camel_case(kind: UpdateKind) -> str:
    special = {UpdateKind.GC_RAN: "GCRan"}
    return special.get(kind, kind.name.title().replace("_", ""))


def status_as_json(status: RepoStatus) -> Json:
    return {
        "availability": AVAILABILITY[RepoAvailability(status.availability)],
        "set_at_us": status.set_at,
        "limited_availability_reason": status.limited_availability_reason,
    }


def update_as_json(update: Update) -> Json:
    """An entry in the form of the official operations log."""
    fields: Json = {}
    for name, value in update.values.items():
        match value:
            case RepoStatus():
                fields[name] = status_as_json(value)
            case SnapshotId():
                fields[name] = value.text
            case _:
                fields[name] = value
    if update.kind == UpdateKind.FEATURE_FLAG_CHANGED and not fields.pop("is_set"):
        fields["new_value"] = None
    return {
        "type": camel_case(UpdateKind(update.kind)),
        "fields": fields,
        "updated_at_us": update.updated_at,
        "backup_path": update.backup_path,
    }


def inspected_update(entry: Json) -> Json:
    """An entry of an official `inspect`, in the form of the operations log."""
    fields = dict(entry["update_type"])
    kind = fields.pop("type").removesuffix("Update")
    if "status" in fields:
        status = fields["status"]
        names = {"Online": "online", "ReadOnly": "read_only", "Offline": "offline"}
        fields["status"] = {
            "availability": names[status["availability"]],
            "set_at_us": microseconds(status["set_at"]),
            "limited_availability_reason": status["limited_availability_reason"],
        }
    for version in ("from_version", "to_version"):
        if version in fields:
            fields[version] = int(fields[version].removesuffix(".0"))
    return {
        "type": kind,
        "fields": fields,
        "updated_at_us": microseconds(entry["updated_at"]),
        "backup_path": entry.get("backup_path"),
    }


def snapshot_as_json(info: SnapshotInfo) -> Json:
    parent = {} if info.parent_id is None else {"parent_id": info.parent_id.text}
    return {
        "id": info.id.text,
        **parent,
        "flushed_at": info.flushed_at,
        "message": info.message,
        "metadata": info.metadata,
    }


def as_inspected(info: RepoInfo) -> Json:
    """A decoded repo object in the form of an official `inspect`, times in microseconds."""
    continued = {}
    if info.repo_before_updates is not None:
        continued["repo_before_updates"] = info.repo_before_updates
    return {
        "spec_version": "2.0",
        "branches": {name: tip.text for name, tip in info.branches.items()},
        "tags": {name: tip.text for name, tip in info.tags.items()},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [snapshot_as_json(info.snapshots[key]) for key in info.snapshots],
        "metadata": info.metadata,
        "latest_updates": [update_as_json(update) for update in info.latest_updates],
        **continued,
    }


def expected_inspection(state: Json) -> Json:
    found = without_header(state["inspect"])
    found["snapshots"] = [
        {**snapshot, "flushed_at": microseconds(snapshot["flushed_at"])}
        for snapshot in found["snapshots"]
    ]
    found["latest_updates"] = [inspected_update(entry) for entry in found["latest_updates"]]
    return found


@every_repository
def test_each_repo_object_holds_the_refs_snapshots_and_updates_official_reports(name: str) -> None:
    decoded = {key: as_inspected(info) for key, info in repo_infos(name).items()}
    assert decoded == {key: expected_inspection(state) for key, state in repo_states(name).items()}


@every_repository
def test_each_repo_object_holds_the_status_and_metadata_official_reports(name: str) -> None:
    for key, state in repo_states(name).items():
        info = repo_infos(name)[key]
        assert status_as_json(info.status) == state["status"], key
        assert info.metadata == state["metadata"], key


@every_repository
def test_each_repo_object_holds_the_feature_flags_official_reports(name: str) -> None:
    for key, state in repo_states(name).items():
        info = repo_infos(name)[key]
        settings: dict[int, bool | None] = dict.fromkeys(FLAGS)
        settings |= dict.fromkeys(info.enabled_feature_flags or (), True)
        settings |= dict.fromkeys(info.disabled_feature_flags or (), False)
        expected = {flag["id"]: flag["setting"] for flag in state["feature_flags"]}
        assert settings == expected, key


def test_a_flag_list_that_became_empty_is_told_from_one_that_never_was() -> None:
    infos = repo_infos("2.3.0-history").values()
    assert {info.disabled_feature_flags for info in infos} == {None, (4,), (), (5,)}


def read_operations_log(name: str) -> Iterator[Update]:
    """All entries, newest first; a backup continues where the repo object stops."""
    infos = repo_infos(name)
    page, backup = infos["repo"], None
    while True:
        first, *others = page.latest_updates
        yield first if backup is None else replace(first, backup_path=backup)
        yield from others
        backup = page.repo_before_updates
        if backup is None:
            return
        page = infos[backup]


@every_repository
def test_the_operations_log_is_read_across_all_its_pages(name: str) -> None:
    log = [update_as_json(update) for update in read_operations_log(name)]
    assert log == expectation(name)["ops_log"]


def test_some_operations_log_has_several_pages_and_every_kind_of_update_occurs() -> None:
    assert any(info.repo_before_updates for info in repo_infos("2.3.0-paged-ops-log").values())
    seen = {update.kind for name in with_spec(2) for update in read_operations_log(name)}
    assert seen == set(UpdateKind)


@every_repository
def test_ancestry_follows_the_parents_that_official_follows(name: str) -> None:
    info, expected = repo_infos(name)["repo"], expectation(name)["ancestry"]
    for refs, kind in ((info.branches, "branches"), (info.tags, "tags")):
        found = {
            ref: [ancestry_entry(info.snapshots[key]) for key in info.snapshots.ancestry(tip)]
            for ref, tip in refs.items()
        }
        assert found == expected[kind]


def ancestry_entry(info: SnapshotInfo) -> Json:
    return {
        "id": info.id.text,
        "parent_id": None if info.parent_id is None else info.parent_id.text,
        "written_at_us": info.flushed_at,
        "message": info.message,
        "metadata": info.metadata,
    }


@every_repository
def test_pruned_logs_are_those_that_official_merges_into_a_snapshot_s_own(name: str) -> None:
    info = repo_infos(name)["repo"]
    pruned: dict[str, Any] = {
        key.text: [log.text for log in snapshot.pruned_ancestor_tx_logs]
        for key, snapshot in info.snapshots.items()
        if snapshot.pruned_ancestor_tx_logs
    }
    merged = {
        key: log["synthetic_composite"]["merged_pruned_ancestor_tx_logs"]
        + log["synthetic_composite"]["missing_tx_logs"]
        for key, log in expectation(name)["transaction_logs"].items()
        if "synthetic_composite" in log
    }
    assert pruned == merged


def test_some_repository_has_pruned_logs() -> None:
    infos = repo_infos("2.3.0-expired-spec2")["repo"].snapshots
    assert any(snapshot.pruned_ancestor_tx_logs for snapshot in infos.values())
