"""Names of types."""

from icefloe.repo.rewrite import CommitMethod

__all__ = ["CommitMethod"]
