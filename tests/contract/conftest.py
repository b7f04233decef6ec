"""The kinds of storage that every contract test runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage, in_memory_storage, local_filesystem_storage
from tests import azure_server
from tests.azure_server import AzureServer, azure_server_process

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Place:
    """A fresh storage, a driver for it, and how operations on that driver are run."""

    storage: Storage
    driver: Driver
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    is_blocking: bool = True


KINDS = ["memory", "local", "s3", "s3-eventloop"]
if azure_server.PROGRAM is not None:  # `test_azure` says so where it is not
    KINDS += ["azure", "azure-eventloop"]


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    with azure_server_process() as server:
        yield server


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        storage = in_memory_storage()
    elif request.param == "local":
        storage = local_filesystem_storage(tmp_path / "repo")
    elif request.param.startswith("azure"):
        storage = request.getfixturevalue("azure").storage()
    else:
        storage = request.getfixturevalue("s3_server").storage()
    if request.param.endswith("-eventloop"):
        return Place(storage, storage.driver(blocking=False), asyncio.run, is_blocking=False)
    return Place(storage, storage.driver(blocking=True), run_blocking)
