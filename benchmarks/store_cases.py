"""The rows about whole repositories: what is set side by side where, and the targets.

Scenarios are functions of `stores`; this file only names them.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cases import REPOSITORIES_GROUP, Case, Side
from benchmarks.places import LOCAL, MEMORY, S3, UNSYNCED

NO_SLOWER = 0.95
"""From this ratio on it is called no slower: two runs of one program differ by as much."""

LARGEST_COMMIT_CPU = 1.5
"""How many times official's CPU a small commit may need, where no disk is waited for."""

_FSYNC = "icefloe waits until the disk has everything, official never does; see the row below"


def _row(
    title: str,
    scenario: tuple[str, str],
    steps: tuple[str, ...],
    kind: str,
    note: str = "",
    *,
    cpu: float | None = None,
    wall: float | None = None,
) -> Case:
    official_kind = LOCAL if kind == UNSYNCED else kind
    return Case(
        f"{title}, {kind}",
        Side(("stores", *scenario, "official", official_kind), steps),
        Side(("stores", *scenario, "ours", kind), steps),
        note,
        cpu,
        wall_target=wall,
        group=REPOSITORIES_GROUP,
        most_rounds=2,
    )


def _write(title: str, dataset: str, kind: str, note: str = "", wall: float | None = None) -> Case:
    title, steps = f"store {title}: write and commit", ("write", "commit")
    return _row(title, ("chunks", dataset), steps, kind, note, wall=wall)


def _read(title: str, dataset: str, kind: str, note: str = "", *, wall: float) -> Case:
    return _row(f"store {title}: read", ("chunks", dataset), ("read",), kind, note, wall=wall)


def _long(case: Case) -> Case:
    note = "; ".join(filter(None, [case.note, "one round only"]))
    return replace(case, most_rounds=1, note=note)


def _commits(kind: str, note: str = "", cpu: float | None = None) -> Case:
    title, scenario = "commit 200 small changes", ("commits", "commits")
    return _row(title, scenario, ("commits",), kind, note, cpu=cpu)


def _open(title: str, dataset: str, kind: str, note: str = "") -> Case:
    title, scenario = f"open 1,000,000 {title} refs, look one up", ("look_up", dataset)
    return _row(title, scenario, ("look up",), kind, note, wall=NO_SLOWER)


def _list(title: str, dataset: str, kind: str, note: str = "", wall: float = 3.0) -> Case:
    return _row(f"open, list {title}", ("keys", dataset), ("list",), kind, note, wall=wall)


def _documents(kind: str) -> Case:
    title, note = "open, list_dir and zarr.json of 5000 arrays", "what members asks of the store"
    return _row(title, ("documents", "members"), ("documents",), kind, note, wall=3.0)


def _members(kind: str) -> Case:
    title = "open, members of a group of 5000 arrays"
    note = "mostly Zarr making 5000 objects, which takes as long with any store"
    return _row(title, ("members", "members"), ("members",), kind, note, wall=NO_SLOWER)


_SMALL, _LARGE, _INLINE = "4000 x 8 KB", "64 x 16 MB", "20,000 inline chunks"
_MEDIUM = "800 x 256 KB zstd"
_ZSTD, _COMPRESSED = f"{_SMALL} zstd", "compressed by Zarr, as it does unless told otherwise"
_PACE = "the server sets the pace"
_PACKED, _PACKS = "20,000 x 4 KB", "icefloe packs them, as PackingConfig tells it to"
_PACKED_CHUNKS = ("packed_chunks", "packed")
_NATIVE_NOTE = "both read a manifest that icefloe encoded"

_FUSED = _row(
    f"store {_INLINE}: read, FusedCodecPipeline",
    ("fused_chunks", "inline"),
    ("read",),
    LOCAL,
    "a pipeline of Zarr's that uses icefloe's synchronous reads; not its default",
    wall=2.0,
)

_BULK_NOTE = "icefloe with use_bulk_pipeline(), official with Zarr's default pipeline"
_BULK_ROWS = [
    _row(f"bulk {title}: {what}", ("bulk_chunks", dataset), steps, kind, _BULK_NOTE, wall=wall)
    for title, dataset, what, steps, kind, wall in (
        (_SMALL, "small", "read", ("read",), LOCAL, 7.0),
        (_SMALL, "small", "write", ("write",), UNSYNCED, 1.5),
        (_INLINE, "inline", "read", ("read",), LOCAL, 7.0),
        (_INLINE, "inline", "write", ("write",), LOCAL, 7.0),
        (_MEDIUM, "medium", "read", ("read",), LOCAL, 1.5),
        (_MEDIUM, "medium", "write", ("write",), UNSYNCED, NO_SLOWER),
        (_SMALL, "small", "read", ("read",), S3, NO_SLOWER),
    )
]

_PACKED_ROWS = [
    replace(
        _long(_row(f"store {_PACKED}: {what}", _PACKED_CHUNKS, steps, S3, _PACKS, wall=wall)),
        requests_target=requests,
    )
    for what, steps, wall, requests in (
        ("write and commit", ("write", "commit"), 5.0, 50.0),
        ("read", ("read",), 2.0, 5.0),
    )
]

_VIRTUAL_ROWS = [
    replace(
        _row(
            f"set and commit 1,000,000 virtual refs to {files} from {what}",
            (way, dataset),
            ("set", "commit"),
            LOCAL,
            note,
            cpu=cpu,
        ),
        official=Side(("stores", official, dataset, "official", LOCAL), ("set", "commit")),
    )
    for files, dataset in (("1000 files", "files"), ("as many files", "distinct"))
    for what, way, official, note, cpu in (
        ("an Arrow table", "virtual_table", "virtual_lists", "official: from lists", 2.0),
        ("lists", "virtual_lists", "virtual_lists", "", NO_SLOWER),
        ("objects", "virtual_objects", "virtual_objects", "", NO_SLOWER),
    )
]

_CROWD = _row(
    "100 commits by 10 processes, rebasing",
    ("crowd", "crowd"),
    ("crowd",),
    S3,
    "one array, no chunk twice; MB are what the server received, the CPU is not that of the ten",
    wall=2.0,
)

STORE_CASES = [
    _write(_SMALL, "small", LOCAL, _FSYNC),
    _write(_SMALL, "small", UNSYNCED),
    _read(_SMALL, "small", LOCAL, wall=2.0),
    _long(_write(_ZSTD, "small zstd", UNSYNCED, _COMPRESSED)),
    _long(_read(_ZSTD, "small zstd", UNSYNCED, _COMPRESSED, wall=NO_SLOWER)),
    _long(_write(_SMALL, "small", S3)),
    _long(_read(_SMALL, "small", S3, _PACE, wall=NO_SLOWER)),
    _write(_LARGE, "large", LOCAL, _FSYNC),
    _write(_LARGE, "large", UNSYNCED, wall=NO_SLOWER),
    _read(_LARGE, "large", LOCAL, wall=NO_SLOWER),
    _long(_write(_LARGE, "large", S3, wall=NO_SLOWER)),
    _long(_read(_LARGE, "large", S3, wall=NO_SLOWER)),
    _write(_INLINE, "inline", LOCAL),
    _read(_INLINE, "inline", LOCAL, wall=2.0),
    _long(_FUSED),
    _long(_write(_INLINE, "inline", S3)),
    _long(_read(_INLINE, "inline", S3, wall=2.0)),
    *_BULK_ROWS,
    *_PACKED_ROWS,
    _commits(MEMORY, cpu=1 / LARGEST_COMMIT_CPU),
    _commits(LOCAL, _FSYNC),
    _commits(UNSYNCED),
    _commits(S3, cpu=1 / LARGEST_COMMIT_CPU),
    *_VIRTUAL_ROWS,
    replace(
        _CROWD,
        official_file=_CROWD.official,
        has_size_target=True,
        largest_size=0.5,
        requests_target=2.0,
    ),
    _open("virtual", "files", LOCAL),
    _open("virtual", "files", S3),
    _open("native", "native", LOCAL, _NATIVE_NOTE),
    _open("native", "native", S3, _NATIVE_NOTE),
    _list("13,014 keys of 13 arrays", "few arrays", LOCAL),
    _list("13,014 keys of 13 arrays", "few arrays", S3),
    _list("13,001 keys of 1000 arrays", "many arrays", LOCAL),
    _list("13,001 keys of 1000 arrays", "many arrays", S3, _PACE, NO_SLOWER),
    _documents(LOCAL),
    _documents(S3),
    _members(LOCAL),
    _members(S3),
]
