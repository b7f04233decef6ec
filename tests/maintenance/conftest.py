"""Official icechunk, where it is installed."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("ICECHUNK_LOG", "off")  # official code reads it once, when imported


@pytest.fixture
def official() -> Any:
    return pytest.importorskip(
        "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
    )
