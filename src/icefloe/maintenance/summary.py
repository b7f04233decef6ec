"""What a garbage collection has done, and how much chunks take: the values that users get."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from html import escape


@dataclass(slots=True)
class GCSummary:
    """What a garbage collection deleted, or would delete."""

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    """Always 0: there are no such files."""
    transaction_logs_deleted: int = 0
    objects_failed_to_delete: int = 0
    """Objects of requests that failed. They are garbage for the next run."""
    throttled_batches: int = 0
    """Requests that the storage told us to slow down with; they were made again."""
    delete_errors: list[str] = field(default_factory=list)
    """The first ten different messages."""
    skipped_phases: list[str] = field(default_factory=list)
    """What was not tried because a phase before it had failures: "transaction_logs",
    "manifests", "chunks"."""

    def _repr_html_(self) -> str:
        return _html(self)


@dataclass(frozen=True, slots=True)
class ChunkStorageStats:
    """Bytes of chunks, by where they are. Add several of them up with `+`."""

    native_bytes: int = 0
    virtual_bytes: int = 0
    inlined_bytes: int = 0

    def non_virtual_bytes(self) -> int:
        """What is stored in the repository itself."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """All of it."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes

    def __add__(self, other: ChunkStorageStats) -> ChunkStorageStats:
        if not isinstance(other, ChunkStorageStats):
            return NotImplemented
        return ChunkStorageStats(
            self.native_bytes + other.native_bytes,
            self.virtual_bytes + other.virtual_bytes,
            self.inlined_bytes + other.inlined_bytes,
        )

    def _repr_html_(self) -> str:
        return _html(self)


def _html(shown: GCSummary | ChunkStorageStats) -> str:
    rows = "".join(
        f"<tr><th>{each.name}</th><td>{escape(str(getattr(shown, each.name)))}</td></tr>"
        for each in fields(shown)
    )
    return f"<table><caption>{type(shown).__name__}</caption>{rows}</table>"
