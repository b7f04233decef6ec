"""Regenerates or checks the golden repositories; run as `python -m tests.golden.make_golden`.

This module only arranges: which release runs which scenario, where its environment is, and
where the results go. Official code runs in child processes, never here.
"""

# ruff: noqa: T201  (a program that talks to its user)

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden import DATA, load_expectation, names, repository_path

PROJECT = Path(__file__).resolve().parents[2]
DUMP_VERSION = "2.3.0"
# Expectations longer than this are committed compressed.
PLAIN_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Recipe:
    """One golden repository: `scenario` run by icechunk `version`, maybe on a copy of `base`."""

    name: str
    version: str
    scenario: str
    spec: int
    base: str | None = None


RECIPES = (
    Recipe("0.2.0-spec1", "0.2.0", "basics", 1),
    Recipe("1.0.0-spec1", "1.0.0", "basics", 1),
    Recipe("1.1.21-spec1", "1.1.21", "basics", 1),
    Recipe("2.3.0-spec1", "2.3.0", "basics", 1),
    Recipe("2.3.0-spec2", "2.3.0", "basics", 2),
    Recipe("2.3.0-settings-spec1", "2.3.0", "settings", 1),
    Recipe("2.3.0-settings-spec2", "2.3.0", "settings", 2),
    Recipe("2.3.0-history", "2.3.0", "history", 2),
    Recipe("2.3.0-paged-ops-log", "2.3.0", "paged ops log", 2),
    Recipe("2.3.0-moves", "2.3.0", "moves", 2),
    Recipe("2.3.0-grids", "2.3.0", "grids", 2),
    Recipe("2.3.0-splits", "2.3.0", "splits", 2),
    Recipe("2.3.0-locations", "2.3.0", "locations", 2),
    Recipe("2.3.0-expired-spec1", "2.3.0", "expire", 1),
    Recipe("2.3.0-expired-spec2", "2.3.0", "expire", 2),
    Recipe("2.3.0-collected-spec1", "2.3.0", "collect", 1, base="2.3.0-expired-spec1"),
    Recipe("2.3.0-collected-spec2", "2.3.0", "collect", 2, base="2.3.0-expired-spec2"),
    Recipe("2.3.0-migrated", "2.3.0", "migrate", 2, base="1.1.21-spec1"),
)


class Environments:
    """Interpreters with one official release each, made when first needed."""

    def __init__(self, folder: Path, given: dict[str, str]) -> None:
        self._folder = folder
        self._pythons = dict(given)

    def run(self, version: str, module: str, *arguments: str | Path) -> None:
        """Run a module of this package under icechunk `version`."""
        command = [self._python(version), "-m", f"tests.golden.{module}", *map(str, arguments)]
        # Official releases log to stdout; "off" is what all of them understand.
        environment = {**os.environ, "ICECHUNK_LOG": "off", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(command, check=True, cwd=PROJECT, env=environment)

    def _python(self, version: str) -> str:
        if version not in self._pythons:
            home = self._folder / f"icechunk-{version}"
            venv.create(home, with_pip=True, clear=True)
            python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
            install = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                f"icechunk=={version}",
                "zarr",
            ]
            subprocess.run(install, check=True)
            self._pythons[version] = str(python)
        return self._pythons[version]


def generate(environments: Environments, staging: Path) -> None:
    """Write all repositories and expectations below `staging`, then replace the data folder."""
    output = staging / "data"
    output.mkdir()
    for recipe in RECIPES:
        print(recipe.name, flush=True)
        root = output / recipe.name
        notes = staging / f"{recipe.name}.notes"
        if recipe.base is not None:
            shutil.copytree(output / recipe.base, root)
            shutil.copyfile(staging / f"{recipe.base}.notes", notes)
        spec = f"--spec={recipe.spec}"
        environments.run(recipe.version, "writer", recipe.scenario, root, notes, spec)
        _remove_empty_folders(root)
        expectation = {
            "name": recipe.name,
            "written": json.loads(notes.read_text("utf-8")),
            **dump(environments, root),
        }
        _store_expectation(output, recipe.name, expectation)
    environments.run(DUMP_VERSION, "leaks", output, str(staging), str(Path.home()))
    if DATA.exists():
        shutil.rmtree(DATA)
    shutil.copytree(output, DATA)


def _remove_empty_folders(root: Path) -> None:
    # Git would not keep them; the expectations must describe what is committed.
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def dump(environments: Environments, root: Path) -> dict[str, Any]:
    """What official code says about a copy of the repository below `root`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(root, copy)
        result = Path(folder) / "dump.json"
        environments.run(DUMP_VERSION, "dump", copy, result)
        expectation: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return expectation


def _store_expectation(folder: Path, name: str, expectation: dict[str, Any]) -> None:
    text = json.dumps(expectation, indent=1, ensure_ascii=False) + "\n"
    raw = text.encode()
    if len(raw) <= PLAIN_LIMIT_BYTES:
        (folder / f"{name}.json").write_bytes(raw)
    else:
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(raw, mtime=0))


def check(environments: Environments) -> list[str]:
    """Differences between the committed expectations and a fresh dump of the repositories."""
    planned = sorted(recipe.name for recipe in RECIPES)
    if names() != planned:
        return [f"the data folder holds {names()}, expected {planned}"]
    problems = []
    for name in planned:
        print(name, flush=True)
        fresh = dump(environments, repository_path(name))
        committed = load_expectation(name)
        # The writer's notes cannot be found out again.
        for key in ("name", "written"):
            del committed[key]
        # The versions of zarr may differ; what is in the repository may not.
        del fresh["dumped_by"], committed["dumped_by"]
        problems += [f"{name}: {place}" for place in _differences(committed, fresh, "$")]
    return problems


def _differences(committed: Any, fresh: Any, place: str) -> list[str]:
    if isinstance(committed, dict) and isinstance(fresh, dict):
        keys = sorted(committed.keys() | fresh.keys())
        return [
            difference
            for key in keys
            for difference in _differences(committed.get(key), fresh.get(key), f"{place}.{key}")
        ]
    # JSON's numbers need their type compared too: 1, 1.0 and true are equal in Python.
    if json.dumps(committed, sort_keys=True) == json.dumps(fresh, sort_keys=True):
        return []
    return [f"{place} is {fresh!r:.200}, committed {committed!r:.200}"]


def main() -> None:
    """Regenerate the golden repositories, or check them with --check."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, change nothing")
    parser.add_argument("--environments", type=Path, help="where to keep virtual environments")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="VERSION=PATH",
        help="an interpreter that has icechunk VERSION and zarr already (repeatable)",
    )
    arguments = parser.parse_args()
    given = dict(option.split("=", 1) for option in arguments.python)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        staging = Path(folder)
        environments = Environments(arguments.environments or staging / "environments", given)
        if not arguments.check:
            generate(environments, staging)
            return
        problems = check(environments)
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(RECIPES)} repositories agree with icechunk {DUMP_VERSION}")


if __name__ == "__main__":
    main()
