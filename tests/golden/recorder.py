"""What a scenario did and the official API cannot tell afterwards.

The chunk iterator hides checksums and expands relative locations, and no call lists the
tombstones of a spec-1 repository, so scenarios note these things while they write.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.golden.official import icechunk, zarr

Checksum = str | dt.datetime | None


@dataclass
class Recorder:
    """Collects notes of one scenario; `as_json` is the `written` part of an expectation."""

    scenario: str
    virtual_refs: dict[str, list[list[Any]]] = field(default_factory=dict)
    deleted_tags: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)

    def set_virtual_refs(
        self, store: Any, path: str, refs: Sequence[tuple[Sequence[int], str, int, int, Checksum]]
    ) -> None:
        """Write virtual refs of the array at `path` and note location and checksum of each."""
        specs = []
        rows = self.virtual_refs.setdefault(path, [])
        for index, location, offset, length, checksum in refs:
            etag = checksum if isinstance(checksum, str) else None
            modified = checksum if isinstance(checksum, dt.datetime) else None
            spec = icechunk.VirtualChunkSpec(list(index), location, offset, length, etag, modified)
            specs.append(spec)
            seconds = None if modified is None else int(modified.timestamp())
            rows.append([list(index), location, offset, length, etag, seconds])
        rejected = store.set_virtual_refs(path, specs, validate_containers=True)
        if rejected:
            raise RuntimeError(f"no container matches the refs {rejected} of array {path!r}")

    def as_json(self) -> dict[str, Any]:
        """The notes as JSON values.

        A row of `virtual_refs` is index, location, offset, length, etag and time of last
        modification in seconds; the two checksums are None when not given.
        """
        return {
            "scenario": self.scenario,
            "icechunk": str(icechunk.__version__),
            "zarr": str(zarr.__version__),
            "virtual_refs": self.virtual_refs,
            "deleted_tags": sorted(self.deleted_tags),
            "labels": self.labels,
            "results": self.results,
            "earlier": self.earlier,
        }
