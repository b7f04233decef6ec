"""Checks what no linter knows: private attributes, stale mentions, spec versions, words.

    python tools/check_house.py

A private attribute (`thing._name`) may be used by the package that defines it, and by nobody else.
A file that a comment or a document mentions by its name exists. What depends on the spec version
of a repository is a method of its `FormatVersion`: nothing but `format` and these classes compares
the number. Some words read as if translated; sources and documents do without them, unless the line
ends with a comment `word: REASON`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "icefloe"

FOREIGN = {
    "_asdict", "_fields", "_make", "_replace",  # named tuples: private by their spelling only
    "_value2member_map_",  # enums, likewise
    "_validate_and_autodetect_region", "_validate_encoding", "_in_memory",  # xarray
    "_data", "_write_region",  # xarray: a variable's array without loading it; a region it found
    "_paths", "_offsets", "_lengths", "_inlined",  # VirtualiZarr: the columns of a manifest
    "_ensure_initialized",  # PySpark's context
    "_sc", "_jvm", "_jsparkSession", "_jsc", "_gateway",  # PySpark has no public name for these
}  # fmt: skip
"""Private attributes of other projects that are used on purpose."""

MENTION = re.compile(r"`([\w/]+)\.py`")
"""A file of Python, as text mentions it: by its name or its last folders."""

VERSIONED = ("format/", "repo/spec1", "repo/spec2")
"""Modules that may compare spec versions, by the beginning of their path."""


WORDS = re.compile(
    r"\b(anew|lately|near by|of ours|let go of|at hand|to be had|what there is to)\b", re.IGNORECASE
)


def package_of(path: Path) -> str:
    """The first folder below the root of the sources."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def defined_in(tree: ast.Module) -> Iterator[str]:
    """Private names that a module gives to its classes and instances, or to itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # of __slots__


def used_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Private attributes of anything but `self` and `cls`, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                yield node.attr, node.lineno


def find_intruders(trees: dict[Path, ast.Module]) -> list[str]:
    """Uses of private attributes by packages that do not define them."""
    defined: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        defined[package_of(path)] |= {name for name in defined_in(tree) if is_private(name)}
    return [
        f"{path.relative_to(SOURCE.parent)}:{line}: {name} is private to another package"
        for path, tree in trees.items()
        for name, line in used_in(tree)
        if name not in defined[package_of(path)] | FOREIGN
    ]


def find_stale_mentions() -> list[str]:
    """Mentions of files that do not exist, in sources and documents."""
    folders = ("src", "tests", "tools", "benchmarks", "examples")
    sources = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    known = ["/" + path.relative_to(ROOT).with_suffix("").as_posix() for path in sources]
    documents = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        f"{path.relative_to(ROOT)}:{number}: there is no {name}.py"
        for path in [*sources, *documents]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in MENTION.findall(line)
        if not any(file.endswith(f"/{name}") for file in known)
    ]


def find_version_checks(trees: dict[Path, ast.Module]) -> list[str]:
    """Comparisons of `spec_version` outside the modules that are about one version."""
    return [
        f"{path.relative_to(SOURCE.parent)}:{node.lineno}: compares spec_version; make it a method "
        "of repo.handle.FormatVersion"
        for path, tree in trees.items()
        if not path.relative_to(SOURCE).as_posix().startswith(VERSIONED)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and not any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
        and any(_is_version(part) for side in ast.iter_child_nodes(node) for part in ast.walk(side))
    ]


def _is_version(node: ast.AST) -> bool:
    named = getattr(node, "attr", None) or getattr(node, "id", None)
    return named == "spec_version"


def find_words() -> list[str]:
    """Words that sources and documents do without."""
    suffixes = {".py", ".js", ".html", ".md"}
    sources = [path for path in sorted(SOURCE.rglob("*")) if path.suffix in suffixes]
    documents = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    documents += sorted((ROOT / "docs").glob("*.ipynb"))
    return [
        f"{path.relative_to(ROOT)}:{number}: says {found[0]!r}; use the word of the field"
        for path in [*sources, *documents]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for found in WORDS.finditer(line)
        if "word: " not in line
    ]


def main() -> int:
    """Print what was found."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    problems = [
        *find_intruders(trees),
        *find_stale_mentions(),
        *find_version_checks(trees),
        *find_words(),
    ]
    print("\n".join(problems) or "private attributes, mentions, versions, words: as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
