"""Checks what no linter knows: who touches private attributes, and names that mean two things.

    python tools/check_house.py

A private attribute (`thing._name`) may be used by the package that defines it, and by nobody else.
A class name may stand for one class only, except for those listed below with the reason.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "icefloe"

FOREIGN = {
    "_asdict", "_fields", "_make", "_replace",  # named tuples: private by their spelling only
    "_value2member_map_",  # enums, likewise
    "_validate_and_autodetect_region", "_validate_encoding", "_in_memory",  # xarray
    "_ensure_initialized",  # PySpark's context
    "_sc", "_jvm", "_jsparkSession", "_jsc", "_gateway",  # PySpark has no public name for these
}  # fmt: skip
"""Private attributes of other projects that are used on purpose."""

_FACE = "what users get, beside what files hold"
SAME_NAME = {
    "ManifestFileInfo": _FACE,
    "RepoAvailability": _FACE,
    "RepoStatus": _FACE,
    "SnapshotInfo": _FACE,
    "Update": _FACE,
}
"""Class names that stand for several classes, and why. Those of private classes do not count."""

Place = tuple[Path, int]


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


def find_namesakes(trees: dict[Path, ast.Module]) -> list[str]:
    """Class names that several modules define."""
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not is_private(node.name):
                places[node.name].append((path, node.lineno))
    found = []
    for name, where in sorted(places.items()):
        if len(where) > 1 and name not in SAME_NAME:
            shown = ", ".join(f"{path.relative_to(SOURCE)}:{line}" for path, line in where)
            found.append(f"class {name} is defined in {shown}")
    return found


def main() -> int:
    """Print what was found."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    problems = find_intruders(trees) + find_namesakes(trees)
    print("\n".join(problems) or "private attributes and class names: as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
