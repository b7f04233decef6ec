"""The generations of the format, and where each kind of object lives below the root."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ids import ChunkId, ManifestId, ObjectId, SnapshotId, encode_base32_rows

# -- The generations of the format, oldest first.


class Generation(StrEnum):
    """A generation of the format. Each has its own file names and encodings."""

    STATE_FILE = "state-file"
    """`state.json` and Parquet files, as in document 003."""
    NUMBERED = "numbered"
    """Numbered branch files below `r/` and 16-byte ids, as in document 000."""
    ALPHA = "alpha"
    """Icechunk 0.1.0-alpha.1 to alpha.8: files are MessagePack without a header."""
    BETA = "beta"
    """Icechunk 0.1.0-alpha.10 to 0.1.3: MessagePack after the header of document 004."""
    SPEC_1 = "spec-1"
    SPEC_2 = "spec-2"

    @property
    def noun(self) -> str:
        """The name of such a repository in errors."""
        return _NOUNS[self]


_NOUNS = {
    Generation.STATE_FILE: "a dataset with a state file (2024-08)",
    Generation.NUMBERED: "a repository with numbered refs (2024-10)",
    Generation.ALPHA: "a repository of Icechunk 0.1.0-alpha.1 to alpha.8",
    Generation.BETA: "a repository of Icechunk 0.1.0-alpha.10 to 0.1.3",
    Generation.SPEC_1: "a repository of spec version 1",
    Generation.SPEC_2: "a repository of spec version 2",
}


# -- Where each kind of object lives below a repository's root.


REPO = "repo"
CONFIG_YAML = "config.yaml"
SNAPSHOTS = "snapshots/"
MANIFESTS = "manifests/"
TRANSACTIONS = "transactions/"
CHUNKS = "chunks/"
REFS = "refs/"
STATE_FILE = "state.json"
"""The root of datasets of 2024-08."""
COLLECTED = "icefloe/collected.json"
"""Up to when objects may have been collected; see `icefloe.repo.gc_guard`."""
MEMORY = "icefloe/collection"
"""What a collection leaves for the next one; see `icefloe.maintenance.incremental`."""
OVERWRITTEN = "overwritten/"
TOP_LEVEL = frozenset(
    {REPO, CONFIG_YAML, SNAPSHOTS, MANIFESTS, TRANSACTIONS, CHUNKS, REFS, OVERWRITTEN, "icefloe/"}
)
"""The files and folders at the root of a repository."""

KINDS = {
    "snapshots": SNAPSHOTS,
    "transaction_logs": TRANSACTIONS,
    "manifests": MANIFESTS,
    "chunks": CHUNKS,
}
"""The folders of objects that are named by ids, in the order in which a collection deletes them:
an object is deleted after everything that refers to it."""

# Backups count down from 3000-01-01, so that a listing shows the newest first.
_BACKUP_EPOCH_MS = 32503680000000


def snapshot_key(snapshot_id: SnapshotId) -> str:
    """The file of a snapshot."""
    return SNAPSHOTS + snapshot_id.text


def manifest_key(manifest_id: ManifestId) -> str:
    """The file of a manifest."""
    return MANIFESTS + manifest_id.text


def transaction_log_key(snapshot_id: SnapshotId) -> str:
    """A log carries the id of the snapshot it led to."""
    return TRANSACTIONS + snapshot_id.text


def chunk_key(chunk_id: ChunkId) -> str:
    """The object of one native chunk, or of several packed together."""
    return CHUNKS + chunk_id.text


def chunk_keys(chunk_ids: NDArray[np.uint8]) -> list[str]:
    """The objects of many chunks; ids are rows of 12 bytes."""
    return [CHUNKS + text for text in encode_base32_rows(chunk_ids)]


def branch_key(name: str) -> str:
    """The ref file of a version-1 branch."""
    return f"{REFS}branch.{ref_name(name)}/ref.json"


def tag_key(name: str) -> str:
    """The ref file of a version-1 tag; it stays when the tag is deleted."""
    return f"{REFS}tag.{ref_name(name)}/ref.json"


def tag_tombstone_key(name: str) -> str:
    """The empty file that marks a version-1 tag as deleted."""
    return tag_key(name) + ".deleted"


def backup_name(key: str, now_ms: int, random_id: ObjectId) -> str:
    """Name, below `overwritten/`, of a copy of `key` made at `now_ms` before overwriting it."""
    return f"{key}.{_BACKUP_EPOCH_MS - now_ms:014d}.{random_id.text}"


def ref_name(name: str) -> str:
    """`name`, if it is valid in a file name."""
    if not name or "/" in name:
        raise InvalidInputError(
            f"ref name {name!r}: it must not be empty or contain '/'", ErrorKind.INVALID_REF_NAME
        )
    return name
