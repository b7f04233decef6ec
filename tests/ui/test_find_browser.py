"""The browser of the tests is found or asked for; without one they are skipped for a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.ui.conftest import MUST_RUN, require_browser
from tools import find_browser


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH without programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ICEFLOE_BROWSER", raising=False)
    return tmp_path


def test_a_browser_is_found_by_name_or_by_choice(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_browser.find_browser() is None
    program = nothing / "google-chrome"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_browser.find_browser() == str(program)
    monkeypatch.setenv("ICEFLOE_BROWSER", "/opt/other")
    assert find_browser.find_browser() == "/opt/other"


@pytest.mark.parametrize("words", [[], ["--install"]])
def test_without_one_the_program_says_what_to_do(
    nothing: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["find_browser.py", *words])
    assert find_browser.main() == 1
    told = capsys.readouterr().err
    assert "apt-get install chromium" in told
    assert bool(words) == ("only be installed here by root" in told)


def test_tests_say_that_there_is_no_browser(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MUST_RUN, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium was found: install it"):
        require_browser()
    monkeypatch.setenv(MUST_RUN, "required")  # as `make browser` does
    with pytest.raises(pytest.fail.Exception, match="no Chromium was found: install it"):
        require_browser()
