"""The command line `icefloe`; needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_MISSING = """icefloe: the command line needs click, which is not installed.
Install the extra:  pip install 'icefloe[cli]'"""


def main() -> int:
    """Run a command; says which extra to install if what it needs is missing."""
    if find_spec("click") is None:
        print(_MISSING, file=sys.stderr)  # noqa: T201
        return 1
    from icefloe.cli.program import run  # noqa: PLC0415 - it needs the extra

    return run()
