"""`blame` and `bisect`: which commit wrote it, and which one changed it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.cli.commands.blame import find_change
from icefloe.errors import InvalidInputError
from icefloe.maintenance.blame import blame_chunks, blame_nodes
from icefloe.storage.run import run_blocking
from tests.cli.calling import here, opened, told


def test_blame_names_the_last_commit(place: Path) -> None:
    rows = {row["path"]: row for row in told("blame", place)}
    assert rows["/surface"]["chunks"] is None
    assert rows["/surface"]["metadata"]["message"] == "first"
    assert rows["/surface/t2m"]["metadata"]["message"] == "first"
    assert rows["/surface/t2m"]["chunks"]["message"] == "second [bold]"
    chunks = told("blame", place, "surface/t2m")
    assert [(row["index"], row["commit"]["message"]) for row in chunks] == [
        ([0, 0], "second [bold]"),
        ([1, 0], "first"),
    ]
    text = here("blame", place).stdout.splitlines()
    assert text[0].split() == ["node", "last", "write", "commit"]
    assert text[3].startswith("/surface/t2m  chunks")
    assert here("blame", f"{place}@v1", "surface/t2m", "-n", "1").stdout.startswith("0/0")
    assert here("blame", place, "nothing").returncode == 3
    assert here("blame", place, "surface").returncode == 2
    assert here("blame", place, "-n", "1").returncode == 2


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_blame_is_what_a_model_says(spec_version: int, seed: int) -> None:
    """Random writes, deletions and expirations; the model remembers the last write."""
    rng = np.random.default_rng(seed)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    wrote: dict[str, dict[int, str]] = {}
    changed: dict[str, str] = {}
    for number in range(25):
        session = repo.writable_session("main")
        name = "abc"[int(rng.integers(3))]
        what = rng.choice(["write", "write", "attributes", "again"])
        written: list[int] = []
        touches_metadata = name not in wrote or what == "again"
        if touches_metadata:
            zarr.create_array(
                session.store, name=name, shape=(6,), chunks=(1,), dtype="i8", overwrite=True
            )
            wrote[name] = {}
        array: Any = zarr.open_array(session.store, path=name)
        if what == "attributes":
            array.attrs["number"] = number
            touches_metadata = True
        else:
            written = rng.choice(6, 2, replace=False).tolist()
            for at in written:
                array[at] = int(rng.integers(1, 1 << 40))
        made = session.commit(str(number))
        wrote[name] |= dict.fromkeys(written, made)
        changed |= {name: made} if touches_metadata else {}
    workspace = repo.readonly_session("main").workspace
    for one in run_blocking(blame_nodes(repo.handle, workspace)):
        if one.path != "/":
            assert one.metadata is not None
            assert one.metadata.id.text == changed[one.path[1:]]
            newest = [repo.lookup_snapshot(each) for each in wrote[one.path[1:]].values()]
            last = max(newest, key=lambda each: each.written_at, default=None)
            assert (one.chunks and one.chunks.id.text) == (last and last.id)
    for name, by_chunk in wrote.items():
        found = run_blocking(blame_chunks(repo.handle, workspace, f"/{name}"))
        assert {
            at: found.commits[number].id.text
            for [at], number in zip(found.index.tolist(), found.number.tolist(), strict=True)
        } == by_chunk


def test_blame_after_an_expiration_names_the_commit_that_took_over(place: Path) -> None:
    repo = opened(place)
    with repo.transaction("main", message="third") as store:
        zarr.open_array(store, path="surface/t2m").attrs["units"] = "K"
    repo.delete_tag("v1")
    repo.expire_snapshots(keep_last=1)
    rows = told("blame", place, "surface/t2m")
    assert {row["commit"]["message"] for row in rows} == {"third"}


@given(st.integers(2, 40), st.data())
def test_bisection_finds_the_change(length: int, data: st.DataObject) -> None:
    change = data.draw(st.integers(1, length - 1))
    skipped = data.draw(st.sets(st.integers(1, max(1, length - 2)))) - {0, length - 1}
    asked: list[int] = []

    def outcome(at: int) -> bool | None:
        asked.append(at)
        return None if at in skipped else at >= change

    found, unknown = find_change(length, outcome)
    assert change in (*unknown, found)
    assert found not in skipped
    assert all(at in skipped for at in unknown)
    assert len(asked) == len(set(asked))
    assert skipped or len(asked) <= 3 + int(np.ceil(np.log2(length)))


def test_bisection_needs_two_outcomes() -> None:
    with pytest.raises(InvalidInputError, match="same at both ends"):
        find_change(5, lambda at: True)
    with pytest.raises(InvalidInputError, match="cannot be tested"):
        find_change(5, lambda at: None)


def test_bisect_runs_a_command(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    repo = opened(place)
    for number in range(3):
        with repo.transaction("main", message=f"more {number}") as store:
            zarr.open_array(store, path="surface/t2m")[1] = number
    program = (
        "import sys, zarr, icefloe.api.addresses as a, icefloe\n"
        "print('looking at', sys.argv[1])\n"
        "at = a.parse_address(sys.argv[1])\n"
        "session = icefloe.Repository.open(at.storage()).readonly_session(snapshot_id=at.ref)\n"
        "sys.exit(int(zarr.open_array(session.store, path='surface/t2m', mode='r')[0, 0] > 275))\n"
    )
    done = here("bisect", "--json", place, "v1", sys.executable, "-c", program, "{}")
    found = json.loads(done.stdout)
    assert found["commit"]["message"] == "second [bold]"
    assert "looking at" in capfd.readouterr().err
    done = here("bisect", "--exists", "surface/t2m", place, "1CECHNKREP0F1RSTCMT0")
    assert done.stdout.splitlines()[1].endswith("first")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["v1"], "Give a COMMAND or --exists PATH"),
        (["v1", "no-such-program"], "cannot be run"),
        (["v1", "sh", "-c", "exit 126"], "no outcome"),
        (["v1", "true"], "same at both ends"),
        (["main", "true"], "not an ancestor"),
        (["v1", "sh", "-c", "exit 125"], "cannot be tested"),
    ],
)
def test_bisect_says_what_is_wrong(place: Path, words: list[str], said: str) -> None:
    done = here("bisect", place, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
