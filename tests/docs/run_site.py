"""Runs all pages of the documentation in the order of the site, in one folder.

    python -m tests.docs.run_site FOLDER

Each page runs with the wheel of this folder, the extras that its first `pip install` names and no
other package, in an environment that is built below FOLDER. `make pages` calls it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.docs.run_page import examples_of
from tools.docs_site import DOCS, sections

ROOT = DOCS.parent
INSTALL = re.compile(r"pip install \\*[\"']?icefloe(?:\[([a-z0-9,]+)\]\\*[\"']?( matplotlib)?)?")


def pages() -> list[Path]:
    """The pages with examples, in the order of the site."""
    listed = sections((DOCS / "README.md").read_text())
    found = [DOCS / file for _, rows in listed for _, file in rows]
    return [page for page in found if examples_of(page)]


def extras_of(page: Path) -> str:
    """The extras that the first installation on a page names; none if it has no installation."""
    found = INSTALL.search(page.read_text())
    return ",".join(sorted((found[1] or "").split(","))) if found else ""


def also_of(page: Path) -> list[str]:
    """The package that the first installation on a page names after icefloe, if any."""
    found = INSTALL.search(page.read_text())
    return [found[2].strip()] if found and found[2] else []


def run_page(page: Path, python: Path | str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the examples of a page in a folder, with the packages of one Python."""
    programs = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    # What the command line keeps for its user is kept below the folder, too.
    own = {"PATH": programs, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config")}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(python), str(ROOT / "tests" / "docs" / "run_page.py"), str(page)],
        cwd=folder,
        env={**kept, **own},
        capture_output=True,
        check=False,
        text=True,
        timeout=580,
    )


def build_wheel(folder: Path) -> Path:
    """What `pip install icefloe` would install."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, timeout=300)
    [wheel] = folder.glob("*.whl")
    return wheel


def main(folder: Path) -> int:
    """Run every page; the first one that fails is shown and ends the run."""
    reader = folder / "reader"
    reader.mkdir(parents=True)
    wheel = build_wheel(folder / "wheel")
    begun = time.monotonic()
    for page in pages():
        extras = extras_of(page)
        also = also_of(page)
        venv = folder / "-".join(["icefloe", extras or "alone", *also])
        subprocess.run(
            [
                sys.executable,
                "tools/setup_env.py",
                f"--package={wheel}",
                f"--extras={extras}",
                str(venv),
                "--also",
                *also,
            ],
            cwd=ROOT,
            check=True,
            timeout=900,
        )
        started = time.monotonic()
        done = run_page(page, venv / "bin" / "python", reader)
        if done.returncode:
            sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
            sys.stderr.write(f"\n{page.name} fails with icefloe[{extras}]\n")
            return 1
        took = time.monotonic() - started
        sys.stdout.write(f"{page.name:<24} icefloe[{extras}] {took:.0f} s\n")
        sys.stdout.flush()
    minutes = (time.monotonic() - begun) / 60
    sys.stdout.write(f"{len(pages())} passed, 0 failed, in {minutes:.0f} minutes with set-up\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
