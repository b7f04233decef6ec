"""The results of a garbage collection and of chunk statistics, as users get them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from icefloe.display import Picture, Shown, size_text


@dataclass(slots=True, repr=False)
class GCSummary(Shown):
    """What a garbage collection deleted, or would delete."""

    shown_in: ClassVar[str] = "ops"

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    """Only generations before spec version 1 have such files."""
    transaction_logs_deleted: int = 0
    objects_failed_to_delete: int = 0
    """Objects of requests that failed. The next run deletes them."""
    throttled_batches: int = 0
    """Throttled requests, which were retried."""
    delete_errors: list[str] = field(default_factory=list)
    """The first ten different messages."""
    skipped_phases: list[str] = field(default_factory=list)
    """Phases that were skipped because an earlier one had failures: "transaction_logs",
    "manifests", "chunks"."""
    looked_for_orphans: bool = True
    """Whether objects were listed, so that those were found that no snapshot ever named. An
    incremental collection does not look for them."""
    full_because: str = ""
    """Why a collection that was to be incremental was a full one."""

    def _picture_(self) -> Picture:
        return Picture(self._title_(), _shown(self))


@dataclass(frozen=True, slots=True, repr=False)
class ChunkStorageStats(Shown):
    """Bytes of chunks, by where they are stored. Values can be added with `+`."""

    shown_in: ClassVar[str] = "stats"

    native_bytes: int = 0
    virtual_bytes: int = 0
    inlined_bytes: int = 0

    def non_virtual_bytes(self) -> int:
        """Bytes that are stored in the repository itself."""
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

    def _picture_(self) -> Picture:
        return Picture(self._title_(), _shown(self))


def _shown(value: GCSummary | ChunkStorageStats) -> list[tuple[str, str]]:
    return [(each.name, _text(each.name, getattr(value, each.name))) for each in fields(value)]


def _text(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    is_long_size = "bytes" in name and value >= 1000
    return f"{value:,} ({size_text(value)})" if is_long_size else f"{value:,}"
