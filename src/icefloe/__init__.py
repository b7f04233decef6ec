"""The front door: every public name of icefloe, and nothing but names.

Code inside the package never imports from here; it imports the module that defines the name.
"""

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    IcefloeError,
    InternalError,
    InvalidInputError,
    NodeNotFoundError,
    NotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
    UnknownOutcomeError,
)
from icefloe.ids import (
    FIRST_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    ObjectId,
    SnapshotId,
)

__version__ = "0.1.0"

__all__ = [
    "__version__",
    # errors
    "ErrorKind",
    "IcechunkError",
    "IcefloeError",
    "ConflictError",
    "RebaseFailedError",
    "NotFoundError",
    "NodeNotFoundError",
    "SnapshotNotFoundError",
    "RefNotFoundError",
    "RepositoryNotFoundError",
    "AlreadyExistsError",
    "ReadOnlyError",
    "InvalidInputError",
    "SessionStateError",
    "StorageError",
    "UnknownOutcomeError",
    "FormatError",
    "InternalError",
    # ids
    "ObjectId",
    "SnapshotId",
    "ManifestId",
    "ChunkId",
    "NodeId",
    "FIRST_SNAPSHOT_ID",
]
