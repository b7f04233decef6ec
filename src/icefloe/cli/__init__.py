"""The command line `icefloe`; needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_MISSING = """icefloe: the command line needs {names}, which {verb} not installed.
Install the extra:  pip install 'icefloe[cli]'"""


def main() -> int:
    """Run a command; says which extra to install if what it needs is missing."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        print(_MISSING.format(names=" and ".join(missing), verb=verb), file=sys.stderr)  # noqa: T201
        return 1
    from icefloe.cli.program import run  # noqa: PLC0415 - it needs the extra

    return run()
