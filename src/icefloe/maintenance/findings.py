"""The findings of a verification: rows with a kind, an object, a node and a suggested repair.

A kind has one severity and one suggested repair. A damaged repository can have millions of
findings. All of them are counted, and a limited number of each kind is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from icefloe.display.shown import ShownAsText
from icefloe.on_demand import on_demand
from icefloe.records import record

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

DEFAULT_KEPT = 1000
"""The number of findings of one kind that a report keeps."""


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Something cannot be read, or reads as something else."""
    WARNING = "warning"
    """Everything can be read, but a writer did not follow the format."""
    INFO = "info"
    """Normal, or left behind by regular operations; no action is needed."""


_ORDER = {severity: place for place, severity in enumerate(Severity)}

_RESTORE = "restore the object from a backup of the storage"
_DROP = "plan_repair drops the dead references and commits"
_RESCUE = "Repository.plan_rescue rebuilds it"
_REPOINT = "plan_repoint if the files moved; plan_repair drops the references"
_REWRITE = "rewrite_manifests writes the manifests of a branch again"
_COLLECT = "garbage_collect deletes it when it is old enough"
_NOTHING = "nothing to do"


class FindingKind(StrEnum):
    """Stable codes of what can be found."""

    # the repo object and refs
    DAMAGED_REPO = "damaged-repo-object"
    MISSING_REPO = "missing-repo-object"
    DAMAGED_CONFIG = "damaged-config"
    DAMAGED_REF = "damaged-ref"
    DANGLING_REF = "dangling-ref"
    MISSING_MAIN = "missing-main-branch"
    DAMAGED_BACKUP = "damaged-backup"
    MISSING_BACKUP = "missing-backup"
    OPERATIONS_DISORDER = "operations-out-of-order"
    # snapshots
    DAMAGED_SNAPSHOT = "damaged-snapshot"
    MISSING_SNAPSHOT = "missing-snapshot"
    WRONG_SNAPSHOT_ID = "wrong-snapshot-id"
    SNAPSHOT_DIFFERS = "snapshot-differs-from-repo-object"
    PARENT_IS_NEWER = "parent-is-newer"
    MISSING_PARENT = "missing-parent"
    NODES_DISORDER = "nodes-out-of-order"
    NODES_BY_SEGMENT = "nodes-ordered-by-segment"
    MANIFESTS_DISORDER = "manifest-files-out-of-order"
    DUPLICATE_NODE_ID = "duplicate-node-id"
    NODE_WITHOUT_GROUP = "node-without-group"
    BAD_NODE_METADATA = "bad-node-metadata"
    SHAPE_DIFFERS = "shape-differs-from-metadata"
    UNLISTED_MANIFEST = "unlisted-manifest"
    UNUSED_MANIFEST = "unused-manifest"
    OVERLAPPING_MANIFESTS = "overlapping-manifests"
    # transaction logs
    DAMAGED_LOG = "damaged-log"
    MISSING_LOG = "missing-log"
    MISSING_PRUNED_LOG = "missing-pruned-log"
    WRONG_LOG_ID = "wrong-log-id"
    LOG_DIFFERS = "log-names-unknown-nodes"
    # manifests
    DAMAGED_MANIFEST = "damaged-manifest"
    MISSING_MANIFEST = "missing-manifest"
    WRONG_MANIFEST_ID = "wrong-manifest-id"
    WRONG_MANIFEST_SIZE = "wrong-manifest-size"
    WRONG_REF_COUNT = "wrong-reference-count"
    ARRAY_NOT_IN_MANIFEST = "array-not-in-manifest"
    OUTSIDE_EXTENTS = "references-outside-extents"
    OTHER_RANK = "references-of-other-rank"
    ZERO_LENGTH = "zero-length-chunk"
    # chunks
    MISSING_CHUNK = "missing-chunk-object"
    SHORT_CHUNK = "short-chunk-object"
    LONG_CHUNK = "bytes-behind-last-reference"
    UNDECODABLE_CHUNK = "undecodable-chunk"
    UNREADABLE_CHUNK = "unreadable-chunk"
    # virtual sources
    MISSING_SOURCE = "missing-source"
    SHORT_SOURCE = "short-source"
    CHANGED_SOURCE = "changed-source"
    UNREADABLE_SOURCE = "unreadable-source"
    UNCHECKED_SOURCES = "sources-not-checked"
    # what nothing refers to
    ORPHAN = "orphan"
    FOREIGN_OBJECT = "object-of-unknown-name"

    @property
    def severity(self) -> Severity:
        if self in _INFOS:
            return Severity.INFO
        return Severity.WARNING if self in _WARNINGS else Severity.ERROR

    @property
    def repair(self) -> str:
        """The suggested repair."""
        return _REPAIRS.get(self, _NOTHING if self.severity == Severity.INFO else _RESTORE)


_K = FindingKind
_INFOS = {
    _K.MISSING_BACKUP,
    _K.NODES_BY_SEGMENT,
    _K.NODE_WITHOUT_GROUP,
    _K.UNUSED_MANIFEST,
    _K.MISSING_PRUNED_LOG,
    _K.OTHER_RANK,
    _K.LONG_CHUNK,
    _K.UNCHECKED_SOURCES,
    _K.ORPHAN,
    _K.FOREIGN_OBJECT,
}
_WARNINGS = {
    _K.DAMAGED_BACKUP,
    _K.OPERATIONS_DISORDER,
    _K.PARENT_IS_NEWER,
    _K.MANIFESTS_DISORDER,
    _K.LOG_DIFFERS,
    _K.ZERO_LENGTH,
}
_REPAIRS = {
    _K.DAMAGED_REPO: _RESCUE,
    _K.MISSING_REPO: _RESCUE,
    _K.DAMAGED_REF: _RESCUE,
    _K.DANGLING_REF: _RESCUE,
    _K.MISSING_MAIN: _RESCUE,
    _K.MISSING_SNAPSHOT: _RESTORE + ", or expire_snapshots(snapshot_ids=[...]) takes it out of the "
    "history of spec version 2",
    _K.DAMAGED_MANIFEST: _RESTORE + ", or " + _DROP,
    _K.MISSING_MANIFEST: _RESTORE + ", or " + _DROP,
    _K.WRONG_MANIFEST_ID: _RESTORE + ", or " + _DROP,
    _K.WRONG_MANIFEST_SIZE: _RESTORE + ", or " + _DROP,
    _K.ARRAY_NOT_IN_MANIFEST: _DROP,
    _K.WRONG_REF_COUNT: _REWRITE,
    _K.OUTSIDE_EXTENTS: _REWRITE,
    _K.OVERLAPPING_MANIFESTS: _REWRITE,
    _K.MISSING_CHUNK: _RESTORE + ", or " + _DROP,
    _K.SHORT_CHUNK: _RESTORE + ", or " + _DROP,
    _K.ZERO_LENGTH: _DROP,
    _K.UNDECODABLE_CHUNK: _RESTORE + ", or write the chunk again",
    _K.MISSING_SOURCE: _REPOINT,
    _K.SHORT_SOURCE: _REPOINT,
    _K.CHANGED_SOURCE: "ingest the file again; " + _REPOINT,
    _K.UNREADABLE_SOURCE: "check the credentials and the network, and verify again",
    _K.UNCHECKED_SOURCES: "authorize the container when the repository is opened, to check them",
    _K.ORPHAN: _COLLECT,
    _K.FOREIGN_OBJECT: "delete it if nothing else needs it; icefloe neither reads nor deletes it",
    _K.NODES_BY_SEGMENT: "any commit writes the nodes in the order that Icechunk 2 searches them",
    _K.NODES_DISORDER: "any commit writes the nodes in order again",
}


class Finding(NamedTuple):
    """One finding. `path` is the path of a node, or empty."""

    severity: Severity
    kind: FindingKind
    object: str
    path: str
    detail: str
    repair: str

    @classmethod
    def of(cls, kind: FindingKind, key: str, detail: str, path: str = "") -> Finding:
        """A finding with the severity and repair of its kind."""
        return cls(kind.severity, kind, key, path, detail, kind.repair)


@record()
class FindingLog:
    """Collects findings: all are counted, some are kept."""

    kept: int = DEFAULT_KEPT
    counts: Counter[FindingKind] = field(default_factory=Counter)
    rows: list[Finding] = field(default_factory=list)

    def add(self, kind: FindingKind, key: str, detail: str, path: str = "") -> None:
        """Note one."""
        self.counts[kind] += 1
        if self.counts[kind] <= self.kept:
            self.rows.append(Finding.of(kind, key, detail, path))

    def add_all(self, found: Iterable[Finding]) -> None:
        """Add findings that were made elsewhere."""
        for row in found:
            self.add(row.kind, row.object, row.detail, row.path)

    def add_many(self, kind: FindingKind, total: int, rows: Iterable[tuple[str, str, str]]) -> None:
        """Add many findings. Of `rows` (object, detail, path), only those to keep are read."""
        room = max(0, self.kept - self.counts[kind])
        self.rows += [Finding.of(kind, *row) for row in islice(rows, room)]
        if total:
            self.counts[kind] += total


_CHECKED = (
    "objects",
    "snapshots",
    "logs",
    "manifests",
    "references",
    "chunks read",
    "bytes read",
    "sources",
    "sources not checked",
)
"""What a verification counts, in the order of a report."""


@record(frozen=True)
class VerifyReport(ShownAsText):
    """The result of a verification: what was checked, and the findings, worst first."""

    findings: tuple[Finding, ...]
    counts: Mapping[FindingKind, int]
    """The number of findings of each kind, kept or not."""
    checked: Mapping[str, int]
    """The number of files, references, objects and sources that were checked."""

    @classmethod
    def of(cls, log: FindingLog, checked: Mapping[str, int]) -> VerifyReport:
        """Findings in a fixed order."""
        ordered = sorted(log.rows, key=lambda row: (_ORDER[row.severity], *row[1:]))
        kinds = sorted(log.counts, key=lambda kind: (_ORDER[kind.severity], kind))
        seen = {what: checked[what] for what in sorted(checked, key=_CHECKED.index)}
        return cls(tuple(ordered), {kind: log.counts[kind] for kind in kinds}, seen)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing above `info` was found."""
        return all(kind.severity == Severity.INFO for kind in self.counts)

    @property
    def num_errors(self) -> int:
        """The number of errors, kept or not."""
        return sum(n for kind, n in self.counts.items() if kind.severity == Severity.ERROR)

    def of_kind(self, kind: FindingKind | str) -> list[Finding]:
        """The findings of a kind that were kept."""
        return [row for row in self.findings if row.kind == kind]

    def to_arrow(self) -> pa.Table:
        """The findings that were kept, one row each."""
        return findings_table(self.findings)

    def __str__(self) -> str:
        seen = ", ".join(f"{number:,} {what}" for what, number in self.checked.items() if number)
        lines = [f"checked {seen or 'nothing'}"]
        for kind, number in self.counts.items():
            first = next(row for row in self.findings if row.kind == kind)
            at = f"{first.object} ({first.path})" if first.path else first.object
            lines.append(f"{kind.severity:7} {kind} x {number:,}: {at}: {first.detail}")
            if kind.severity != Severity.INFO:
                lines.append(f"        {first.repair}")
        lines.append("healthy" if self.is_healthy else "NOT healthy")
        return "\n".join(lines)


COLUMNS = ("severity", "kind", "object", "path", "detail", "repair")


def findings_table(rows: Iterable[Finding]) -> pa.Table:
    """Findings as columns of text."""
    listed = list(rows)
    columns = [[str(row[at]) for row in listed] for at in range(len(COLUMNS))]
    return pa.table([pa.array(column, pa.string()) for column in columns], names=list(COLUMNS))
