"""Names of files in a state-file dataset, and the ids that stand for them in memory.

The document defines the directories of files, not their names. New files are named by the text of
an id, with the suffix `.parquet` for Parquet files. Files with other names can be read: their id is
a hash of the name, so it is the same in every process.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

from icefloe.errors import InvalidInputError
from icefloe.ids import ChunkId, NodeId, ObjectId, SnapshotId, encode_base32
from icefloe.legacy.checked import Checked
from icefloe.legacy.generation import Generation

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


def key(folder: str, name: str, where: str) -> str:
    """The key of a file that is referred to by its name, or by its path from the root."""
    path = name if name.startswith(folder) else folder + name
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise checked(where).fail(f"{name!r} is not the name of a file below {folder!r}")
    return path


def file_id(folder: str, name: str) -> ObjectId:
    """The id that stands for a file, given by its name or by its path from the root."""
    bare = name.removeprefix(folder)
    return id_of(ObjectId, bare if folder == CHUNKS else bare.removesuffix(PARQUET))


def chunk_key(chunk_id: ChunkId) -> str:
    """The file of one chunk, or of several packed together."""
    return CHUNKS + chunk_id.text


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
