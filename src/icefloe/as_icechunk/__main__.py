"""`python -m icefloe.as_icechunk program.py ...` runs a program in which icechunk is icefloe.

`-m module` and `-c command` work as with Python itself.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from icefloe.as_icechunk.installing import install

_USAGE = "usage: python -m icefloe.as_icechunk (program.py | -m module | -c command) [arguments]"


def main(arguments: list[str]) -> None:
    """Run what the command line names, with the rest of it as `sys.argv`."""
    if not arguments or (arguments[0] in ("-m", "-c") and len(arguments) == 1):
        raise SystemExit(_USAGE)
    install()
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


main(sys.argv[1:])
