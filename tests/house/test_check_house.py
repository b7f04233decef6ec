"""The checks of tools/check_house.py find what they are for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import check_house

CASES = {
    "if handle.spec_version > 1: pass": 1,
    "if not (1 == spec_version): pass": 1,
    "if int(repository.spec_version) == 2: pass": 1,
    "spec_version = 2": 0,
    "if spec_version in known: pass": 0,
    "if handle.format.has_repo_object: pass": 0,
}


@pytest.mark.parametrize("source", CASES)
def test_comparisons_of_spec_versions_are_found(source: str) -> None:
    tree = ast.parse(source)
    for place in ("repo/commit.py", "scans/metadata_rows.py", "store/operations.py"):
        found = check_house.find_version_checks({check_house.SOURCE / place: tree})
        assert len(found) == CASES[source]
    inside = [Path("repo/spec1.py"), Path("format/envelope.py")]
    assert check_house.find_version_checks({check_house.SOURCE / at: tree for at in inside}) == []


def test_words_that_read_as_if_translated_are_found() -> None:
    assert check_house.WORDS.search("Arrays are stored Anew.")
    assert not check_house.WORDS.search("A renewed lock of yours is nearby.")


def test_words_are_looked_for_in_sources_documents_and_the_top_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check_house, "ROOT", tmp_path)
    monkeypatch.setattr(check_house, "SOURCE", tmp_path / "src" / "icefloe")
    places = ["src/icefloe/repo/a.py", "src/icefloe/ui/page.js", "docs/reference/b.md", "README.md"]
    for place in places:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("plain\nwritten anew\nlately  # word: a name of the format\n")
    found = check_house.find_words()
    said = "says 'anew'; use the word of the field"
    assert sorted(found) == sorted(f"{place}:2: {said}" for place in places)
