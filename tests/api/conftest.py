"""Places for repositories, and official icechunk where it is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from icefloe import Storage
from tests.places import KINDS, fresh_storage

os.environ.setdefault("ICECHUNK_LOG", "off")  # official code reads it once, when imported


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty place, of each kind in turn."""
    server = request.getfixturevalue("s3_server") if request.param == "s3" else None
    return fresh_storage(request.param, tmp_path, server)


@pytest.fixture
def official() -> Any:
    return pytest.importorskip(
        "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
    )
