"""Branches and tags of version 1: one small JSON file each, and tombstones for deleted tags."""

from __future__ import annotations

import json

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import SnapshotId

TOMBSTONE = b""
"""The content of `ref.json.deleted`, which hides a tag for good."""


def decode_ref_file(data: bytes, name: str = "ref file") -> SnapshotId:
    """The snapshot a ref file points at. `name` is what errors call the file."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise FormatError(f"{name}: holds {data[:60]!r}, expected a JSON object") from None
    snapshot = document.get("snapshot") if isinstance(document, dict) else None
    if not isinstance(snapshot, str):
        raise FormatError(f'{name}: holds {data[:60]!r}, expected {{"snapshot": "<id>"}}')
    try:
        return SnapshotId.parse(snapshot)
    except InvalidInputError as error:
        raise FormatError(f"{name}: {error.message}") from None


def encode_ref_file(snapshot_id: SnapshotId) -> bytes:
    """Exactly the bytes official writers produce: compact, no newline."""
    return b'{"snapshot":"%s"}' % snapshot_id.text.encode()
