"""Bad numbers, damaged files, missing folders and words of git: a sentence, never a traceback."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.cli.program import SECTIONS
from icefloe.maintenance.gc import GarbagePlan
from tests.cli.calling import Done, here

LARGE = "9" * 40


def refused(*words: str | Path, code: int) -> str:
    """What a command says on stderr. An exception that is not ours would end the test."""
    done: Done = here(*words)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done.stderr


def npz(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **columns)
    return buffer.getvalue()


@pytest.mark.parametrize("age", ["9999999999999d", f"{LARGE}w", "9999-12-31T23:59:59-12:00"])
@pytest.mark.parametrize("command", ["gc", "expire"])
def test_an_age_beyond_all_times_is_refused(place: Path, command: str, age: str) -> None:
    said = refused(command, place, "--older-than", age, "--dry-run", code=2)
    assert f"{age!r} is before the year 1 or after the year 9999" in said


@pytest.mark.parametrize(
    "words",
    [
        ["log", "-n", LARGE],
        ["log", "--graph", "-n", LARGE],
        ["ops", "-n", LARGE],
        ["chunks", "surface/t2m", "-n", LARGE],
        ["blame", "surface/t2m", "-n", LARGE],
        ["stats", "--history", "-n", LARGE],
        ["ancestry", "-n", LARGE],
        ["expire", "--dry-run", "--keep-last", LARGE],
        ["verify", "--max-findings", LARGE],
    ],
    ids=lambda words: words[0],
)
def test_a_number_larger_than_any_list_means_all(place: Path, words: list[str]) -> None:
    assert here(words[0], place, *words[1:]).returncode == 0
    for number in ("0", "-1", "1.5", "x"):
        small = [number if word == LARGE else word for word in words]
        assert "Traceback" not in refused(small[0], place, *small[1:], code=2)


def test_a_plan_is_not_saved_where_there_is_no_folder(place: Path) -> None:
    target = place.parent / "no" / "such" / "plan"
    said = refused("gc", place, "--older-than", "now", "--save-plan", target, code=2)
    assert f"there is no folder {target.parent}" in said
    (place.parent / "file").touch()
    said = refused("gc", place, "--older-than", "now", "--save-plan", place / "repo/x", code=2)
    assert "there is no folder" in said
    assert "is a directory" in refused(
        "gc", place, "--older-than", "now", "--save-plan", place, code=2
    )


def test_damaged_plans_are_refused(place: Path, tmp_path: Path) -> None:
    good = tmp_path / "good.plan"
    assert here("gc", place, "--older-than", "now", "--save-plan", good).returncode == 0
    data = good.read_bytes()
    header = {"format": "icefloe garbage collection plan 1", "folders": {}}
    damaged = {
        "empty": b"",
        "text": b"hello",
        "cut": data[: len(data) // 2],
        "zeros": data[:40] + bytes(len(data) - 40),
        "array": np.arange(3).tobytes(),
        "another archive": npz(a=np.arange(3)),
        "no times": npz(header=np.array(json.dumps(header))),
        "a list": npz(header=np.array("[1]")),
        "texts for numbers": npz(
            header=np.array(json.dumps({**header, "url": "", "made_at": "a", "older_than": []}))
        ),
        "columns that do not fit": npz(
            header=np.array(
                json.dumps(
                    {**header, "folders": {"chunks": "c"}, "url": "", "made_at": 1, "older_than": 1}
                )
            ),
            **{
                "chunks.id": np.zeros(24, np.uint8),
                "chunks.size_bytes": np.zeros(1, np.int64),
                "chunks.created_at": np.zeros(2, np.int64),
            },
        ),
    }
    for name, content in damaged.items():
        path = tmp_path / name
        path.write_bytes(content)
        said = refused("gc", place, "--plan", path, "--yes", code=6)
        assert f"{path}: not a plan of a garbage collection, or a damaged one" in said, name
    for at in range(0, len(data), 101):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        (tmp_path / "changed").write_bytes(changed)
        try:  # what the archive says about times of files is of no account
            GarbagePlan.load(tmp_path / "changed")
        except icefloe.FormatError as error:
            assert "changed: not a plan" in str(error)  # noqa: PT017 - either is right
    assert "no such plan" in refused("gc", place, "--plan", tmp_path / "nothing", code=2)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"a: *b", b"- 1", b"", b"sources: 5\n"])
def test_damaged_recipes_are_refused(tmp_path: Path, content: bytes | None) -> None:
    recipe = tmp_path / "recipe.yaml"
    code = 3 if content is None else 2
    if content is not None:
        recipe.write_bytes(content)
    assert f"recipe {recipe}: " in refused("ingest", "--recipe", recipe, code=code)


def test_files_that_cannot_be_used_are_named(place: Path) -> None:
    file = place.parent / "file"
    file.write_text("hello")
    calls: list[list[str | Path]] = [
        ["export", place, file / "x"],
        ["clone", place, file / "x"],
        ["export", place, file / "x", "--format", "parquet", "--group", "surface"],
        ["init", file],
        ["init", file / "x"],
    ]
    for words in calls:
        done = here(*words)
        assert done.returncode in (2, 4, 5), done
        assert str(file) in done.stderr


def test_text_that_is_no_text_is_refused(place: Path) -> None:
    half = "a\udcff"
    calls: list[list[str | Path]] = [
        ["sql", place, f"SELECT '{half}'"],
        ["branch", "create", place, half],
        ["metadata", place, "--set", f"{half}=1"],
        ["rewrite-manifests", place, "-m", half],
        ["status", place, "--set", "online", "--reason", half],
    ]
    for words in calls:
        assert "surrogate" in refused(*words, code=2), words
    assert "cannot listen" in refused("ui", place, "--no-browser", "--host", half, code=1)


def test_commands_about_the_whole_repository_take_no_ref(place: Path) -> None:
    for words in (
        ["gc", "--older-than", "1d"],
        ["expire", "--keep-last", "1"],
        ["ops"],
        ["metadata"],
        ["status"],
        ["config"],
    ):
        said = refused(words[0], f"{place}@v1", *words[1:], code=2)
        assert "Leave @v1 away" in said, words


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("revert", "Use icefloe undo: Revert a commit with a new commit."),
        ("fsck", "Use icefloe verify:"),
        ("ls", "Use icefloe tree:"),
        ("reflog", "Use icefloe ops:"),
        ("push", "Use icefloe clone:"),
        ("history", "Use icefloe log:"),
        ("prune", "Use icefloe gc:"),
        ("create", "Use icefloe init:"),
        ("checkout", "name a version as REPOSITORY@REF"),
        ("commit", "session.commit"),
        ("help", "icefloe --help"),
        ("Revert", "Use icefloe undo:"),
        ("lgo", "Did you mean log?"),
    ],
)
def test_words_of_git_lead_to_commands(place: Path, word: str, said: str) -> None:
    assert said in refused(word, place, code=2)


def test_words_of_git_are_no_commands_and_lead_to_one_each() -> None:
    from icefloe.cli.program import _ELSEWHERE, _NO_COMMAND

    commands = {name for named in SECTIONS.values() for name in named}
    words = [word for theirs in _ELSEWHERE.values() for word in theirs.split()] + [*_NO_COMMAND]
    assert len(words) == len(set(words))
    assert not commands & set(words)
    assert set(_ELSEWHERE) <= commands


def test_a_version_after_a_blank_is_explained(place: Path) -> None:
    for command in ("log", "show", "stats", "info"):
        assert f"{place}@v1" in refused(command, place, "v1", code=2)
    said = refused("branch", place, "dev", code=2)
    assert f"icefloe branch create {place} dev" in said
    assert "icefloe tag create" in refused("tag", place, "v2", "main", code=2)


def test_the_difference_of_a_new_repository_and_of_one_version_is_nothing(
    place: Path, tmp_path: Path
) -> None:
    assert here("init", tmp_path / "new").returncode == 0
    calls: list[list[str | Path]] = [["diff", tmp_path / "new"], ["diff", place, "v1", "v1"]]
    for words in calls:
        done = here(*words)
        assert (done.returncode, done.stdout) == (0, "no changes\n"), done
