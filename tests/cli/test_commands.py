"""Commands about history, refs, nodes and settings; text, JSON, and what goes wrong first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import icefloe
from icefloe.cli import program
from tests.cli.calling import here, told


def test_a_repository_is_created_once(tmp_path: Path) -> None:
    first = here("init", tmp_path / "new")
    assert (first.returncode, first.stdout) == (0, f"Created a repository at {tmp_path}/new.\n")
    again = here("init", tmp_path / "new")
    assert again.returncode == 2
    assert "not empty" in again.stderr
    assert told("init", tmp_path / "old", "--spec-version", "1")["spec_version"] == 1


def test_info_names_version_refs_and_nodes(place: Path) -> None:
    found = told("info", place)
    assert (found["spec_version"], found["branches"], found["tags"]) == (2, ["main"], ["v1"])
    assert (found["groups"], found["arrays"], found["snapshot"]["message"]) == (
        2,
        1,
        "second [bold]",
    )
    text = here("info", f"{place}@v1").stdout
    assert "first" in text
    assert "2 groups, 1 array\n" in text


def test_log_follows_the_ref(place: Path) -> None:
    messages = [entry["message"] for entry in told("log", place)]
    assert messages == ["second [bold]", "first", "Repository initialized"]
    assert [entry["message"] for entry in told("log", f"{place}@tag.v1", "-n", "1")] == ["first"]
    # Text of a repository is never taken for markup of the terminal.
    assert "second [bold]" in here("log", place).stdout
    drawn = here("log", "--graph", place).stdout
    assert "(tag: v1)" in drawn
    assert "\033" not in drawn


def test_log_says_what_a_result_was_computed_from(place: Path) -> None:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    session = repo.writable_session("main")
    source = {"repository": "s3://bucket/era5", "snapshot_id": "A" * 20, "group": "/surface"}
    session.commit("means", {"icefloe.derived": {"sources": [source]}}, allow_empty=True)
    line = f"    computed from /surface of snapshot {'A' * 20} in s3://bucket/era5\n"
    assert f"means\n{line}" in here("log", place).stdout
    for odd in ("text", {"sources": ["text"]}):  # metadata is anybody's
        session = repo.writable_session("main")
        session.commit("odd", {"icefloe.derived": odd}, allow_empty=True)
        assert here("log", place, "-n", "1").stdout.endswith("odd\n")


def test_show_and_diff_tell_what_changed(place: Path) -> None:
    shown = told("show", place)
    assert shown["changes"]["updated_chunks"] == {"/surface/t2m": [[0, 0]]}
    assert [file["num_chunk_refs"] for file in shown["manifests"]] == [2]
    assert "second [bold]" in here("show", place).stdout
    assert told("diff", place, "v1") == shown["changes"]
    backwards = here("diff", place, "main", "v1")
    assert backwards.returncode == 2
    assert "not an ancestor" in backwards.stderr


def test_ops_lists_operations(place: Path) -> None:
    kinds = [entry["operation"]["type"] for entry in told("ops", place)]
    assert kinds == ["NewCommit", "TagCreated", "NewCommit", "RepoInitialized"]
    assert "TagCreated          name v1" in here("ops", place, "-n", "2").stdout


def test_tree_and_chunks(place: Path) -> None:
    assert here("tree", place).stdout.splitlines() == [
        "/",
        "    surface/",
        "        t2m  float32 (t: 4, x: 6) chunks [2, 6]",
    ]
    assert [row["path"] for row in told("tree", place, "surface")] == ["/surface", "/surface/t2m"]
    rows = told("chunks", place, "surface/t2m")
    assert [(row["index"], row["type"]) for row in rows] == [([0, 0], "native"), ([1, 0], "native")]
    assert all((place / row["location"]).stat().st_size == row["length"] for row in rows)
    assert here("tree", place, "nothing").returncode == 3
    assert here("chunks", place, "surface").returncode == 2


def test_branches_and_tags(place: Path) -> None:
    first = told("tag", "list", place)["v1"]
    assert told("branch", "create", f"{place}@v1", "dev") == {"branch": "dev", "snapshot": first}
    assert here("branch", "create", place, "dev").returncode == 4
    assert told("branch", "list", place)["dev"] == first
    assert told("reset", place, "main", "dev", "--yes")["after"] == first
    assert told("log", place)[0]["message"] == "first"
    unasked = here("branch", "delete", place, "dev")
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    assert here("branch", "delete", place, "dev", "--yes").returncode == 0
    assert here("branch", "delete", place, "dev", "--yes").returncode == 3
    assert here("tag", "create", place, "v2").stdout == f"Created tag v2 at {first}.\n"
    assert here("tag", "delete", place, "v2", "--yes").returncode == 0
    assert here("tag", "create", place, "v2").returncode == 4


def test_settings(place: Path) -> None:
    assert told("config", place)["inline_chunk_threshold_bytes"] == 0
    assert told("metadata", place, "--set", "owner=ana", "--set", "level=3") == {
        "owner": "ana",
        "level": 3,
    }
    assert here("metadata", place, "--set", "owner").returncode == 2
    assert here("status", place, "--set", "read_only", "--reason", "moving").stdout == (
        "read_only: moving\n"
    )
    refused = here("branch", "create", place, "dev")
    assert refused.returncode == 7
    assert told("status", place, "--set", "online")["availability"] == "online"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["log", "no-such-place"], 3, "found none in"),
        (["log", "weather@nope"], 3, "there are main, v1"),
        (["log", "weather@mian"], 3, "did you mean 'main'?"),
        (["log", "ftp://host/path"], 2, "ftp"),
        (["lag", "weather"], 2, "No such command 'lag'. Did you mean tag or log?"),
        (["log", "weather", "--lmit", "3"], 2, "--limit"),
        (["log"], 2, "Missing argument 'REPOSITORY'"),
        (["init", "other@main"], 2, "has no 'main' yet"),
    ],
)
def test_the_first_mistakes_are_explained(
    place: Path, words: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.parent)
    done = here(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pipe_may_be_closed(place: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m icefloe log {place} | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_messages_name_options_of_the_command_not_arguments_of_python() -> None:
    told = program.in_shell(
        "append to it (append=True), or mode='native'; see deep=True", ["ingest"]
    )
    assert told == "append to it (--append), or --mode native; see deep=True"
    assert program.in_shell("leave it out (append=True)", ["log"]) == "leave it out (append=True)"
    told = program.in_shell("open it, choose another, or pass check_clean_root=False", ["init"])
    assert told == "open it, or choose another"
