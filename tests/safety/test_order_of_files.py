"""What has to survive a power failure before something refers to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.api.handles import Handles
from icefloe.format import layout
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock
from icefloe.storage.run import run_blocking
from icefloe.testing.wrapping import WrappingDriver
from tests.safety.worlds import copy_of, driver_of


class Recorder(WrappingDriver):
    """Remembers which writes were made, and when they were made durable."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.calls: list[str] = []

    async def before(self, method: str, key: str) -> None:
        if method.startswith("put"):
            self.calls.append(f"{method} {key}")

    async def sync(self) -> None:
        self.calls.append("sync")
        await super().sync()


def _commits(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    session.commit("empty", allow_empty=True)


def _amends(repository: icefloe.Repository) -> None:
    repository.writable_session("main").amend("empty", allow_empty=True)


def _sets_metadata(repository: icefloe.Repository) -> None:
    repository.set_metadata({"a": 1})


def _saves_config(repository: icefloe.Repository) -> None:
    repository.save_config()


@pytest.mark.parametrize(
    ("spec", "change", "final"),
    [
        (2, _commits, layout.REPO),
        (2, _amends, layout.REPO),
        (2, _sets_metadata, layout.REPO),
        (2, _saves_config, layout.REPO),
        (1, _commits, layout.branch_key("main")),
        (1, _saves_config, layout.CONFIG_YAML),
    ],
)
def test_everything_is_durable_before_it_is_referred_to(
    spec: int, change: Callable[[icefloe.Repository], None], final: str, tmp_path: Path
) -> None:
    storage = copy_of(spec, "local", tmp_path, has_config=True)
    driver = Recorder(driver_of(storage))
    handle = run_blocking(lifecycle.open_repository(storage, driver, None, Clock()))
    driver.calls.clear()
    change(icefloe.Repository(Handles(handle, is_blocking=True)))
    published = driver.calls.index(f"put_if {final}")
    written = [at for at, call in enumerate(driver.calls[:published]) if call.startswith("put")]
    assert written, "nothing was written before"
    assert "sync" in driver.calls[written[-1] : published], driver.calls
