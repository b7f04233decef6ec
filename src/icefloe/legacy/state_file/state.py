"""The state file and the names of the files it refers to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.layout import Generation
from icefloe.ids import NodeId, ObjectId, SnapshotId, encode_base32
from icefloe.legacy.checked import Checked

# -- Names of files in a state-file dataset, and the ids that stand for them in memory.
#
# The document defines the directories of files, not their names. New files are named by the text
# of an id, with the suffix `.parquet` for Parquet files. Files with other names can be read:
# their id is a hash of the name, so it is the same in every process.


STATE = "state.json"
STRUCTURES = "s/"
ATTRIBUTES = "a/"
INVENTORIES = "i/"
CHUNKS = "c/"
PARQUET = ".parquet"

KINDS = {
    "snapshots": STRUCTURES,
    "attributes": ATTRIBUTES,
    "manifests": INVENTORIES,
    "chunks": CHUNKS,
}
"""The folders of files that never change, those that refer to others first."""

_MAX_NODE_ID = 2**32 - 1
Id = TypeVar("Id", bound=ObjectId)


def checked(name: str) -> Checked:
    """Checks for one file or a part of it. Errors name the generation."""
    return Checked(f"{name} of {Generation.STATE_FILE.noun}")


class NamedSnapshotId(SnapshotId):
    """The id of a snapshot that another writer has named. It is shown as the state file has it."""

    name: str

    @property
    def text(self) -> str:
        return self.name


def id_of(kind: type[Id], text: str) -> Id:
    """The id that a text stands for: the decoded id, or a hash of any other text."""
    try:
        found = kind.parse(text)
    except InvalidInputError:
        found = None
    if found is not None and found.text == text:
        return found
    return kind(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=kind.size).digest())


@lru_cache(1 << 16)  # a long history is gone through again with every commit
def snapshot_id(text: str) -> SnapshotId:
    """The id of the snapshot that the state file names `text`."""
    plain = id_of(SnapshotId, text)
    if plain.text == text:
        return plain
    named = NamedSnapshotId(plain)
    named.name = text
    return named


def parquet_name(file_id: ObjectId) -> str:
    """The name of a new Parquet file."""
    return encode_base32(file_id) + PARQUET


def key(folder: str, name: str, where: str | Checked) -> str:
    """The key of a file that is referred to by its name, or by its path from the root."""
    path = name if name.startswith(folder) else folder + name
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        check = checked(where) if isinstance(where, str) else where
        raise check.fail(f"{name!r} is not the name of a file below {folder!r}")
    return path


def file_id(folder: str, name: str) -> ObjectId:
    """The id that stands for a file, given by its name or by its path from the root."""
    bare = name.removeprefix(folder)
    return id_of(ObjectId, bare if folder == CHUNKS else bare.removesuffix(PARQUET))


def node_id(number: int, where: str) -> NodeId:
    """The id of a node in memory: its number, padded with zeros."""
    return NodeId(
        checked(where).whole(number, "node id", _MAX_NODE_ID).to_bytes(NodeId.size, "big")
    )


def node_number(found: NodeId) -> int | None:
    """The number of a node, or None if it has no number yet."""
    number = int.from_bytes(found, "big")
    return number if number <= _MAX_NODE_ID else None


def array_id(found: NodeId) -> int:
    """The number of a node in its manifests.

    A node without a number is in a snapshot that only forks of a session read. No other reader uses
    its manifests.
    """
    return int.from_bytes(found[-4:], "big")


# -- `state.json`: the snapshots, branches and tags of a dataset.
#
# Replacing this file makes changes of the dataset visible. `generation` counts the replacements.
# Members that the document does not define are preserved.


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
        return snapshot_id(self.snapshot)

    @property
    def parent_id(self) -> SnapshotId | None:
        return None if self.parent is None else snapshot_id(self.parent)

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


@dataclass(frozen=True, slots=True)
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


def decode_state(data: bytes, name: str = STATE) -> State:
    """Decode a state file. `name` is the name of the file in errors.

    Raises:
        FormatError: it is not a state file.
    """
    check = checked(name)
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
    return _to_json({**document, **state.unknown}, STATE)


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
