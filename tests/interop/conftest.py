"""Quiet official code: it logs every opened folder, which would bury a failure's report."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("ICECHUNK_LOG", "off")  # read once, when the library is imported


def pytest_configure(config: pytest.Config) -> None:
    """Marks of xarray's own tests, which `test_xarray_suite.py` runs."""
    for name in ("asyncio", "flaky", "network", "skip_if_param", "skip_with_dask_array"):
        config.addinivalue_line("markers", f"{name}: a mark of xarray's tests")
