"""Repositories for ingests."""

from __future__ import annotations

from pathlib import Path

import pytest

import icefloe
from icefloe import Repository
from icefloe.credentials import LocalFileSystemAccess
from tests.virtual_sources import config_of


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository whose references may point at files of the test, and be read."""
    files = icefloe.local_filesystem_store(str(tmp_path))
    config = config_of([icefloe.VirtualChunkContainer(f"file://{tmp_path}/", files)])
    access = {f"file://{tmp_path}/": LocalFileSystemAccess}
    return Repository.create(icefloe.in_memory_storage(), config, access)
