"""What a row of the table is, and the rows about single files: scenarios, steps and targets.

Scenarios are functions of `official` and `ours`; this file only names them. The rows about whole
repositories are in `store_cases`.
"""

from __future__ import annotations

from dataclasses import dataclass

ScenarioName = tuple[str, ...]
"""Module, function, dataset, further arguments."""

FILES_GROUP, REPOSITORIES_GROUP, FRESH_GROUP = "files", "repositories", "fresh processes"


@dataclass(frozen=True, slots=True)
class Side:
    """Steps of a scenario that count, taken together."""

    scenario: ScenarioName
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `note` tells what a reader might otherwise take for granted."""

    name: str
    official: Side | None
    ours: Side
    note: str = ""
    ratio_target: float | None = None
    """How many times less CPU than official icefloe is to need."""
    has_memory_target: bool = False
    """Whether icefloe is to need no more memory than official."""
    official_file: Side | None = None
    """Where to find the file of official's that ours is to be compared with."""
    has_size_target: bool = False
    largest_size: float | None = None
    """How large ours may be against official's; `LARGEST_SIZE_RATIO` if None."""
    wall_target: float | None = None
    """How many times less wall time than official icefloe is to need."""
    requests_target: float | None = None
    """How many times fewer requests than official icefloe is to make."""
    group: str = FILES_GROUP
    most_rounds: int | None = None
    """How many rounds have to do, where more would take too long."""

    def is_about(self, text: str) -> bool:
        """Whether the case is meant by what a user typed."""
        return text in self.name or text == self.group

    @property
    def sides(self) -> list[Side]:
        return [side for side in (self.official, self.ours, self.official_file) if side is not None]


LARGEST_SIZE_RATIO = 1.05


def _official(function: str, dataset: str, *steps: str, spec: str | None = None) -> Side:
    return Side(("official", function, dataset, *([spec] if spec else [])), steps)


def _ours(function: str, dataset: str, *steps: str) -> Side:
    return Side(("ours", function, dataset), steps)


def _decode(title: str, dataset: str, ratio_target: float | None = None, note: str = "") -> Case:
    return Case(
        f"decode {title}",
        _official("decode", dataset, "load", "columns"),
        _ours("decode", dataset, "decode", "inflate"),
        note,
        ratio_target,
        has_memory_target=True,
    )


def _lazy_decode(title: str, dataset: str) -> Case:
    return Case(
        f"decode {title}: not asked for locations",
        _official("decode", dataset, "load"),
        _ours("decode", dataset, "decode"),
        "official only loads the file and finds one chunk; icefloe makes all other columns",
    )


def _encode(title: str, dataset: str, spec: str, ratio_target: float | None = None) -> Case:
    commit = _official("write", dataset, "commit", spec=spec)
    return Case(
        f"encode and write {title}, spec {spec}",
        commit,
        _ours("write", dataset, f"manifest {spec}", f"rest {spec}"),
        "a commit of official's against our encoding and writing of its files; size: the manifest",
        ratio_target,
        has_memory_target=True,
        official_file=commit,
        has_size_target=True,
    )


def _hand_in(title: str, dataset: str) -> list[Case]:
    given = _official("write", dataset, "hand in", spec="2")
    return [
        Case(
            f"hand in {title} as list[str]",
            given,
            _ours("write", dataset, "hand in list"),
            "set_virtual_refs_arr against ChunkRefs.virtual",
        ),
        Case(
            f"hand in {title} as Arrow dictionary",
            given,
            _ours("write", dataset, "hand in Arrow"),
            "official takes no Arrow column: the same list[str] as above",
        ),
    ]


FILES, DISTINCT = "1000 files", "distinct URLs"

FILE_CASES = [
    _decode(FILES, "files", 4.0),
    _decode(DISTINCT, "distinct", 2.0),
    _decode("1000 files in rotation", "rotating"),
    _decode("1000 files, icefloe's layout", "rewritten", note="both read the file icefloe wrote"),
    _decode(
        "native",
        "native",
        note="encoded by icefloe and put into a repository of official's; "
        "official yields ids as text, icefloe as bytes",
    ),
    _lazy_decode(FILES, "files"),
    _lazy_decode(DISTINCT, "distinct"),
    Case(
        f"decode {FILES} to a list[str]",
        _official("decode", "files", "load", "columns"),
        _ours("decode", "files", "decode", "inflate", "to list"),
        "as official yields locations; icefloe's own form is a dictionary column",
    ),
    Case(
        f"look up one chunk, {FILES}",
        _official("decode", "files", "look up"),
        _ours("decode", "files", "look up"),
        "official's chunk_type gives the kind, refs.get the whole reference",
    ),
    Case(
        f"look up one chunk, {DISTINCT}",
        _official("decode", "distinct", "look up"),
        _ours("decode", "distinct", "look up"),
        "the same; icefloe inflates each location it returns",
    ),
    *_hand_in(FILES, "files"),
    *_hand_in(DISTINCT, "distinct"),
    Case(
        f"hand in {FILES} as objects",
        _official("hand_in_objects", "files", "hand in"),
        _ours("write", "files", "hand in list"),
        "set_virtual_refs with objects made before, against the list[str] that icefloe takes",
    ),
    _encode(FILES, "files", "2", 3.0),
    _encode(DISTINCT, "distinct", "2", 3.0),
    _encode(FILES, "files", "1"),
    _encode(DISTINCT, "distinct", "1"),
    Case(
        "snapshot: decode and list nodes",
        _official("snapshot", "nodes", "list"),
        _ours("snapshot", "nodes", "decode", "list"),
        "one node for 100 refs; inspect_snapshot leaves zarr.json out",
        has_memory_target=True,
    ),
    Case(
        "snapshot: decode",
        _official("snapshot", "nodes", "load"),
        _ours("snapshot", "nodes", "decode"),
        "official finds the root group's id",
    ),
    Case(
        "snapshot: encode and write",
        _official("snapshot", "nodes", "commit"),
        _ours("snapshot", "nodes", "encode"),
        "official commits one more group",
        has_memory_target=True,
        official_file=_official("snapshot", "nodes", "commit"),
    ),
    Case(
        "transaction log: decode",
        _official("transaction_log", "files", "decode"),
        _ours("transaction_log", "files", "decode"),
        "official's diff makes Python lists, icefloe a matrix",
        has_memory_target=True,
    ),
    Case(
        "transaction log: decode to lists",
        _official("transaction_log", "files", "decode"),
        _ours("transaction_log", "files", "decode", "to list"),
        "both make Python lists",
    ),
    Case(
        "transaction log: encode and write",
        None,
        _ours("transaction_log", "files", "encode"),
        "official encodes it only as a part of its commit",
        official_file=_official("transaction_log", "files", "decode"),
    ),
]
