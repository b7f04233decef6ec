"""Every public name, method, argument, default and enum value of official Icechunk is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("icechunk", reason="official Icechunk 2 needs Python 3.12")

ALLOWED = {
    r"^(Repository|Session|ForkSession|IcechunkStore|Storage)\(": "made by functions",
    r"^(AncestryGraph|Diff|FeatureFlag|ManifestFileInfo|SnapshotInfo|Update)\(": "made by methods",
    r"^Manifest(Preload|Split|SplitDim)Condition\(kind": "made by methods",
    r"ManifestPreloadCondition\.(And|False|NameMatches|NumRefs|Or|PathMatches|True)": "made by "
    "methods such as name_matches, which the original's documentation uses",
    r"ManifestSplitCondition\.(And|NameMatches|Or|PathMatches)": "made by methods",
    r"Refreshable(\(|\.)pickled_function": "the function itself; bytes are accepted, too",
    r"^ConflictType\(value\)": "an enum of Python, called with a value",
    r"^dask\.(SimpleGraph|computing_meta|merge_sessions_array_kwargs)": "parts of its reduction",
    r"^repository\.": "imported there by the original for its own use",
    r"to_dict\(config\)": "self under another name",
    r"^RepoStatus\(set_at\)": "now, unless given",
}
"""What may be missing, and why."""


def test_the_surface_of_the_original_is_offered() -> None:
    program = Path(__file__).with_name("surface_program.py")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    left = [line for line in found if not any(re.search(each, line) for each in ALLOWED)]
    assert left == []
    assert [each for each in ALLOWED if not any(re.search(each, line) for line in found)] == []
