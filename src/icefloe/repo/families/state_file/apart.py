"""A state file that is kept apart from the rest of its dataset (`store_root`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from icefloe.legacy.state_file import names
from icefloe.storage.driver import Driver, Version
from icefloe.storage.spec import Storage


def apart(state: Driver, root: Storage) -> Driver:
    """A driver for the files below `root` that takes the state file from `state`."""
    is_blocking = getattr(state, "is_blocking", True)
    data = root.driver(state.settings, blocking=is_blocking)
    return cast(Driver, _Apart(state, data))


class _Apart:
    """Sends requests for the state file to one driver and all others to a second driver."""

    def __init__(self, state: Driver, data: Driver) -> None:
        self._state, self._data = state, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    @property
    def can_write(self) -> bool:
        return self._state.can_write and self._data.can_write

    def _home(self, key: str) -> Driver:
        return self._state if key == names.STATE else self._data

    async def get_versioned(self, key: str) -> tuple[bytes, Version]:
        return await self._home(key).get_versioned(key)

    async def get_if_changed(self, key: str, version: Version) -> tuple[bytes, Version] | None:
        return await self._home(key).get_if_changed(key, version)

    async def put_if(
        self,
        key: str,
        data: bytes,
        *,
        previous: Version | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Version:
        return await self._home(key).put_if(
            key, data, previous=previous, metadata=metadata, content_type=content_type
        )
