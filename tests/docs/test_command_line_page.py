"""The page about the command line: every example is run, every command is on it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from icefloe.cli.overview import SECTIONS
from tests.cli.calling import here
from tests.docs.run_page import dataset

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def lines() -> list[str]:
    return [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]


def test_every_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("netCDF4", reason="makes NetCDF files")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for year in (2023, 2024):
        folder = tmp_path / "archive" / str(year)
        folder.mkdir(parents=True)
        data: Any = dataset(f"{year}-05-01")
        data.to_netcdf(folder / "a.nc")
    for line in lines():
        program, *words = shlex.split(line)
        assert program == "icefloe"
        done = here(*words)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_every_command_is_on_the_page() -> None:
    text = PAGE.read_text()
    for commands in SECTIONS.values():
        for name in commands:
            assert re.search(rf"(icefloe |`){name}\b", text), name
