"""The rules of the house that no linter checks: files, commands, pins, contracts, set-up."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import icefloe
from tools import setup_env

ROOT = Path(__file__).parents[2]
MOST_LINES = 800

SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=name_of)
def test_no_file_is_longer_than_one_topic_needs(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{name_of(path)} has {lines} lines: which two topics are in it?"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{name_of(path)} has no docstring"


def test_the_front_door_lists_names_that_exist_each_once() -> None:
    assert len(set(icefloe.__all__)) == len(icefloe.__all__)
    assert [name for name in icefloe.__all__ if not hasattr(icefloe, name)] == []


# --- commands --------------------------------------------------------------------------------


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_ci_runs_every_folder_of_tests() -> None:
    named = re.findall(r"tests/\w+", (ROOT / ".ci" / "run").read_text())
    folders = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir()}
    folders = {name for name in folders if any((ROOT / name).rglob("test_*.py"))}
    assert sorted(named) == sorted(folders - {"tests/release"})  # make wheel, make extras


def test_readme_commands_are_make_targets() -> None:
    commands = set(re.findall(r"\bmake ([a-z]+)\b(?=`| +#)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= commands
    assert commands - make_targets() == set()


def test_every_make_target_is_phony_and_in_make_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == make_targets()
    assert set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE)) == make_targets()


# --- pins ------------------------------------------------------------------------------------


def normalised(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def pins(name: str = "constraints.txt") -> list[str]:
    lines = (ROOT / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    marker = r'; python_version (<|>=) "3\.\d+"'
    wrong = [pin for pin in pins() if not re.fullmatch(rf"[\w.-]+==[\w.]+({marker})?", pin)]
    assert wrong == []


def test_everything_the_environment_installs_by_name_is_pinned() -> None:
    project = pyproject()["project"]
    wanted = set(map(normalised, project["dependencies"]))
    for extra in setup_env.EXTRAS.split(","):
        wanted |= set(map(normalised, project["optional-dependencies"][extra]))
    assert wanted - set(map(normalised, pins())) == set()


def lower_bounds() -> dict[str, str]:
    """The lower bound of each requirement that users get, by name."""
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    for_users = [extras[extra] for extra in extras if extra not in ("dev", "docs")]
    bounds: dict[str, str] = {}
    for requirement in chain(project["dependencies"], *for_users):
        found = re.fullmatch(r"[\w.-]+(?:\[\w+\])?>=([\d.]+)", requirement)
        assert found is not None, f"{requirement} states no lower bound"
        assert bounds.setdefault(normalised(requirement), found[1]) == found[1], requirement
    return bounds


def test_the_oldest_environment_has_the_lower_bounds_of_every_requirement() -> None:
    oldest = [pin.split("==") for pin in pins("constraints-oldest.txt")]
    pinned = {normalised(name): version for name, version in oldest}
    bounds = lower_bounds()
    assert {name: pinned.get(name) for name in bounds} == bounds
    # The others are older than in constraints.txt, because the lower bounds need them to be.
    assert set(pinned) - set(map(normalised, pins())) == set()


def test_the_oldest_environment_takes_its_other_versions_from_the_usual_one() -> None:
    for purpose in ("spark-3.5", "spark-4.0"):
        pinned = [line for line in setup_env.pins_of(purpose).splitlines() if "==" in line]
        assert {f"pyspark=={purpose[6:]}"} == {line[:12] for line in pinned if "pyspark" in line}
        assert set(map(normalised, pinned)) == set(map(normalised, pins()))
    merged = [line for line in setup_env.pins_of("oldest").splitlines() if "==" in line]
    low = set(map(normalised, pins("constraints-oldest.txt")))
    usual = [pin for pin in pins() if normalised(pin) not in low]
    assert sorted(merged) == sorted([*usual, *pins("constraints-oldest.txt")])
    assert "numpy==2.1" in merged


def test_official_icechunk_is_only_a_development_dependency() -> None:
    project = pyproject()["project"]
    places = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    naming = {place for place, names in places.items() if "icechunk" in map(normalised, names)}
    assert naming == {"dev"}


# --- contracts -------------------------------------------------------------------------------


def test_every_pure_folder_is_held_to_purity() -> None:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    [purity] = [c for c in contracts if c["name"].endswith("are pure")]
    codecs = {
        path.name for path in (ROOT / "src" / "icefloe" / "legacy").iterdir() if path.is_dir()
    }
    folders = {f"icefloe.legacy.{name}" for name in codecs - {"__pycache__"}}
    assert {"icefloe.format", "icefloe.changes", *folders} <= set(purity["source_modules"])


def test_a_layer_is_optional_only_until_it_exists() -> None:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    [layers] = [c["layers"] for c in contracts if c["name"] == "Imports only go down"]
    optional = set(re.findall(r"\((\w+)\)", " ".join(layers)))
    modules = {path.stem for path in (ROOT / "src" / "icefloe").iterdir()}
    assert optional & modules == set()


# --- set-up ----------------------------------------------------------------------------------


def test_set_up_leaves_a_folder_alone_that_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = elsewhere\n")
    with pytest.raises(setup_env.SetupError, match="not made by this set-up"):
        setup_env.remove(tmp_path)
    assert (tmp_path / "pyvenv.cfg").exists()


def test_set_up_removes_an_environment_that_was_cut_short(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").mkdir()
    (venv / "lib64").symlink_to("lib")
    (venv / setup_env.MARK).touch()
    setup_env.remove(venv)
    assert not venv.exists()


def test_an_installation_counts_only_once_it_is_stamped(tmp_path: Path) -> None:
    assert setup_env.read_stamp(tmp_path) == {}
    (tmp_path / setup_env.STAMP).write_text('{"version": "3.1')
    assert setup_env.read_stamp(tmp_path) == {}
    setup_env.write_stamp(tmp_path, "3.13.0", "test")
    assert setup_env.read_stamp(tmp_path)["key"] == setup_env.key_of(tmp_path, "3.13.0", "test")


def test_an_environment_serves_smaller_purposes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = setup_env.ask(sys.executable)
    assert python is not None
    monkeypatch.setattr(setup_env, "ask", lambda _: python)
    installed: list[str] = []
    monkeypatch.setattr(setup_env, "install", lambda _venv, _python, what: installed.append(what))
    monkeypatch.delenv("PYTHON", raising=False)
    setup_env.write_stamp(tmp_path, python.text, "demo")
    setup_env.prepare(tmp_path, "first")
    setup_env.prepare(tmp_path, "demo")
    assert installed == []
    setup_env.prepare(tmp_path, "test")
    assert installed == ["test"]
    setup_env.prepare(tmp_path, "demo")
    assert installed == ["test"]


def test_uv_looks_for_packages_where_pip_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example.org/simple")
    python = setup_env.ask(sys.executable)
    assert python is not None
    settings = setup_env.uv_settings(python._replace(path=sys.executable))
    assert settings["UV_DEFAULT_INDEX"] == "https://index.example.org/simple"
    assert "UV_FIND_LINKS" not in settings


def test_another_python_or_another_place_is_another_environment(tmp_path: Path) -> None:
    keys = {
        setup_env.key_of(tmp_path / place, version, purpose)
        for place in ("a", "b")
        for version in ("3.12.1", "3.13.0")
        for purpose in setup_env.REQUIREMENTS
    }
    assert len(keys) == 4 * len(setup_env.REQUIREMENTS)


@pytest.mark.parametrize(
    ("script", "what_is_wrong"),
    [
        ("exit 127", "cannot be run"),
        ('echo \'[[3, 10, 4, "final", 0], "cpython", true, "p"]\'', "3.11 or newer"),
        ('echo \'[[3, 14, 0, "beta", 1], "cpython", true, "p"]\'', "released"),
        ('echo \'[[3, 12, 0, "final", 0], "pypy", true, "p"]\'', "CPython"),
        ('echo \'[[3, 12, 0, "final", 0], "cpython", false, "p"]\'', "python3.12-venv"),
    ],
)
def test_a_python_that_will_not_do_is_refused_with_its_reason(
    tmp_path: Path, script: str, what_is_wrong: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(setup_env.SetupError, match=re.escape(what_is_wrong)):
        setup_env.choose_named(str(python))


def test_the_newest_python_that_can_make_environments_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "python3": '[[3, 11, 2, "final", 0], "cpython", true, "eleven"]',
        "python3.13": '[[3, 13, 1, "final", 0], "cpython", true, "thirteen"]',
        "python3.14": '[[3, 14, 0, "final", 0], "cpython", false, "no pip"]',
        "python3.15": "a launcher with nothing behind it",
        "python3-config": '[[3, 99, 0, "final", 0], "cpython", true, "not a python"]',
    }
    for name, answer in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert setup_env.choose_found().path == "thirteen"


def test_the_oldest_python_is_the_last_release_of_the_lowest_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("3.10.9", "3.12.1", "3.12.7", "3.13.0"):
        numbers = version.replace(".", ", ")
        python = tmp_path / version / "python"
        python.parent.mkdir()
        python.write_text(
            f'#!/bin/sh\necho \'[[{numbers}, "final", 0], "cpython", true, "{version}"]\'\n'
        )
        python.chmod(0o755)
    monkeypatch.setenv("PATH", ":".join(str(path) for path in sorted(tmp_path.iterdir())))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert setup_env.choose_found(oldest=True).path == "3.12.7"
    assert setup_env.choose_found(minor="3.12").path == "3.12.7"
    with pytest.raises(setup_env.SetupError, match=r"no Python 3\.11 was found"):
        setup_env.choose_found(minor="3.11")
    assert setup_env.choose_found().path == "3.13.0"
