"""`state.json`: the snapshots, branches and tags of a dataset.

Replacing this file makes changes of the dataset visible. `generation` counts the replacements.
Members that the document does not define are preserved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, NamedTuple

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ids import SnapshotId
from icefloe.legacy.checked import Checked
from icefloe.legacy.generation import Generation
from icefloe.legacy.state_file import names
from icefloe.records import record

MAIN = "main"
MESSAGE = "message"
"""The property for the message of a commit. The document defines no member for it."""

_MAX_MS = 2**63 // 1000 - 1
_STATE_MEMBERS = ("id", "generation", "store_root", "snapshots", "refs")
_SNAPSHOT_MEMBERS = (
    "snapshot-id",
    "parent-snapshot-id",
    "timestamp-ms",
    "structure-file",
    "properties",
)


class RefType(StrEnum):
    """The type of a reference."""

    branch = "branch"
    tag = "tag"


class Ref(NamedTuple):
    """A name for a snapshot."""

    snapshot: str
    type: RefType


class Entry(NamedTuple):
    """One snapshot of the state file. Ids are texts, as in the file."""

    snapshot: str
    parent: str | None
    timestamp_ms: int
    structure_file: str
    properties: Mapping[str, Any] | None = None
    unknown: Mapping[str, Any] = {}

    @property
    def id(self) -> SnapshotId:
        return names.snapshot_id(self.snapshot)

    @property
    def parent_id(self) -> SnapshotId | None:
        return None if self.parent is None else names.snapshot_id(self.parent)

    @property
    def message(self) -> str:
        found = (self.properties or {}).get(MESSAGE, "")
        return found if isinstance(found, str) else ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The properties without the message."""
        properties = dict(self.properties or {})
        if isinstance(properties.get(MESSAGE), str):
            del properties[MESSAGE]
        return properties


@record(frozen=True)
class State:
    """A state file. Snapshots are in the order they were appended, oldest first."""

    id: str
    generation: int
    snapshots: tuple[Entry, ...]
    refs: Mapping[str, Ref] = field(default_factory=dict)
    store_root: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def named(self, kind: RefType) -> dict[str, str]:
        """Names of one type, and the snapshots they point at.

        In a state file without references, branch `main` is implied and points at the newest
        snapshot.
        """
        if not self.refs and self.snapshots and kind is RefType.branch:
            return {MAIN: max(self.snapshots, key=lambda entry: entry.timestamp_ms).snapshot}
        return {name: ref.snapshot for name, ref in self.refs.items() if ref.type is kind}


def decode_state(data: bytes, name: str = names.STATE) -> State:
    """Decode a state file. `name` is the name of the file in errors.

    Raises:
        FormatError: it is not a state file.
    """
    check = names.checked(name)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise check.fail(f"it is not JSON ({error})") from None
    document = check.mapping(document, "the file")
    listed = check.items(check.member(document, "snapshots", "the file"), "snapshots")
    entries = tuple(
        _decode_entry(item, check, f"snapshot {row}") for row, item in enumerate(listed)
    )
    seen: set[str] = set()
    for entry in entries:
        if entry.snapshot in seen:
            raise check.fail(f"snapshot {entry.snapshot!r} is listed twice")
        seen.add(entry.snapshot)
    return State(
        _filled(document, "id", check, "the file"),
        check.whole(check.member(document, "generation", "the file"), "generation"),
        entries,
        _decode_refs(document.get("refs"), check),
        _filled_or_none(document, "store_root", check, "the file"),
        {key: value for key, value in document.items() if key not in _STATE_MEMBERS},
    )


def _decode_entry(item: Any, check: Checked, what: str) -> Entry:
    item = check.mapping(item, what)
    properties = item.get("properties")
    if properties is not None:
        properties = check.mapping(properties, f"properties of {what}")
    timestamp = check.member(item, "timestamp-ms", what)
    return Entry(
        _filled(item, "snapshot-id", check, what),
        _filled_or_none(item, "parent-snapshot-id", check, what),
        check.whole(timestamp, f"timestamp-ms of {what}", _MAX_MS),
        _filled(item, "structure-file", check, what),
        properties,
        {key: value for key, value in item.items() if key not in _SNAPSHOT_MEMBERS},
    )


def _decode_refs(found: Any, check: Checked) -> dict[str, Ref]:
    """References by name, from a mapping or a list. The document allows both readings."""
    if found is None:
        return {}
    if isinstance(found, list):
        pairs = [(check.mapping(item, "a reference").get("name"), item) for item in found]
    else:
        pairs = list(check.mapping(found, "refs").items())
    refs: dict[str, Ref] = {}
    for key, found_ref in pairs:
        name, what = check.text(key, "the name of a reference"), f"reference {key!r}"
        item = check.mapping(found_ref, what)
        if not name or item.get("name", name) != name:
            raise check.unexpected(f"the name of {what}", item.get("name"), "its own, not empty")
        if name in refs:
            raise check.fail(f"{what} is there twice")
        kind = check.member(item, "type", what)
        if kind not in list(RefType):
            raise check.unexpected(f"type of {what}", kind, "'tag' or 'branch'")
        refs[name] = Ref(_filled(item, "snapshot-id", check, what), RefType(kind))
    return refs


def _filled(found: Mapping[str, Any], key: str, check: Checked, what: str) -> str:
    value = check.text(check.member(found, key, what), f"{key} of {what}")
    if not value:
        raise check.unexpected(f"{key} of {what}", value, "text that is not empty")
    return value


def _filled_or_none(found: Mapping[str, Any], key: str, check: Checked, what: str) -> str | None:
    return _filled(found, key, check, what) if found.get(key) not in (None, "") else None


def encode_state(state: State) -> bytes:
    """The bytes of a state file."""
    document: dict[str, Any] = {"id": state.id, "generation": state.generation}
    if state.store_root is not None:
        document["store_root"] = state.store_root
    document["snapshots"] = [_encode_entry(entry) for entry in state.snapshots]
    document["refs"] = {
        name: {"name": name, "snapshot-id": ref.snapshot, "type": ref.type.value}
        for name, ref in state.refs.items()
    }
    return _to_json({**document, **state.unknown}, names.STATE)


def _encode_entry(entry: Entry) -> dict[str, Any]:
    document: dict[str, Any] = {
        "snapshot-id": entry.snapshot,
        "parent-snapshot-id": entry.parent,
        "timestamp-ms": entry.timestamp_ms,
        "structure-file": entry.structure_file,
    }
    if entry.properties is not None:
        document["properties"] = dict(entry.properties)
    return {**document, **entry.unknown}


def properties_of(message: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a commit.

    Raises:
        InvalidInputError: they cannot be written as JSON, or use the name of the message.
    """
    if MESSAGE in metadata:
        raise InvalidInputError(
            f"commit metadata has a member {MESSAGE!r}, which is where {Generation.STATE_FILE.noun}"
            " keeps the message of a commit; choose another name",
            ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
    properties = {MESSAGE: message, **metadata}
    _to_json(properties, "commit metadata")
    return properties


def _to_json(value: Any, what: str) -> bytes:
    """Compact standard JSON, without NaN."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{what} cannot be written as JSON: {error}", ErrorKind.SERIALIZATION
        ) from None


def line(entries: Mapping[SnapshotId, Entry], tip: SnapshotId) -> list[Entry]:
    """A snapshot and its listed ancestors, newest first."""
    found: dict[SnapshotId, Entry] = {}
    current: SnapshotId | None = tip
    while current is not None and current in entries and current not in found:
        found[current] = entries[current]
        current = entries[current].parent_id
    return list(found.values())
