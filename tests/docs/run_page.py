"""Runs the examples of a document, one after the other, as a reader would: Python and shell.

    python tests/docs/run_page.py PAGE

They run in the current folder, and nothing is prepared for them. The Python blocks of a page share
one namespace. `python -m tests.docs.run_site` runs all pages in one folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\n$")
"""In the line before a block that needs a bucket or a cluster; it is checked for names instead."""


def examples_of(page: Path, *, is_run: bool = True) -> list[tuple[int, str, str]]:
    """The examples of a page: the line (or cell) each begins at, its language, its text."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"] if is_run else []
        codes = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        return [
            (number, "python", code)
            for number, (kind, code) in enumerate(codes, 1)
            if kind == "code"
        ]
    return [
        (text[: found.start(2)].count("\n") + 1, found[1], found[2])
        for found in BLOCK.finditer(text)
        if is_run == (NOT_RUN.search(text[: found.start()]) is None)
    ]


def blocks_of(page: Path, *, is_run: bool = True) -> list[tuple[int, str]]:
    """The Python blocks of a page, with the number of the line each begins at."""
    return [
        (line, code)
        for line, language, code in examples_of(page, is_run=is_run)
        if language == "python"
    ]


def finish_streams(namespace: dict[str, Any]) -> None:
    """Let streams that a block started do what there is to do, and end them."""
    spark = namespace.get("spark")
    for query in spark.streams.active if spark is not None else ():
        query.processAllAvailable()
        query.stop()


def main(page: Path) -> None:
    """Run all examples; one that fails ends the program with its line in the traceback."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, language, code in examples_of(page):
        print(f"{page.name}:{line}", flush=True)  # noqa: T201 - says how far it came
        if language == "sh":
            subprocess.run(["bash", "-ec", code], check=True, timeout=300)
        else:
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
            finish_streams(namespace)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
