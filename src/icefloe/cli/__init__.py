"""The command line `icefloe`; needs the extra `cli`."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec

MISSING_PACKAGE = 8
"""The exit code if a package is missing."""
_MISSING = """icefloe: the command line needs click, which is not installed.
Install the extra:  pip install 'icefloe[cli]'"""


def main() -> int:
    """Run a command; says which extra to install if what it needs is missing."""
    if find_spec("click") is None:
        print(_MISSING, file=sys.stderr)  # noqa: T201
        return MISSING_PACKAGE
    from icefloe.cli.program import run  # it needs the extra

    code = run()
    gc.freeze()  # the process ends: looking for garbage among all modules takes 0.05 s
    return code
