"""Runs one scenario under the official release installed in this interpreter.

Started by make_golden.py as `python -m tests.golden.writer SCENARIO ROOT NOTES`. Scenarios are
listed here; what they do is in their own modules.
"""

import argparse
import importlib
import json
from pathlib import Path

from tests.golden.recorder import Recorder

# Imported on demand: most modules use names that only recent releases have.
SCENARIOS = {
    "basics": "tests.golden.basics:write_basics",
    "settings": "tests.golden.settings:write_settings",
    "history": "tests.golden.history:write_history",
    "paged ops log": "tests.golden.history:write_paged_ops_log",
    "moves": "tests.golden.history:write_moves",
    "grids": "tests.golden.layouts:write_grids",
    "splits": "tests.golden.layouts:write_splits",
    "locations": "tests.golden.layouts:write_locations",
    "migrate": "tests.golden.maintenance:migrate",
    "expire": "tests.golden.maintenance:write_expired",
    "collect": "tests.golden.maintenance:collect",
}


def main() -> None:
    """Write or change the repository below ROOT and leave the notes of the scenario in NOTES."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("root", type=Path)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--spec", type=int, default=2)
    arguments = parser.parse_args()
    record = Recorder(arguments.scenario)
    if arguments.notes.exists():
        # The scenario continues a repository that another one wrote.
        record.earlier.append(json.loads(arguments.notes.read_text("utf-8")))
    module, _, function = SCENARIOS[arguments.scenario].partition(":")
    getattr(importlib.import_module(module), function)(arguments.root, arguments.spec, record)
    arguments.notes.write_text(json.dumps(record.as_json()), "utf-8")


if __name__ == "__main__":
    main()
