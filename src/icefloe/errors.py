"""Every exception icefloe raises, and the stable codes they carry.

The classes say what a caller would do about the failure; `kind` says exactly what
happened. Names, parents and codes are Icechunk's, so handlers carry over::

    IcechunkError (alias IcefloeError)
    ├── ConflictError                 someone else was first: rebase and try again
    │   └── RebaseFailedError         ... and the solver could not settle it
    ├── NotFoundError (KeyError)
    │   ├── NodeNotFoundError
    │   ├── SnapshotNotFoundError
    │   ├── RefNotFoundError
    │   └── RepositoryNotFoundError
    ├── AlreadyExistsError
    ├── ReadOnlyError
    ├── InvalidInputError (ValueError)
    ├── SessionStateError
    ├── StorageError                  the network, the bucket or the disk
    │   └── UnknownOutcomeError       a write may or may not have happened: look before retrying
    ├── FormatError                   bytes on storage that do not follow the format
    └── InternalError                 a bug here; please report it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar

from icefloe.display import qualified


class ErrorKind(StrEnum):
    """Stable machine-readable codes for `IcechunkError.kind`. Codes are only ever added."""

    # conflicts
    COMMIT_CONFLICT = "commit-conflict"
    BRANCH_UPDATE_CONFLICT = "branch-update-conflict"
    REBASE_FAILED = "rebase-failed"
    CONFIG_UPDATED = "config-updated"
    REPO_INFO_UPDATED = "repo-info-updated"
    UPDATE_ATTEMPTS_EXHAUSTED = "update-attempts-exhausted"
    GC_DELETES_FAILING = "gc-deletes-failing"
    # not found
    NODE_NOT_FOUND = "node-not-found"
    ANCESTOR_NODE_NOT_FOUND = "ancestor-node-not-found"
    CHUNK_NOT_FOUND = "chunk-not-found"
    KEY_NOT_FOUND = "key-not-found"
    SNAPSHOT_NOT_FOUND = "snapshot-not-found"
    NO_SNAPSHOT_AT_TIME = "no-snapshot-at-time"
    REF_NOT_FOUND = "ref-not-found"
    BRANCH_NOT_FOUND = "branch-not-found"
    TAG_NOT_FOUND = "tag-not-found"
    REPOSITORY_NOT_FOUND = "repository-not-found"
    MANIFEST_INFO_NOT_FOUND = "manifest-info-not-found"
    # already exists
    NODE_ALREADY_EXISTS = "node-already-exists"
    BRANCH_ALREADY_EXISTS = "branch-already-exists"
    TAG_ALREADY_EXISTS = "tag-already-exists"
    TAG_PREVIOUSLY_DELETED = "tag-previously-deleted"
    MOVE_WONT_OVERWRITE = "move-wont-overwrite"
    # read only
    READ_ONLY_SESSION = "read-only-session"
    READ_ONLY_STORE = "read-only-store"
    READ_ONLY_STORAGE = "read-only-storage"
    READ_ONLY_REPOSITORY = "read-only-repository"
    # input
    INVALID_KEY = "invalid-key"
    INVALID_CHUNK_INDEX = "invalid-chunk-index"
    ZERO_LENGTH_CHUNK = "zero-length-chunk"
    INVALID_MANIFEST_SPLIT_INDEX = "invalid-manifest-split-index"
    INVALID_REF_TYPE = "invalid-ref-type"
    INVALID_REF_NAME = "invalid-ref-name"
    INVALID_SNAPSHOT_ID = "invalid-snapshot-id"
    INVALID_PATH = "invalid-path"
    BAD_KEY_PREFIX = "bad-key-prefix"
    BAD_METADATA = "bad-metadata"
    BAD_PREFIX = "bad-prefix"
    NOT_AN_ARRAY = "not-an-array"
    NOT_A_GROUP = "not-a-group"
    INVALID_BYTE_RANGE = "invalid-byte-range"
    INVALID_COMMIT_CONFIGURATION = "invalid-commit-configuration"
    INVALID_ARRAY_METADATA = "invalid-array-metadata"
    INVALID_FEATURE_FLAG = "invalid-feature-flag"
    INVALID_VIRTUAL_REF = "invalid-virtual-ref"
    INVALID_CREDENTIALS = "invalid-credentials"
    NO_CONTAINER_FOR_VIRTUAL_CHUNK = "no-container-for-virtual-chunk"
    UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER = "unauthorized-virtual-chunk-container"
    EMPTY_PREFIX_CREATION = "empty-prefix-creation"
    PARENT_DIRECTORY_NOT_CLEAN = "parent-directory-not-clean"
    BAD_SNAPSHOT_CHAIN_FOR_DIFF = "bad-snapshot-chain-for-diff"
    # state of a session or repository
    COMMIT_NOT_ALLOWED = "commit-not-allowed"
    MERGE_NOT_ALLOWED = "merge-not-allowed"
    CANNOT_FORK_READ_ONLY_SESSION = "cannot-fork-read-only-session"
    REARRANGE_SESSION_ONLY = "rearrange-session-only"
    NON_REARRANGE_SESSION = "non-rearrange-session"
    MOVE_INTO_SELF_OR_DESCENDANT = "move-into-self-or-descendant"
    MOVE_DESTINATION_PARENT_MISSING = "move-destination-parent-missing"
    MOVE_DESTINATION_PARENT_NOT_GROUP = "move-destination-parent-not-group"
    NO_CHANGES_TO_COMMIT = "no-changes-to-commit"
    NO_AMEND_FOR_INITIAL_COMMIT = "no-amend-for-initial-commit"
    NOT_ON_BRANCH = "not-on-branch"
    NO_SNAPSHOT = "no-snapshot"
    CANNOT_DELETE_MAIN = "cannot-delete-main"
    UNCOMMITTED_CHANGES = "uncommitted-changes"
    MERGE_FAILED = "merge-failed"
    NOT_ALLOWED = "not-allowed"
    UNIMPLEMENTED = "unimplemented"
    REBASE_TX_LOG_PRUNED = "rebase-tx-log-pruned"
    FEATURE_FLAG_DISABLED = "feature-flag-disabled"
    TAG_ERROR = "tag-error"
    INVALID_REPOSITORY_MIGRATION = "invalid-repository-migration"
    OBJECTS_COLLECTED = "objects-collected"  # icefloe's own
    # storage
    OBJECT_NOT_FOUND = "object-not-found"
    OBJECT_STORE = "object-store"
    IO = "io"
    STORAGE_CONFIG = "storage-config"
    CANNOT_PARSE_URL = "cannot-parse-url"
    BAD_REDIRECT = "bad-redirect"
    SEMAPHORE_ACQUIRE = "semaphore-acquire"
    THROTTLED = "throttled"
    STORAGE_OTHER = "storage-other"
    VIRTUAL_CHUNK_FETCH = "virtual-chunk-fetch"
    VIRTUAL_CHUNK_MODIFIED = "virtual-chunk-modified"
    INVALID_OBJECT_SIZE = "invalid-object-size"
    UNKNOWN_OUTCOME = "unknown-outcome"  # icefloe's own
    # format
    SERIALIZATION = "serialization"
    DESERIALIZATION = "deserialization"
    CONFIG_DESERIALIZATION = "config-deserialization"
    INVALID_FILE_FORMAT = "invalid-file-format"
    UNSUPPORTED_SPEC_VERSION = "unsupported-spec-version"
    UNSUPPORTED_OPERATION_FOR_VERSION = "unsupported-operation-for-version"
    SNAPSHOT_TIMESTAMP = "snapshot-timestamp"
    DUPLICATE_SNAPSHOT_ID = "duplicate-snapshot-id"
    # internal
    CONCURRENCY = "concurrency"
    FLUSH = "flush"
    PARTIAL_VALUES_PANIC = "partial-values-panic"
    CONFLICTING_PATH_NOT_FOUND = "conflicting-path-not-found"
    INCONSISTENT_MANIFESTS = "inconsistent-manifests"
    POISON_LOCK = "poison-lock"
    PICKLE = "pickle"
    UNKNOWN = "unknown"


FIRST_WORDS: dict[str, str] = {
    ErrorKind.BRANCH_UPDATE_CONFLICT: "branch update conflict",
    ErrorKind.NODE_NOT_FOUND: "node not found",
    ErrorKind.SNAPSHOT_NOT_FOUND: "snapshot not found",
    ErrorKind.REF_NOT_FOUND: "ref not found",
    ErrorKind.REPOSITORY_NOT_FOUND: "the repository doesn't exist",
    ErrorKind.BRANCH_ALREADY_EXISTS: "branch already exists",
    ErrorKind.TAG_ALREADY_EXISTS: "tag already exists, tags are immutable",
    ErrorKind.TAG_PREVIOUSLY_DELETED: "tag was already deleted",
    ErrorKind.READ_ONLY_SESSION: "Read only sessions cannot modify the repository",
    ErrorKind.READ_ONLY_STORE: "cannot write to read-only store",
    ErrorKind.COMMIT_NOT_ALLOWED: "commits are not allowed",
    ErrorKind.NO_CHANGES_TO_COMMIT: "cannot commit, no changes made to the session",
    ErrorKind.CANNOT_DELETE_MAIN: "main branch cannot be deleted",
    ErrorKind.PARENT_DIRECTORY_NOT_CLEAN: "repositories can only be created in clean prefixes",
    ErrorKind.CANNOT_FORK_READ_ONLY_SESSION: "cannot fork a read-only session",
    ErrorKind.INVALID_VIRTUAL_REF: "error parsing virtual ref URL",
    ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK: (
        "invalid chunk location, no matching virtual chunk container"
    ),
    ErrorKind.VIRTUAL_CHUNK_MODIFIED: (
        "the checksum of the object owning the virtual chunk has changed"
    ),
}
"""How messages of a kind begin: programs written for official Icechunk look for its words.

What follows says something else: what was found, and what to do.
"""
COMMITTED = "this session was committed as"
"""How messages about a session that has been committed begin."""


class IcechunkError(Exception):
    """Root of the tree: `message` for people, `kind` for programs."""

    default_kind: ClassVar[ErrorKind] = ErrorKind.UNKNOWN

    def __init__(self, message: str, kind: str | None = None) -> None:
        self.kind: str = kind if kind is not None else self.default_kind
        words = FIRST_WORDS.get(self.kind)
        if isinstance(self, ReadOnlyError) and message.startswith(COMMITTED):
            words = None  # its session was not read-only
        if words is not None and not message.startswith(words):
            message = f"{words}: {message}"
        super().__init__(message, self.kind)
        self.message = message

    def __repr__(self) -> str:
        name, message = qualified(type(self).__name__), json.dumps(self.message)
        return f"{name}(message={message}, kind={json.dumps(self.kind)})"

    def __str__(self) -> str:
        # KeyError would print the repr of its argument, quotes and escapes included.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.kind)


IcefloeError = IcechunkError


class ConflictError(IcechunkError):
    """Another writer was first; both parents are given where they are known."""

    default_kind = ErrorKind.COMMIT_CONFLICT

    def __init__(
        self,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
        message: str | None = None,
        kind: str | None = None,
    ) -> None:
        parents = (
            f"expected parent: {_some(expected_parent)}, actual parent: {_some(actual_parent)}"
        )
        super().__init__(message or f"Failed to commit, {parents}", kind)
        self.expected_parent = expected_parent
        self.actual_parent = actual_parent
        if self.kind == ErrorKind.COMMIT_CONFLICT:
            self.args = (expected_parent, actual_parent)

    def __repr__(self) -> str:
        if self.kind != ErrorKind.COMMIT_CONFLICT:
            return super().__repr__()
        parents = f"expected_parent={self.expected_parent}, actual_parent={self.actual_parent}"
        return f"{qualified(type(self).__name__)}({parents})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.expected_parent, self.actual_parent, self.message, self.kind)


_SETTLE = (
    "Give a solver that chooses (rebase_with=BasicConflictSolver(...)), or make the changes again "
    "in a new session; all conflicts are in the attribute conflicts"
)


class RebaseFailedError(ConflictError):
    """The solver could not settle every conflict; the session stopped at `snapshot`."""

    default_kind = ErrorKind.REBASE_FAILED

    def __init__(self, snapshot: str, conflicts: Sequence[Any]) -> None:
        shown = "; ".join(f"{each!s:.200}" for each in conflicts[:3])
        more = f"; and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
        found = f": {shown}{more}. {_SETTLE}" if conflicts else ""
        noun = "conflict" if len(conflicts) == 1 else "conflicts"
        super().__init__(
            message=f"Rebase failed on snapshot {snapshot}: {len(conflicts)} {noun} found{found}"
        )
        self.snapshot = snapshot
        self.conflicts = list(conflicts)
        self.args = (snapshot, self.conflicts)

    def __repr__(self) -> str:
        name, snapshot = qualified(type(self).__name__), json.dumps(self.snapshot)
        return f"{name}(snapshot={snapshot}, conflicts={self.conflicts})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.snapshot, self.conflicts)


def branch_moved(
    branch: str,
    expected: str | None,
    found: str | None,
    kind: ErrorKind = ErrorKind.COMMIT_CONFLICT,
) -> ConflictError:
    """A branch is not where a commit, or who wants to move it, expects it."""
    where = f"{'' if expected is None else f'expected {expected}, '}found {found or 'no snapshot'}"
    message = (
        f"Failed to commit to branch {branch!r}, which moved meanwhile: {where}. Rebase the "
        "session and commit again, or commit with rebase_with=ConflictDetector()"
    )
    if kind != ErrorKind.COMMIT_CONFLICT:
        message = (
            f"{branch!r} is not where it was expected: {where}. Look at its new commits, and reset "
            "it from there"
        )
    return ConflictError(expected, found, message, kind)


def _some(snapshot_id: str | None) -> str:
    return "None" if snapshot_id is None else f'Some("{snapshot_id}")'


class NotFoundError(IcechunkError, KeyError):
    """What was asked for does not exist."""


class NodeNotFoundError(NotFoundError):
    """No group, array, chunk or key at this path."""

    default_kind = ErrorKind.NODE_NOT_FOUND


class SnapshotNotFoundError(NotFoundError):
    """No snapshot with this id, or none at this time."""

    default_kind = ErrorKind.SNAPSHOT_NOT_FOUND


class RefNotFoundError(NotFoundError):
    """No branch or tag with this name."""

    default_kind = ErrorKind.REF_NOT_FOUND


class RepositoryNotFoundError(NotFoundError):
    """No repository at this storage location."""

    default_kind = ErrorKind.REPOSITORY_NOT_FOUND


class AlreadyExistsError(IcechunkError):
    """What should have been created is there already."""

    default_kind = ErrorKind.NODE_ALREADY_EXISTS


class ReadOnlyError(IcechunkError):
    """A write through something that only reads."""

    default_kind = ErrorKind.READ_ONLY_SESSION


class InvalidInputError(IcechunkError, ValueError):
    """An argument cannot be used as given."""


class SessionStateError(IcechunkError):
    """Not possible in the present state of the session or repository."""

    default_kind = ErrorKind.NOT_ALLOWED


class StorageError(IcechunkError):
    """The storage failed or is set up wrongly; often worth another try."""

    default_kind = ErrorKind.STORAGE_OTHER
    is_bucket_missing: ClassVar[bool] = False
    """Whether the bucket or container itself does not exist, so that no object in it does."""


class UnknownOutcomeError(StorageError):
    """The answer to a write got lost, and reading back could not tell whether it happened."""

    default_kind = ErrorKind.UNKNOWN_OUTCOME


class FormatError(IcechunkError):
    """Bytes on storage do not follow the format, or follow one this version cannot read."""

    default_kind = ErrorKind.DESERIALIZATION


class InternalError(IcechunkError):
    """A state that should be impossible: a bug in icefloe."""


def check_text(text: str, what: str, kind: ErrorKind | None = None) -> str:
    """Return `text` if a file can hold it: a str of Python may have half a surrogate pair."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"{what} {text!r:.80} has half a surrogate pair, which is no text in UTF-8; "
            "replace the character",
            kind,
        ) from None
    return text
