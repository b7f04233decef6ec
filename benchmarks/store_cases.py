"""The rows about repositories: what is set side by side where, and the targets.

Scenarios are functions of `fresh_program`, `history`, `many_arrays` and `stores`; this file only
names them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from benchmarks.arrays import PACKED
from benchmarks.cases import (
    CHUNKS,
    COMMITS,
    HISTORY,
    MAINTENANCE,
    NODES,
    REFERENCES,
    START,
    Case,
    Side,
)
from benchmarks.fresh import STEP as PROGRAM
from benchmarks.history import STEP as PAST
from benchmarks.places import LOCAL, MEMORY, S3, SLOW_S3, UNSYNCED


def _row(
    group: str,
    title: str,
    scenario: tuple[str, str, str],
    steps: Iterable[str],
    kind: str,
    note: str = "",
    *,
    cpu: float | None = 1.0,
    wall: float | None = 1.0,
    requests: float | None = None,
    official: tuple[str, str, str] | None = None,
) -> Case:
    """`scenario` is a module, a function and a dataset; `official` another one for that side."""
    official_kind = LOCAL if kind == UNSYNCED else kind
    return Case(
        f"{title}, {kind}",
        Side((*(official or scenario), "official", official_kind), tuple(steps)),
        Side((*scenario, "ours", kind), tuple(steps)),
        group,
        note,
        cpu,
        wall,
        requests,
    )


# --- cold start and history -------------------------------------------------------------------


def _program(title: str, task: str, dataset: str, note: str = "", wall: float | None = 1.0) -> Case:
    case = _row(START, title, ("fresh", task, dataset), [PROGRAM], LOCAL, note, wall=wall)
    return replace(case, name=title)


_ZARR = "icefloe loads Zarr only when a store is asked for"
_FSYNC = "icefloe waits until the disk has everything, official never does"

_START_CASES = [
    _program("import", "import_only", "files", _ZARR),
    _program("import, open, read one chunk of 8 MB", "first_chunk", "eight megabytes"),
    _program("import, open, look up one of 1,000,000 refs", "look_up", "files", _ZARR),
    _program("import, open, read 32 x 8 MB", "read", "eight megabytes"),
    _program("import, create, commit one chunk", "commit", "files", _FSYNC, None),
]


def _past(title: str, function: str, dataset: str = "history", kind: str = LOCAL) -> Case:
    return _row(HISTORY, title, ("history", function, dataset), [PAST], kind)


_HISTORY_CASES = [
    _past("ancestry of 10,000 snapshots", "ancestry"),
    _past("metadata of 10,000 snapshots", "metadata"),
    _past("ancestry_graph of 10,000 snapshots", "ancestry_graph"),
    _past("ops log of 10,000 commits", "ops_log"),
    _past("list 10,000 tags", "tags"),
    _past("look up 100 of 10,000 tags and snapshots", "look_up"),
    _past("diff over 99 of 10,000 snapshots", "diff"),
    _past("session as of a time, 10,000 snapshots", "as_of"),
    _past("commit to a branch of 100,000 snapshots", "commit", "long history", UNSYNCED),
]

# --- commits ----------------------------------------------------------------------------------


def _commits(kind: str, note: str = "", wall: float | None = 1.0) -> Case:
    scenario = ("stores", "commits", "commits")
    return _row(COMMITS, "100 small commits", scenario, ["commits"], kind, note, wall=wall)


def _crowd(kind: str, note: str, wall: float | None, requests: float | None = None) -> Case:
    title, scenario = "50 commits by 10 processes, rebasing", ("stores", "crowd", "crowd")
    return _row(COMMITS, title, scenario, ["crowd"], kind, note, wall=wall, requests=requests)


_CROWD = "times are of one commit that is in the history in the end, CPU that of all processes"

_COMMIT_CASES = [
    _commits(MEMORY),
    _commits(LOCAL, _FSYNC, None),
    _commits(UNSYNCED),
    _commits(S3),
    _crowd(LOCAL, f"{_CROWD}; {_FSYNC}", None),
    _crowd(UNSYNCED, _CROWD, 1.0),
    _crowd(S3, _CROWD, 2.0, 2.0),
]

# --- thousands of small arrays ----------------------------------------------------------------


def _arrays(group: str, title: str, function: str, dataset: str, kind: str, **more: Any) -> Case:
    step = "read" if function.startswith("read") else "commit"
    # Each side has written what it reads or extends.
    ours, official = (("many_arrays", function, name) for name in (dataset + PACKED, dataset))
    return _row(group, title, ours, [step], kind, official=official, **more)


_ARRAY_CASES = [
    *(
        _arrays(
            COMMITS,
            f"commit of {count:,} arrays of one chunk",
            "commit_all",
            f"{count} new arrays",
            kind,
            cpu=2.0,
            wall=None if kind == LOCAL else 1.0,
            requests=100.0 if kind == S3 else None,
        )
        for count in (2000, 5760)
        for kind in (MEMORY, LOCAL, UNSYNCED, S3)
    ),
    *(
        _arrays(COMMITS, "commit to 10 of 5,000 arrays", "commit_few", "5000 arrays", kind, cpu=2.0)
        for kind in (UNSYNCED, S3)
    ),
    _arrays(CHUNKS, "read 1,000 arrays of one chunk", "read_store", "1000 arrays", S3),
    _arrays(
        CHUNKS,
        "read 1,000 arrays of one chunk by zarr.open_array",
        "read_arrays",
        "1000 arrays",
        S3,
        note="most of the time is Zarr's",
        cpu=None,
        wall=None,
    ),
]

# --- chunks -----------------------------------------------------------------------------------

_SMALL, _INLINE, _LARGE = "4000 x 8 KB", "20,000 inline chunks", "16 x 16 MB zstd"
_MEDIUM, _FEW, _PACKED = "800 x 256 KB zstd", "1000 x 8 KB", "2000 x 4 KB"
_PACKS = "icefloe packs them, as PackingConfig tells it to"


def _write(title: str, dataset: str, kind: str, note: str = "", **targets: Any) -> Case:
    scenario, steps = ("stores", "write_chunks", dataset), ["write", "commit"]
    return _row(CHUNKS, f"write {title}", scenario, steps, kind, note, **targets)


def _read(title: str, dataset: str, kind: str, note: str = "", **targets: Any) -> Case:
    function = "read_ranges" if "ranges" in dataset else "read_chunks"
    scenario, steps = ("stores", function, dataset), ["read"]
    # Official has packed nothing, so it reads its own.
    official = ("stores", function, dataset.removesuffix(PACKED))
    case = _row(CHUNKS, f"read {title}", scenario, steps, kind, note, **targets)
    return replace(case, official=Side((*official, *case.official.scenario[3:]), tuple(steps)))


_CHUNK_CASES = [
    _write(_SMALL, "small", LOCAL, _FSYNC, wall=None),
    _write(_SMALL, "small", UNSYNCED, wall=1.5),
    _read(_SMALL, "small", LOCAL, wall=7.0),
    _write(f"{_SMALL} zstd", "small zstd", UNSYNCED),
    _read(f"{_SMALL} zstd", "small zstd", LOCAL),
    _write(_MEDIUM, "medium", UNSYNCED),
    _read(_MEDIUM, "medium", LOCAL, wall=1.5),
    _write(_LARGE, "large", LOCAL, _FSYNC, wall=None),
    _write(_LARGE, "large", UNSYNCED),
    _read(_LARGE, "large", LOCAL),
    _write(_INLINE, "inline", LOCAL, _FSYNC, wall=None),
    _write(_INLINE, "inline", UNSYNCED, wall=7.0),
    _read(_INLINE, "inline", LOCAL, wall=7.0),
    _write(_FEW, "few small", S3),
    _read(_FEW, "few small", S3),
    _read(_FEW, "few small", SLOW_S3),
    _write(_LARGE, "large", S3),
    _read(_LARGE, "large", S3),
    _write(f"{_PACKED}, packed", "packed", S3, _PACKS, wall=2.0, requests=2.0),
    _read(f"{_PACKED}, packed", f"packed{PACKED}", S3, _PACKS, wall=2.0, requests=2.0),
    _read(f"{_PACKED}, packed", f"packed{PACKED}", SLOW_S3, _PACKS, wall=2.0, requests=2.0),
    _read("1000 ranges of one file", "slow ranges", SLOW_S3, wall=2.0, requests=2.0),
]

# --- references and nodes ---------------------------------------------------------------------


def _set(files: str, dataset: str, what: str, way: str, cpu: float) -> Case:
    function = "virtual_lists" if way == "virtual_table" else way
    return _row(
        REFERENCES,
        f"set and commit 1,000,000 virtual refs to {files} from {what}",
        ("stores", way, dataset),
        ["set", "commit"],
        UNSYNCED,
        "official: from lists" if function != way else "",
        cpu=cpu,
        official=("stores", function, dataset),
    )


def _open(title: str, dataset: str, kind: str, note: str = "") -> Case:
    title, scenario = f"open 1,000,000 {title} refs, look one up", ("stores", "look_up", dataset)
    return _row(REFERENCES, title, scenario, ["look up"], kind, note)


def _look_up(title: str, dataset: str) -> Case:
    title, scenario = f"look one up in 1,000,000 {title} refs", ("stores", "look_up", dataset)
    return _row(REFERENCES, title, scenario, ["look many up"], LOCAL, "one of 2000, all different")


def _all(title: str, function: str, dataset: str, step: str) -> Case:
    return _row(REFERENCES, title, ("stores", function, dataset), [step], LOCAL)


_REFERENCE_CASES = [
    *(
        _set(files, dataset, what, way, cpu)
        for files, dataset in (("1000 files", "files"), ("as many files", "distinct"))
        for what, way, cpu in (
            ("an Arrow table", "virtual_table", 2.0),
            ("lists", "virtual_lists", 1.0),
            ("objects", "virtual_objects", 1.0),
        )
    ),
    _open("virtual", "files", LOCAL),
    _open("virtual", "files", S3),
    _open("native", "native", LOCAL, "both read a manifest that icefloe encoded"),
    _open("native", "native", S3, "both read a manifest that icefloe encoded"),
    _look_up("virtual", "files"),
    _look_up("native", "native"),
    _all("all locations of 1,000,000 refs to 1000 files", "locations", "files", "locations"),
    _all("all locations of 1,000,000 refs to as many", "locations", "distinct", "locations"),
    _all("diff of a commit of 1,000,000 chunks", "changed_chunks", "files", "diff"),
]


def _list(title: str, function: str, dataset: str, step: str, kind: str, wall: float) -> Case:
    return _row(NODES, f"open, {title}", ("stores", function, dataset), [step], kind, wall=wall)


_NODE_CASES = [
    _list(title, function, dataset, step, kind, wall)
    for title, function, dataset, step, wall in (
        ("list 13,014 keys of 13 arrays", "keys", "few arrays", "list", 3.0),
        ("list 13,001 keys of 1000 arrays", "keys", "many arrays", "list", 3.0),
        ("list_dir and zarr.json of 5000 arrays", "documents", "members", "documents", 3.0),
        ("members of a group of 5000 arrays", "members", "members", "members", 2.0),
    )
    for kind in (LOCAL, S3)
]

STORE_CASES = [
    *_START_CASES,
    *_HISTORY_CASES,
    *_COMMIT_CASES,
    *_ARRAY_CASES,
    *_CHUNK_CASES,
    *_REFERENCE_CASES,
    *_NODE_CASES,
    _row(
        MAINTENANCE,
        "collect 10,000 of 60,000 objects",
        ("stores", "collect", "garbage"),
        ["collect"],
        UNSYNCED,
        "20 snapshots of one million references in all",
        wall=2.0,
    ),
]
