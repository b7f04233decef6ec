"""The plan of a garbage collection: what is deleted, and why. It can be shown and saved."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from icefloe.display.shown import ShownAsText, size_text
from icefloe.errors import FormatError
from icefloe.format.columns.id_set import IdSet
from icefloe.maintenance.listing import StoredObjects
from icefloe.records import NamedTuple

REASONS = {
    "snapshots": "no branch or tag leads to them",
    "transaction_logs": "nothing needs them to tell what changed",
    "attributes": "no snapshot that stays uses them",
    "manifests": "no snapshot that stays uses them",
    "chunks": "no manifest that stays refers to them",
}
_FORMAT = "icefloe garbage collection plan 1"


class InUse(NamedTuple):
    """The ids of all objects that have to stay."""

    snapshots: IdSet
    transaction_logs: IdSet
    manifests: IdSet
    chunks: IdSet
    attributes: IdSet = IdSet.of_ids(())
    """Only generations before spec version 1 have such files."""


@dataclass(frozen=True, slots=True, repr=False)
class GarbagePlan(ShownAsText):
    """The objects that can be deleted. The plan can be printed, saved, reviewed and run.

    A run checks the repository again: objects that came into use since then stay.
    """

    url: str
    """Where the repository is."""
    made_at: int
    older_than: int
    """Objects stored at or after this time stay, in microseconds since the epoch."""
    objects: Mapping[str, StoredObjects]
    """By kind: `snapshots`, `transaction_logs`, `manifests`, `chunks`; before spec version 1 also
    `attributes`."""
    num_forgotten: int = 0
    """The number of snapshots that are removed from the repository's list. Other deleted snapshots
    were never listed: they were left by failed commits, forks and tasks."""
    num_strange: int = 0
    """The number of objects whose names are not ids. They stay."""

    def num_objects(self, kind: str | None = None) -> int:
        """The number of objects to delete, of one kind or of all.

        Args:
            kind: `chunks`, `manifests`, `snapshots` or `transaction_logs`.
        """
        kinds = self.objects if kind is None else [kind]
        return sum(len(self.objects[each]) for each in kinds)

    def num_bytes(self, kind: str | None = None) -> int:
        """The bytes of the objects to delete.

        Args:
            kind: `chunks`, `manifests`, `snapshots` or `transaction_logs`.
        """
        kinds = self.objects if kind is None else [kind]
        return sum(int(self.objects[each].size_bytes.sum()) for each in kinds)

    def keys(self, kind: str) -> list[str]:
        """The keys of all objects of a kind to delete.

        Args:
            kind: `chunks`, `manifests`, `snapshots` or `transaction_logs`.
        """
        return self.objects[kind].all_keys()

    def __str__(self) -> str:
        times = f"stored before {_time(self.older_than)} (looked at {_time(self.made_at)})"
        lines = [f"Garbage in {self.url}, {times}:"]
        for kind in self.objects:
            number, size = self.num_objects(kind), self.num_bytes(kind)
            name = kind.replace("_", " ")
            lines.append(f"  {name:<17}{number:>10,}{size_text(size):>12}   {REASONS[kind]}")
        number, size = self.num_objects(), self.num_bytes()
        lines.append(f"  {'together':<17}{number:>10,}{size_text(size):>12}")
        if self.num_forgotten:
            lines.append(f"  {self.num_forgotten:,} of the snapshots leave the repository's list.")
        if self.num_strange:
            lines.append(f"  {self.num_strange:,} objects with names that are no ids stay.")
        return "\n".join(lines)

    # -- on disk

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file.

        Args:
            path: of the file.
        """
        header = {
            "format": _FORMAT,
            "url": self.url,
            "made_at": self.made_at,
            "older_than": self.older_than,
            "num_forgotten": self.num_forgotten,
            "num_strange": self.num_strange,
            "folders": {kind: found.folder for kind, found in self.objects.items()},
        }
        columns: dict[str, Any] = {"header": np.array(json.dumps(header))}
        for kind, found in self.objects.items():
            columns[f"{kind}.id"] = found.id
            columns[f"{kind}.size_bytes"] = found.size_bytes
            columns[f"{kind}.created_at"] = found.created_at
            if found.name is not None:
                columns[f"{kind}.name"] = found.name
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **columns)
        Path(path).write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> GarbagePlan:
        """Read a plan that `save` has written.

        Args:
            path: of the file.

        Raises:
            FormatError: it is no plan, or a damaged one.
        """
        data = Path(path).read_bytes()
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as columns:
                header = json.loads(str(columns["header"]))
                if header.pop("format") != _FORMAT:
                    raise ValueError("another format")
                objects = {
                    kind: _stored(columns, kind, folder)
                    for kind, folder in header.pop("folders").items()
                }
                plan = cls(str(header.pop("url")), objects=objects, **header)
                _ = str(plan)  # all numbers are numbers
        except Exception as error:  # whatever damaged files make of numpy and zlib
            raise FormatError(
                f"{path}: not a plan of a garbage collection, or a damaged one "
                f"({type(error).__name__}: {error}); make another plan"
            ) from error
        return plan


def _stored(columns: Mapping[str, Any], kind: str, folder: Any) -> StoredObjects:
    names = ("size_bytes", "created_at")
    sizes, times = (np.asarray(columns[f"{kind}.{name}"], np.int64) for name in names)
    ids = np.asarray(columns[f"{kind}.id"], np.uint8).reshape(-1, 12)
    name = columns.get(f"{kind}.name")
    if kind not in REASONS or not len(ids) == len(sizes) == len(times):
        raise ValueError(f"columns of {kind} do not fit")
    return StoredObjects(str(folder), ids, sizes, times, name=name)


def find_garbage(
    stored: Mapping[str, StoredObjects], in_use: InUse, older_than: int
) -> dict[str, StoredObjects]:
    """The stored objects that are old enough and not in use."""
    found = {}
    for kind, objects in stored.items():
        old = objects.take(np.flatnonzero(objects.created_at < older_than))
        found[kind] = old.take(~getattr(in_use, kind).contains(old.id))
    return found


def among(stored: Mapping[str, StoredObjects], plan: GarbagePlan) -> dict[str, StoredObjects]:
    """The stored objects that are in a plan."""
    return {
        kind: objects.take(IdSet.of(plan.objects[kind].id).contains(objects.id))
        for kind, objects in stored.items()
    }


def newest_before(stored: Mapping[str, StoredObjects], older_than: int) -> int:
    """A time at or before which all objects to delete were stored."""
    times = [
        objects.created_at[objects.created_at < older_than].max(initial=-1)
        for objects in stored.values()
    ]
    return int(max(times)) + 1


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
