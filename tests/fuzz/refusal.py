"""How a hostile file has to be refused: by name, with what was wrong, in little time and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icefloe.errors import FormatError
from icefloe.format.manifest import decode_manifest
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.snapshot import decode_snapshot
from icefloe.format.transaction_log import decode_transaction_log
from tests.fuzz.guard import limited

DECODERS: dict[str, Callable[[bytes, str], Any]] = {
    "snapshot": decode_snapshot,
    "manifest": decode_manifest,
    "log": decode_transaction_log,
    "repo": decode_repo_info,
}


def refused(kind: str, data: bytes, *expected: str) -> FormatError:
    """The error with which this kind of metadata file is refused; it has all of `expected`."""
    name = f"a/{kind}/FILE"
    return refused_by(lambda: DECODERS[kind](data, name), f"{name}: ", *expected)


def refused_by(work: Callable[[], Any], start: str, *expected: str) -> FormatError:
    """The error that `work` ends with; its message starts with `start` and has `expected`."""
    with pytest.raises(FormatError) as caught:
        limited(work)
    message = caught.value.message
    assert message.startswith(start)
    assert [text for text in expected if text not in message] == [], message
    return caught.value
