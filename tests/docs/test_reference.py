"""Reference pages against the code: options and their defaults, exceptions, links, names."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import ErrorKind, PackingConfig, RepositoryConfig, errors
from tests.docs.run_page import blocks_of

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
IN_WORDS = {"manifest.preload.preload_if", "compression.algorithm", "packing", "previous_file"}
"""Options whose default a table cannot show as Python does."""


def rows_of(page: Path) -> dict[str, list[str]]:
    """The rows of a page's tables, by the names in backticks of their first cell."""
    rows = [line.strip("|").split("|") for line in page.read_text().splitlines() if line[:1] == "|"]
    return {
        name: [cell.strip() for cell in cells[1:]]
        for cells in rows
        for name in re.findall(r"`([^`]+)`", cells[0])
    }


def options(resolved: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(resolved):
        value, name = getattr(resolved, field.name), prefix + field.name
        if type(value).__name__.startswith("Resolved"):
            yield from options(value, f"{name}.")
        else:
            yield name, value


def test_every_option_is_there_with_its_default() -> None:
    rows = rows_of(REFERENCE / "configuration.md")
    found = dict(options(RepositoryConfig(packing=PackingConfig()).resolved()))
    # Official's own options, which icefloe keeps and does not resolve.
    sections = {field.name for field in dataclasses.fields(RepositoryConfig)}
    resolved = {name.partition(".")[0] for name in found}
    assert {*found, *(sections - resolved)} <= rows.keys()
    for name, default in found.items():
        cells = rows[name]
        assert len(cells) == 2
        assert cells[1], f"{name} has no meaning"
        if name not in IN_WORDS:
            assert cells[0] == f"`{default}`", name


def test_no_option_is_there_that_does_not_exist() -> None:
    text = (REFERENCE / "configuration.md").read_text().partition("## Environment")[0]
    rows = re.findall(r"^\| `([a-z_.]+)` \|", text, re.MULTILINE)
    found = dict(options(RepositoryConfig(packing=PackingConfig()).resolved()))
    assert set(rows) - found.keys() == IN_WORDS & set(rows) - found.keys()


def test_every_exception_is_there_with_what_to_do() -> None:
    rows = rows_of(REFERENCE / "errors.md")
    classes = {
        name
        for name in icefloe.__all__
        if inspect.isclass(value := getattr(icefloe, name)) and issubclass(value, BaseException)
    }
    assert classes <= rows.keys()
    assert [name for name in classes - {"IcefloeError", "IcechunkError"} if not rows[name][1]] == []


def test_every_kind_is_there() -> None:
    codes = set(re.findall(r"`([a-z-]+)`", (REFERENCE / "errors.md").read_text()))
    assert set(map(str, ErrorKind)) <= codes


def test_kinds_that_are_never_raised_are_marked_so() -> None:
    """A kind is raised if the package names it, or if it is the default of a class."""
    page = (REFERENCE / "errors.md").read_text()
    marked = page.partition("| never raised by icefloe |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in marked.splitlines() if line.startswith("| `")]
    never = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}
    classes = [each for each in vars(errors).values() if inspect.isclass(each)]
    named = {each.default_kind for each in classes if issubclass(each, errors.IcechunkError)}
    for path in (ROOT / "src").rglob("*.py"):
        if path.name != "errors.py":
            names = re.findall(r"ErrorKind\.([A-Z_]+)", path.read_text())
            named |= {ErrorKind[name] for name in names}
    assert never == set(ErrorKind) - named


# --- links of the top-level documents ----------------------------------------------------------


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_of_a_top_level_document_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
    assert links or page.name not in {"README.md", "CONTRIBUTING.md"}


def test_no_document_names_an_address_that_does_not_exist() -> None:
    for name in ("README.md", "pyproject.toml", "mkdocs.yml", "CONTRIBUTING.md"):
        assert "github.com/icefloe" not in (ROOT / name).read_text(), name


# --- blocks that are not run -------------------------------------------------------------------

PAGES = sorted((ROOT / "docs").rglob("*.md"))
NOT_RUN = [
    pytest.param(page, line, code, id=f"{page.name}:{line}")
    for page in PAGES
    for line, code in blocks_of(page, is_run=False)
]


@pytest.mark.parametrize(("page", "line", "code"), NOT_RUN)
def test_names_and_arguments_of_a_block_that_is_not_run_exist(
    page: Path, line: int, code: str
) -> None:
    tree = ast.parse("\n" * (line - 1) + code, str(page))
    checked = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        if isinstance(node, ast.Call) and (function := resolved(node.func)) is not None:
            parameters = inspect.signature(function).parameters
            kinds = {parameter.kind for parameter in parameters.values()}
            names = {keyword.arg for keyword in node.keywords if keyword.arg}
            assert names <= parameters.keys() or inspect.Parameter.VAR_KEYWORD in kinds
            checked += 1
    assert checked, "a block that shows no call of icefloe"


def resolved(node: ast.expr) -> Any:
    """What a dotted name that begins with `icefloe` stands for; None for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "icefloe":
        return None
    found: Any = icefloe
    for name in reversed(names):
        if not hasattr(found, name) and inspect.ismodule(found):
            found = importlib.import_module(f"{found.__name__}.{name}")
        else:
            found = getattr(found, name)
    return found
