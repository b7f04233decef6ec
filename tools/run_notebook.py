"""Runs the cells of a notebook and keeps what they show: text, the last value, pictures.

    python tools/run_notebook.py docs/tutorial.ipynb

The notebook is plain Python without magics, so no Jupyter is needed to run it. Files that its cells
write go to a temporary folder.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def run(cells: list[dict[str, Any]]) -> list[list[Output]]:
    """Run the code cells in one namespace; the outputs of each cell, as a notebook keeps them."""
    import matplotlib as mpl

    mpl.use("agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return [
        _run_cell("".join(cell["source"]), namespace) if cell["cell_type"] == "code" else []
        for cell in cells
    ]


def _run_cell(code: str, namespace: dict[str, Any]) -> list[Output]:
    from matplotlib import pyplot

    tree = ast.parse(code)
    last = tree.body[-1]
    value = last.value if isinstance(last, ast.Expr) else None
    if value is not None:
        tree.body.pop()
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if value is not None:
            shown = eval(compile(ast.Expression(value), "<cell>", "eval"), namespace)
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
        )
    if pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.gcf().savefig(picture, dpi=80)
        pyplot.close("all")
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    elif shown is not None:
        text = {"text/plain": _lines(repr(shown))}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": text})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(path: Path) -> None:
    """Run a notebook and write its outputs into it."""
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["TZ"] = "UTC"
        outputs = run(notebook["cells"])
    for cell, shown in zip(notebook["cells"], outputs, strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = shown
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
