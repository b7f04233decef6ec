"""`stats`, `inspect`, `expire`, `gc`, `rewrite-manifests`, `verify` and `repair`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from tests.cli.calling import here, opened, told


def chunk_files(place: Path) -> set[str]:
    return {path.name for path in (place / "chunks").iterdir()}


def test_stats_tell_what_only_one_snapshot_has(place: Path) -> None:
    shown = told("stats", place, "--history")
    second, first, empty = shown["snapshots"]
    sizes = {path.name: path.stat().st_size for path in (place / "chunks").iterdir()}
    assert shown["repository"]["native_bytes"] == sum(sizes.values())
    [array] = second["arrays"]
    assert (array["path"], array["chunks"]) == ("/surface/t2m", 2)
    rows = told("chunks", place, "surface/t2m")
    old = told("chunks", f"{place}@v1", "surface/t2m")
    assert array["native_bytes"] == sum(row["length"] for row in rows)
    # The first chunk was written again, the second one is in both snapshots.
    assert array["exclusive_bytes"] == rows[0]["length"]
    assert first["total"]["exclusive_bytes"] == old[0]["length"]
    assert empty["arrays"] == []
    text = here("stats", f"{place}@v1").stdout
    assert text.splitlines()[0] == "array         chunks  native  inline  virtual  exclusive"
    assert "/surface/t2m" in text
    assert here("stats", place, "-n", "1").returncode == 2


@pytest.mark.parametrize("threshold", [0, 512])
def test_exclusive_bytes_are_what_an_expiration_frees(tmp_path: Path, threshold: int) -> None:
    """Random commits; the model looks at the references of every snapshot."""
    rng = np.random.default_rng(threshold)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=threshold)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "r"))
    repo = icefloe.Repository.create(storage, config)
    with repo.transaction("main", message="made") as store:
        for name in "ab":
            zarr.create_array(store, name=name, shape=(8,), chunks=(1,), dtype="i8")
    for number in range(6):
        with repo.transaction("main", message=str(number)) as store:
            name = "ab"[int(rng.integers(2))]
            array: Any = zarr.open_array(store, path=name)
            for at in rng.choice(8, 3, replace=False).tolist():
                array[at] = int(rng.integers(1, 1 << 60))
    repo.create_branch("dev", [*repo.ancestry(branch="main")][2].id)
    found = told("stats", tmp_path / "r", "--history")["snapshots"]
    places: dict[str, set[tuple[str, int]]] = {}
    if threshold == 0:
        for entry in repo.ancestry(branch="main"):
            for name in "ab" if entry.message != "Repository initialized" else "":
                rows = told("chunks", f"{tmp_path / 'r'}@{entry.id}", name)
                places.setdefault(entry.id, set()).update(
                    (row["location"], row["length"]) for row in rows
                )
        for one in found:
            mine = places.get(one["snapshot"], set())
            others = set().union(*(v for k, v in places.items() if k != one["snapshot"]))
            assert one["total"]["exclusive_bytes"] == sum(size for _, size in mine - others)
            assert one["total"]["native_bytes"] == sum(size for _, size in mine)
    else:
        assert all(one["total"]["native_bytes"] == 0 for one in found)
        assert found[0]["total"]["exclusive_bytes"] > 0


def test_inspect_shows_files(place: Path) -> None:
    tip = told("log", place)[0]["id"]
    snapshot = told("inspect", place)
    assert (snapshot["id"], snapshot["commit_message"]) == (tip, "second [bold]")
    [manifest] = snapshot["manifests"]
    assert told("inspect", place, "manifest", manifest["id"])["total_native"] == 2
    assert told("inspect", f"{place}@v1", "log")["new_arrays"] != []
    assert told("inspect", place, "repo")["tags"].keys() == {"v1"}
    assert json.loads(here("inspect", place, "snapshot", tip).stdout) == snapshot
    assert "needs the ID" in here("inspect", place, "manifest").stderr
    assert here("inspect", place, "manifest", "nonsense").returncode == 2
    assert here("inspect", place, "snapshot", "1CECHNKREP0F1RSTCM00").returncode == 3


def test_expire_and_gc(place: Path, tmp_path: Path) -> None:
    before = chunk_files(place)
    told("tag", "delete", place, "v1", "--yes")
    assert told("expire", place, "--keep-last", "1", "--dry-run")["dry_run"] is True
    assert len(told("log", place)) == 3
    refused = here("expire", place, "--keep-last", "1")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    done = here("expire", place, "--keep-last", "1", "--yes")
    assert done.stdout.startswith("Expired 1 snapshot.")
    plan = tmp_path / "plan"
    saved = here("gc", place, "--older-than", "now", "--save-plan", plan)
    assert saved.returncode == 0
    assert "no branch or tag leads to them" in saved.stdout
    assert chunk_files(place) == before
    assert told("gc", place, "--older-than", "now", "--dry-run")["plan"]["objects"] > 0
    assert "--yes" in here("gc", place, "--plan", plan).stderr
    done = told("gc", place, "--plan", plan, "--yes")
    assert done["deleted"]["chunks_deleted"] == 1
    assert len(chunk_files(place)) == len(before) - 1
    assert told("gc", place, "--older-than", "now", "--yes")["deleted"] is None
    assert told("verify", place)["healthy"] is True


def test_gc_that_lists_nothing(place: Path) -> None:
    before = chunk_files(place)
    first = told("gc", place, "--older-than", "now", "--incremental", "--yes")["deleted"]
    assert first["looked_for_orphans"] is True
    assert "no memory" in first["full_because"]
    told("tag", "delete", place, "v1", "--yes")
    told("expire", place, "--keep-last", "1", "--yes")
    short = ("gc", place, "--older-than", "now", "--incremental")
    assert "does not look for orphans" in here(*short, "--dry-run").stdout
    assert "--yes" in here(*short).stderr
    assert chunk_files(place) == before
    done = told(*short, "--yes")["deleted"]
    assert (done["chunks_deleted"], done["looked_for_orphans"]) == (1, False)
    assert len(chunk_files(place)) == len(before) - 1
    full = told(*short, "--full-every", "2", "--yes")["deleted"]
    assert full["full_because"] == "one of 2 collections is a full one"
    assert "goes without plans" in here(*short, "--save-plan", "x").stderr
    assert told("verify", place)["healthy"] is True


def test_expire_keeps_fork_points_and_warns_before_it_asks(place: Path) -> None:
    told("tag", "delete", place, "v1", "--yes")
    fork = told("log", place)[0]["id"]
    told("branch", "create", f"{place}@main", "dev")
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    for branch in ("main", "dev"):
        session = repo.writable_session(branch)
        zarr.open_group(session.store, mode="a").create_group(branch)
        session.commit(f"on {branch}")
    kept = told("expire", place, "--keep-last", "1", "--dry-run")
    assert fork not in kept["expired"]
    assert kept["warnings"] == []
    asked = here("expire", place, "--keep-last", "1", "--cut-fork-points")
    assert asked.returncode == 2
    assert asked.stderr.index("branch 'dev'") < asked.stderr.index("--yes")
    assert len(told("log", place)) == 4, "nothing has happened yet"
    cut = told("expire", place, "--keep-last", "1", "--cut-fork-points", "--yes")
    assert fork in cut["expired"]
    [warning] = cut["warnings"]
    assert "branch 'main'" in warning
    assert fork in warning


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["expire"], "Say what is to expire"),
        (["gc"], "--older-than 7d"),
        (["gc", "--older-than", "3x"], "30d, 12h"),
        (["gc", "--plan", "nothing.plan"], "no such plan"),
        (["repair", "--rescue", "--virtual-sources"], "--rescue goes alone"),
    ],
)
def test_maintenance_says_what_is_missing(place: Path, words: list[str], said: str) -> None:
    done = here(words[0], place, *words[1:])
    assert done.returncode == 2
    assert said in done.stderr


def test_a_snapshot_that_is_not_there_does_not_expire(place: Path) -> None:
    done = here("expire", place, "--snapshot", "nonsense", "--dry-run")
    assert (done.returncode, "'nonsense' is neither" in done.stderr) == (3, True)


def test_ages_and_times(place: Path) -> None:
    for when in ("30d", "12h", "45m", "2w", "10s", "2020-01-01", "2020-01-01T12:00Z", "now"):
        assert told("gc", place, "--older-than", when, "--dry-run")["plan"]["objects"] == 0


def test_rewrite_manifests_is_a_commit_to_a_branch(place: Path) -> None:
    made = told("rewrite-manifests", place, "-m", "again")
    assert told("log", place)[0]["message"] == "again"
    assert len(made["manifests"]) == 1
    amended = told("rewrite-manifests", f"{place}@main", "--amend")
    assert [entry["message"] for entry in told("log", place)][:2] == [
        "rewrote manifests",
        "second [bold]",
    ]
    assert amended["branch"] == "main"
    assert "is no branch" in here("rewrite-manifests", f"{place}@v1").stderr


def test_damage_is_found_and_repaired(place: Path) -> None:
    healthy = here("verify", place)
    assert (healthy.returncode, healthy.stdout.splitlines()[-1]) == (0, "healthy")
    lost = told("chunks", place, "surface/t2m")[0]["location"]
    (place / lost).unlink()
    sick = told("verify", place, code=6)
    assert sick["counts"]["missing-chunk-object"] == 1
    assert here("verify", place).returncode == 6
    assert "drop 1 references" in here("repair", place, "--dry-run").stdout
    assert here("repair", place).returncode == 2
    made = told("repair", place, "--yes")
    assert made["snapshot"] == told("log", place)[0]["id"]
    assert told("repair", place) == {"actions": [], "snapshot": None}
    array: Any = zarr.open_array(
        opened(place).readonly_session("main").store, path="surface/t2m", mode="r"
    )
    assert array[0, 0] == 0  # the fill value
    assert array[3, 0] == 273


def test_a_lost_repo_object_is_rescued(place: Path) -> None:
    (place / "repo").write_bytes(b"nonsense")
    assert here("log", place).returncode == 6
    assert told("verify", place, code=6)["healthy"] is False
    assert here("repair", place, "--rescue", "--dry-run").stdout.startswith("rebuild repo")
    assert told("repair", place, "--rescue", "--yes")["done"] is True
    assert told("log", place)[0]["message"] == "second [bold]"
    assert told("repair", place, "--rescue")["done"] is False


def test_virtual_references_follow_files_that_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "data").write_bytes(bytes(range(80)))
    config = icefloe.RepositoryConfig()
    for folder in (old, new):
        files = icefloe.local_filesystem_store(str(folder))
        config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(folder.as_uri() + "/", files)
        )
    place = tmp_path / "r"
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(place)), config)
    with repo.transaction("main", message="refs") as store:
        zarr.create_array(
            store, name="a", shape=(10,), chunks=(10,), dtype="i8", compressors=None, filters=None
        )
        store.set_virtual_ref("a/c/0", old.as_uri() + "/data", offset=0, length=80)
    (old / "data").unlink()
    prefixes = [word for one in (old, new) for word in ("--allow-virtual", one.as_uri())]
    sick = told("verify", place, "--virtual-sources", *prefixes, code=6)
    assert sick["counts"] == {"missing-source": 1}
    words = ["--repoint", old.as_uri() + "/", new.as_uri() + "/", *prefixes, "--yes"]
    assert told("repair", place, *words)["snapshot"]
    assert told("repair", place, "--virtual-sources", *prefixes)["actions"] == []
    [row] = told("chunks", place, "a")
    assert row["location"] == new.as_uri() + "/data"
