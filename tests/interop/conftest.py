"""Quiet official code: it logs every opened folder, which would bury a failure's report."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interop.sides import Place

os.environ.setdefault("ICECHUNK_LOG", "off")  # read once, when the library is imported


def pytest_configure(config: pytest.Config) -> None:
    """Marks of xarray's own tests, which `test_xarray_suite.py` runs."""
    for name in ("asyncio", "flaky", "network", "skip_if_param", "skip_with_dask_array"):
        config.addinivalue_line("markers", f"{name}: a mark of xarray's tests")


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder or a prefix on a server, for a repository that both libraries open."""
    from tests.interop.sides import Place

    if request.param == "local":
        return Place(tmp_path / "repository")
    return Place(server=request.getfixturevalue("s3_server"), prefix=uuid.uuid4().hex)
