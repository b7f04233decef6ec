"""Writes the `__init__.pyi` in which type checkers and editors see every public name.

The names are those of `icefloe/__init__.py` and `icefloe/spark/__init__.py`, which import them on
first use. `--check` says whether the files are up to date.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import icefloe
import icefloe.spark

SRC = Path(__file__).parents[1] / "src"
_HEAD = "# The public names. Made by tools/make_stub.py from __init__.py: do not edit."


def make_stubs() -> dict[Path, str]:
    """The text of each stub, formatted."""
    top = [
        *(f"from icefloe import {module} as {module}" for module in icefloe._MODULES),
        *_imports(icefloe.NAMES_OF),
        "__all__: list[str]",
        "__version__: str",
        "_MODULES: tuple[str, ...]",
        "NAMES_OF: dict[str, tuple[str, ...]]",
    ]
    spark = [
        "from icefloe.spark import maintenance as maintenance",
        *_imports(icefloe.spark.NAMES_OF),
        "__all__: list[str]",
        "NAMES_OF: dict[str, tuple[str, ...]]",
    ]
    folders = {SRC / "icefloe": top, SRC / "icefloe" / "spark": spark}
    stubs = {folder / "__init__.pyi": lines for folder, lines in folders.items()}
    return {
        path: _formatted(path, "\n".join([_HEAD, *lines]) + "\n") for path, lines in stubs.items()
    }


def _imports(names_of: dict[str, tuple[str, ...]]) -> list[str]:
    return [
        f"from icefloe.{module} import {', '.join(f'{name} as {name}' for name in names)}"
        for module, names in names_of.items()
    ]


def _formatted(path: Path, code: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--fix-only", "--select", "I"], ["format"]):
        arguments = [*ruff, *command, "--quiet", "--stdin-filename", str(path), "-"]
        code = subprocess.run(
            arguments, input=code, capture_output=True, text=True, check=True
        ).stdout
    return code


def main() -> int:
    """Write the files, or compare them."""
    is_old = False
    for path, made in make_stubs().items():
        if "--check" not in sys.argv:
            path.write_text(made)
        elif not path.exists() or path.read_text() != made:
            print(f"{path.relative_to(SRC)} is out of date: run `python tools/make_stub.py`")
            is_old = True
    return int(is_old)


if __name__ == "__main__":
    sys.exit(main())
