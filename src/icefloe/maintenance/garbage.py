"""What a garbage collection deletes and why: decided over columns, kept, shown, saved."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from icefloe.errors import FormatError
from icefloe.format.columns.id_set import IdSet
from icefloe.maintenance.listing import KINDS, StoredObjects

REASONS = {
    "snapshots": "no branch or tag leads to them",
    "transaction_logs": "nothing needs them to tell what changed",
    "manifests": "no snapshot that stays uses them",
    "chunks": "no manifest that stays refers to them",
}
_FORMAT = "icefloe garbage collection plan 1"


class InUse(NamedTuple):
    """The ids of everything that has to stay."""

    snapshots: IdSet
    transaction_logs: IdSet
    manifests: IdSet
    chunks: IdSet


@dataclass(frozen=True, slots=True)
class GarbagePlan:
    """What can be deleted. Print it, `save` it, and run it when somebody has agreed.

    Running it looks at the repository again: what came into use since then stays.
    """

    url: str
    """Where the repository is."""
    made_at: int
    older_than: int
    """Objects stored from this instant on stay, in microseconds since the epoch."""
    objects: Mapping[str, StoredObjects]
    """By kind: `snapshots`, `transaction_logs`, `manifests`, `chunks`."""
    num_forgotten: int = 0
    """How many snapshots leave the list of the repository. Others were never in it: left by
    commits that failed, by forks and by tasks."""
    num_strange: int = 0
    """How many objects have names that are no ids; those stay."""

    def num_objects(self, kind: str | None = None) -> int:
        """How many objects go, of one kind or of all."""
        kinds = KINDS if kind is None else [kind]
        return sum(len(self.objects[each]) for each in kinds)

    def num_bytes(self, kind: str | None = None) -> int:
        """How many bytes go with them."""
        kinds = KINDS if kind is None else [kind]
        return sum(int(self.objects[each].size_bytes.sum()) for each in kinds)

    def keys(self, kind: str) -> list[str]:
        """The keys of all objects of a kind that go."""
        return self.objects[kind].all_keys()

    def __str__(self) -> str:
        times = f"stored before {_time(self.older_than)} (looked at {_time(self.made_at)})"
        lines = [f"Garbage in {self.url}, {times}:"]
        for kind in KINDS:
            number, size = self.num_objects(kind), self.num_bytes(kind)
            name = kind.replace("_", " ")
            lines.append(f"  {name:<17}{number:>10,}{_size(size):>12}   {REASONS[kind]}")
        lines.append(f"  {'together':<17}{self.num_objects():>10,}{_size(self.num_bytes()):>12}")
        if self.num_forgotten:
            lines.append(f"  {self.num_forgotten:,} of the snapshots leave the repository's list.")
        if self.num_strange:
            lines.append(f"  {self.num_strange:,} objects with names that are no ids stay.")
        return "\n".join(lines)

    # -- on disk

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file."""
        header = {
            "format": _FORMAT,
            "url": self.url,
            "made_at": self.made_at,
            "older_than": self.older_than,
            "num_forgotten": self.num_forgotten,
            "num_strange": self.num_strange,
        }
        columns: dict[str, Any] = {"header": np.array(json.dumps(header))}
        for kind in KINDS:
            found = self.objects[kind]
            columns[f"{kind}.id"] = found.id
            columns[f"{kind}.size_bytes"] = found.size_bytes
            columns[f"{kind}.created_at"] = found.created_at
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **columns)
        Path(path).write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> GarbagePlan:
        """Read a plan that `save` has written."""
        try:
            with np.load(path, allow_pickle=False) as columns:
                header = json.loads(str(columns["header"]))
                if header.pop("format") != _FORMAT:
                    raise ValueError("another format")
                objects = {
                    kind: StoredObjects(
                        folder,
                        columns[f"{kind}.id"].reshape(-1, 12),
                        columns[f"{kind}.size_bytes"],
                        columns[f"{kind}.created_at"],
                    )
                    for kind, folder in KINDS.items()
                }
        except (ValueError, KeyError, EOFError) as error:
            raise FormatError(f"{path}: not a plan of a garbage collection ({error})") from error
        return cls(objects=objects, **header)


def find_garbage(
    stored: Mapping[str, StoredObjects], in_use: InUse, older_than: int
) -> dict[str, StoredObjects]:
    """Of all stored objects, those that are old enough and not in use."""
    found = {}
    for kind, objects in stored.items():
        old = objects.take(np.flatnonzero(objects.created_at < older_than))
        found[kind] = old.take(~getattr(in_use, kind).contains(old.id))
    return found


def among(stored: Mapping[str, StoredObjects], plan: GarbagePlan) -> dict[str, StoredObjects]:
    """Of all stored objects, those that a plan has."""
    return {
        kind: objects.take(IdSet.of(plan.objects[kind].id).contains(objects.id))
        for kind, objects in stored.items()
    }


def newest_before(stored: Mapping[str, StoredObjects], older_than: int) -> int:
    """An instant up to which everything that may be deleted was stored."""
    times = [
        objects.created_at[objects.created_at < older_than].max(initial=-1)
        for objects in stored.values()
    ]
    return int(max(times)) + 1


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
