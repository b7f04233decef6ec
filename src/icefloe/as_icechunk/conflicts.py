"""Conflicts and who settles them."""

from icefloe.changes.conflicts import Conflict, ConflictType
from icefloe.changes.solvers import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictSolver,
    VersionSelection,
)

__all__ = [
    "BasicConflictSolver",
    "Conflict",
    "ConflictDetector",
    "ConflictSolver",
    "ConflictType",
    "VersionSelection",
]
