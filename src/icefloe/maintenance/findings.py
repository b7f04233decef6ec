"""The findings of a verification: rows with a kind, an object, a node and a suggested repair.

A kind has one severity and one suggested repair. A damaged repository can have millions of
findings. All of them are counted, and a limited number of each kind is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, Self

import pyarrow as pa

from icefloe.display import ShownAsText

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
_RESTORE_OR_FORGET = (
    _RESTORE + ", or expire_snapshots(snapshot_ids=[...]) takes it out of the history of spec "
    "version 2"
)
_RESTORE_OR_WRITE = _RESTORE + ", or write the chunk again"
_DROP = "plan_repair drops the dead references and commits"
_RESTORE_OR_DROP = _RESTORE + ", or " + _DROP
_RESCUE = "Repository.plan_rescue rebuilds it"
_REPOINT = "plan_repoint if the files moved; plan_repair drops the references"
_INGEST = "ingest the file again; " + _REPOINT
_CONNECT = "check the credentials and the network, and verify again"
_AUTHORIZE = "authorize the container when the repository is opened, to check them"
_ORDER_NODES = "any commit writes the nodes in order again"
_ORDER_BY_PATH = "any commit writes the nodes in the order that Icechunk 2 searches them"
_REWRITE = "rewrite_manifests writes the manifests of a branch again"
_COLLECT = "garbage_collect deletes it when it is old enough"
_DELETE = "delete it if nothing else needs it; icefloe neither reads nor deletes it"
_NOTHING = "nothing to do"


class FindingKind(StrEnum):
    """Stable codes of what can be found, each with its severity and the suggested repair."""

    severity: Severity
    repair: str

    def __new__(cls, code: str, severity: Severity = Severity.ERROR, repair: str = "") -> Self:
        kind = str.__new__(cls, code)
        kind._value_ = code
        kind.severity = severity
        kind.repair = repair or (_NOTHING if severity == Severity.INFO else _RESTORE)
        return kind

    # the repo object and refs
    DAMAGED_REPO = "damaged-repo-object", Severity.ERROR, _RESCUE
    MISSING_REPO = "missing-repo-object", Severity.ERROR, _RESCUE
    DAMAGED_CONFIG = "damaged-config"
    DAMAGED_REF = "damaged-ref", Severity.ERROR, _RESCUE
    DANGLING_REF = "dangling-ref", Severity.ERROR, _RESCUE
    MISSING_MAIN = "missing-main-branch", Severity.ERROR, _RESCUE
    DAMAGED_BACKUP = "damaged-backup", Severity.WARNING
    MISSING_BACKUP = "missing-backup", Severity.INFO
    OPERATIONS_DISORDER = "operations-out-of-order", Severity.WARNING
    # snapshots
    DAMAGED_SNAPSHOT = "damaged-snapshot"
    MISSING_SNAPSHOT = "missing-snapshot", Severity.ERROR, _RESTORE_OR_FORGET
    WRONG_SNAPSHOT_ID = "wrong-snapshot-id"
    SNAPSHOT_DIFFERS = "snapshot-differs-from-repo-object"
    PARENT_IS_NEWER = "parent-is-newer", Severity.WARNING
    MISSING_PARENT = "missing-parent"
    NODES_DISORDER = "nodes-out-of-order", Severity.ERROR, _ORDER_NODES
    NODES_BY_SEGMENT = "nodes-ordered-by-segment", Severity.INFO, _ORDER_BY_PATH
    MANIFESTS_DISORDER = "manifest-files-out-of-order", Severity.WARNING
    DUPLICATE_NODE_ID = "duplicate-node-id"
    NODE_WITHOUT_GROUP = "node-without-group", Severity.INFO
    BAD_NODE_METADATA = "bad-node-metadata"
    SHAPE_DIFFERS = "shape-differs-from-metadata"
    UNLISTED_MANIFEST = "unlisted-manifest"
    UNUSED_MANIFEST = "unused-manifest", Severity.INFO
    OVERLAPPING_MANIFESTS = "overlapping-manifests", Severity.ERROR, _REWRITE
    # transaction logs
    DAMAGED_LOG = "damaged-log"
    MISSING_LOG = "missing-log"
    MISSING_PRUNED_LOG = "missing-pruned-log", Severity.INFO
    WRONG_LOG_ID = "wrong-log-id"
    LOG_DIFFERS = "log-names-unknown-nodes", Severity.WARNING
    # manifests
    DAMAGED_MANIFEST = "damaged-manifest", Severity.ERROR, _RESTORE_OR_DROP
    MISSING_MANIFEST = "missing-manifest", Severity.ERROR, _RESTORE_OR_DROP
    WRONG_MANIFEST_ID = "wrong-manifest-id", Severity.ERROR, _RESTORE_OR_DROP
    WRONG_MANIFEST_SIZE = "wrong-manifest-size", Severity.ERROR, _RESTORE_OR_DROP
    WRONG_REF_COUNT = "wrong-reference-count", Severity.ERROR, _REWRITE
    ARRAY_NOT_IN_MANIFEST = "array-not-in-manifest", Severity.ERROR, _DROP
    OUTSIDE_EXTENTS = "references-outside-extents", Severity.ERROR, _REWRITE
    OTHER_RANK = "references-of-other-rank", Severity.INFO
    ZERO_LENGTH = "zero-length-chunk", Severity.WARNING, _DROP
    # chunks
    MISSING_CHUNK = "missing-chunk-object", Severity.ERROR, _RESTORE_OR_DROP
    SHORT_CHUNK = "short-chunk-object", Severity.ERROR, _RESTORE_OR_DROP
    LONG_CHUNK = "bytes-behind-last-reference", Severity.INFO
    UNDECODABLE_CHUNK = "undecodable-chunk", Severity.ERROR, _RESTORE_OR_WRITE
    UNREADABLE_CHUNK = "unreadable-chunk"
    # virtual sources
    MISSING_SOURCE = "missing-source", Severity.ERROR, _REPOINT
    SHORT_SOURCE = "short-source", Severity.ERROR, _REPOINT
    CHANGED_SOURCE = "changed-source", Severity.ERROR, _INGEST
    UNREADABLE_SOURCE = "unreadable-source", Severity.ERROR, _CONNECT
    UNCHECKED_SOURCES = "sources-not-checked", Severity.INFO, _AUTHORIZE
    # what nothing refers to
    ORPHAN = "orphan", Severity.INFO, _COLLECT
    FOREIGN_OBJECT = "object-of-unknown-name", Severity.INFO, _DELETE


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


@dataclass
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


@dataclass(frozen=True, repr=False)
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
        schema = pa.schema([(name, pa.string()) for name in Finding._fields])
        return pa.Table.from_pylist([row._asdict() for row in self.findings], schema)

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
