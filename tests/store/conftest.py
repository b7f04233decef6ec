"""Places for repositories, and how the asynchronous tests of zarr's suite are run."""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path

import pytest

from icefloe import Storage
from tests.places import KINDS, fresh_storage

os.environ.setdefault("ICECHUNK_LOG", "off")  # official code reads it once, when imported


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    server = request.getfixturevalue("s3_server") if request.param == "s3" else None
    return fresh_storage(request.param, tmp_path, server)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Give each coroutine test an event loop of its own; that is all this suite needs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True
