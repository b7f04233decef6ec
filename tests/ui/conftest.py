"""Repositories to look at, and servers that show them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.ui import PageServer, page_server
from tests.ui.browser import Browser, running_browser
from tools.find_browser import ADVICE, find_browser

MUST_RUN = "ICEFLOE_BROWSER_TESTS"
"""`make browser` sets it to "required": then a missing browser is a failure."""


@contextmanager
def serving(repo: icefloe.Repository, name: str = "weather") -> Iterator[PageServer]:
    """A server in a thread of its own."""
    server = page_server(repo, name=name)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def make_weather(spec_version: int = 2) -> icefloe.Repository:
    """Four commits on `main`, one on `dev`, a tag; an array with chunks of every kind."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=64)
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config, spec_version=spec_version)
    session = repo.writable_session("main")
    root = zarr.group(session.store, attributes={"title": "made up"})
    t2m = root.create_array(
        "surface/t2m",
        shape=(4, 6, 8),
        chunks=(1, 3, 4),
        dtype="f4",
        fill_value=np.nan,
        dimension_names=["time", "lat", "lon"],
        compressors=None,
    )
    t2m.attrs.update({"units": "K", "long_name": "2 metre temperature"})
    t2m[0] = np.arange(48).reshape(6, 8)
    lat = root.create_array("surface/lat", shape=(6,), dtype="f8", dimension_names=["lat"])
    lat[:] = np.linspace(50, 0, 6)
    lat.attrs["units"] = "degrees_north"
    root.create_array("surface/station", shape=(3,), dtype=str)[:] = ["a", "b", "c"]
    root.create_array("depth", shape=(), dtype="i4")[...] = 7
    session.commit("first\n\nwith a second line", {"author": "ana"})
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.create_branch("dev", repo.lookup_branch("main"))
    for hour in (1, 2):
        with repo.transaction("main", message=f"hour {hour}") as store:
            zarr.open_array(store, path="surface/t2m")[hour] = 100 * hour
    with repo.transaction("dev", message="an experiment") as store:
        zarr.open_array(store, path="surface/t2m")[0, :3, :4] = -5
        zarr.open_group(store).create_group("extra")
    return repo


@pytest.fixture(scope="package")
def weather() -> icefloe.Repository:
    return make_weather()


@pytest.fixture(scope="package")
def server(weather: icefloe.Repository) -> Iterator[PageServer]:
    with serving(weather) as running:
        yield running


def require_browser() -> str:
    """The browser; without one, a test is skipped or fails, and says why."""
    program = find_browser()
    if program is None:
        (pytest.fail if os.environ.get(MUST_RUN) == "required" else pytest.skip)(ADVICE)
    return program


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = require_browser()
    profile: Path = tmp_path_factory.mktemp("profile")
    with running_browser(program, profile) as running:
        yield running
