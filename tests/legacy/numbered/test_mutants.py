"""Damaged files of older generations: each is refused by name, or decodes to something consistent.

Files behind a header are damaged inside their compressed payload, where it matters. Some hundreds
of each kind are tried; `--fuzz-cases` of each in the long run.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any
from zlib import crc32

import pytest

import icefloe
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.envelope import FileType
from icefloe.format.snapshot import Snapshot
from icefloe.ids import SnapshotId
from icefloe.legacy.numbered import files, parquet_files
from icefloe.legacy.numbered.files import Form
from icefloe.legacy.numbered.model import OldSnapshot
from icefloe.legacy.numbered.names import IdMap
from icefloe.legacy.numbered.snapshots import attribute_files_of, to_snapshot
from tests.fuzz.guard import TooSlowError, limited_memory, limited_time
from tests.fuzz.mutate import Seed, mutant
from tests.legacy.numbered import examples
from tests.legacy.numbered.old_repositories import Builder
from tests.legacy.numbered.releases import RELEASES, packed
from tests.safety.worlds import read_objects

NAME = "damaged/file of a generation"
FEW = 400
_MARKS = (b"\xc0", b"\x90", b"\x80", b"\xdd\xff\xff\xff\xff", b"\xc4\xff", b"\xcf" + b"\xff" * 8)
_TOKENS = (b"null", b"-1", b"1e999", b"[]", b"{}", b'"', b"NaN", b"18446744073709551616")


@dataclass(frozen=True)
class Kind:
    """A kind of file: healthy ones, and what is done with a damaged one."""

    name: str
    seeds: Callable[[], list[tuple[str, bytes]]]
    use: Callable[[bytes], None]

    def damaged(self, case: int) -> bytes:
        random = Random(crc32(self.name.encode()) << 32 | case)
        name, data = random.choice(self.seeds())
        if data[:3] == b"ICE" and random.random() < 0.9:
            return _damaged_inside(data, random)
        seed = Seed(name, data, is_metadata_file=False)
        tokens = _TOKENS if data[:1] == b"{" else _MARKS
        return mutant(seed, random, tokens)


def _damaged_inside(data: bytes, random: Random) -> bytes:
    """The payload damaged, and enclosed again: otherwise the frame would be what is wrong."""
    payload = bytes(files.open_file(data, FileType(data[37]), "healthy")[1])
    changed = mutant(Seed("payload", payload, is_metadata_file=False), random, _MARKS)
    return files._enclosed(changed, FileType(data[37]), Form.BINARY, 1)


@cache
def _objects() -> dict[str, list[tuple[str, bytes, int]]]:
    """Files of all releases by folder, with the size of their ids."""
    found: dict[str, list[tuple[str, bytes, int]]] = {}
    folders = ("snapshots", "manifests", "transactions", "attributes")
    for release in RELEASES.values():
        if release.is_parquet:
            continue
        storage = icefloe.in_memory_storage()
        Builder(release, storage, 3, "file:///nowhere").build()
        for key, data in read_objects(storage).items():
            for folder in folders:
                if key.startswith(release.folder(folder)):
                    entry = f"{release.name} {key}", data, release.id_size
                    found.setdefault(folder, []).append(entry)
    return found


def _old(folder: str, forms: Callable[[Form], bytes | None]) -> list[tuple[str, bytes]]:
    mine = [(str(form), data) for form in Form if (data := forms(form)) is not None]
    return [*((name, data) for name, data, _ in _objects()[folder]), *mine]


def _use_snapshot(data: bytes) -> None:
    old = files.decode_snapshot(data, NAME)
    attributes: Any = {raw: [{}, {"a": 1}] * 8 for raw in attribute_files_of(old)}
    snapshot = to_snapshot(old, attributes, IdMap(len(old.id)), NAME, counts_boxes=True)
    assert isinstance(snapshot, Snapshot)
    for node in snapshot.nodes:
        assert snapshot.nodes.find(node.path) == node
        assert snapshot.manifest_files.keys() >= {ref.id for ref in _refs(node)}
    _encode_again(old)


def _refs(node: Any) -> Any:
    return () if node.array is None else node.array.manifests


def _encode_again(old: OldSnapshot) -> None:
    """What is written of it is read as the same, where document 000 can say it."""
    if any(int.from_bytes(node.id, "big") >= 2**32 for node in old.nodes) or len(old.id) != 16:
        return
    for form in (Form.JSON, Form.MSGPACK):
        try:
            again = files.decode_snapshot(files.encode_snapshot(old, form, 1), NAME)
        except (FormatError, OverflowError, ValueError):
            continue  # a number of attributes that MessagePack cannot say, for one
        assert (again.id, again.message, again.written_at) == (old.id, old.message, old.written_at)
        assert [node.path for node in again.nodes] == [node.path for node in old.nodes]


def _use_manifest(data: bytes) -> None:
    error: Exception | None = None
    for size in (12, 16):
        ids = IdMap(size)
        try:
            found = files.decode_manifest(data, NAME, ids)
        except FormatError as problem:
            error = problem
            continue
        for refs in found.arrays.values():
            assert ChunkRefs.from_arrow(refs.to_arrow(plain=True)).equals(refs)
            for row, index in enumerate(refs.index.tolist()):
                assert refs.get(index) == refs.row(row)
        return
    assert error is not None
    raise error


def _use_log(data: bytes) -> None:
    log = files.decode_log(data, NAME, SnapshotId(bytes(12)), ())
    assert log.num_changes >= 0


def _use_attributes(data: bytes) -> None:
    assert all(isinstance(each, dict) for each in files.decode_attributes(data, NAME))


@cache
def _parquet(folder: str) -> list[tuple[str, bytes]]:
    """Files of the program that wrote Parquet."""
    storage = icefloe.in_memory_storage()
    Builder(RELEASES["2024-09 Parquet"], storage, 3, "file:///nowhere").build()
    return [each for each in read_objects(storage).items() if each[0].startswith(folder)]


def _use_parquet_snapshot(data: bytes) -> None:
    ref = parquet_files.RefFile(bytes(16), 1, "m", {})
    old = parquet_files.decode_snapshot(data, NAME, ref, ())
    snapshot = to_snapshot(old, {}, IdMap(16), NAME, counts_boxes=True)
    for node in snapshot.nodes:
        assert snapshot.nodes.find(node.path) == node


def _use_parquet_manifest(data: bytes) -> None:
    for refs in parquet_files.decode_manifest(data, NAME, IdMap(16)).arrays.values():
        for row, index in enumerate(refs.index.tolist()):
            assert refs.get(index) == refs.row(row)


def _use_parquet_ref(data: bytes) -> None:
    assert len(parquet_files.decode_ref_file(data, NAME).snapshot_id) in (12, 16)


def _use_ref(data: bytes) -> None:
    assert len(files.decode_ref(data, NAME)) in (12, 16)


KINDS = [
    Kind(
        "snapshot",
        lambda: _old("snapshots", lambda form: files.encode_snapshot(examples.snapshot(), form, 1)),
        _use_snapshot,
    ),
    Kind(
        "manifest",
        lambda: _old(
            "manifests",
            lambda form: files.encode_manifest(examples.references(), IdMap(16), form, 1),
        ),
        _use_manifest,
    ),
    Kind(
        "transaction log",
        lambda: _old("transactions", lambda form: None),
        _use_log,
    ),
    Kind(
        "attributes",
        lambda: _old("attributes", lambda form: files.encode_attributes([{"a": [1]}], form, 1)),
        _use_attributes,
    ),
    Kind(
        "ref",
        lambda: [
            ("list", files.encode_ref(examples.wide(3), 10**15, {"a": 1})),
            ("text", b'{"snapshot":"000G40R40M30E209185G"}'),
        ],
        _use_ref,
    ),
    Kind("Parquet snapshot", lambda: _parquet("s/"), _use_parquet_snapshot),
    Kind("Parquet manifest", lambda: _parquet("m/"), _use_parquet_manifest),
    Kind("ref of the Parquet program", lambda: _parquet("r/branch:main/"), _use_parquet_ref),
]


def run(kind: Kind, cases: range) -> None:
    for _, data in kind.seeds():  # whatever is loaded on first use is loaded before the limit
        kind.use(data)
    reports: dict[str, str] = {}
    decoded = 0
    with limited_time(len(cases)) as start, limited_memory():
        for case in cases:
            start()
            try:
                kind.use(kind.damaged(case))
                decoded += 1
            except FormatError as refusal:
                if not refusal.message.startswith(f"{NAME}: "):
                    reports.setdefault("names", f"{kind.name}, case {case}: not named: {refusal}")
            except (Exception, TooSlowError) as error:  # noqa: BLE001 (all of them are reported)
                place = str(traceback.extract_tb(error.__traceback__)[-1])
                trace = "".join(traceback.format_exception(error)[-5:])
                reports.setdefault(place, f"{kind.name}, case {case}: {trace}")
    if reports:
        pytest.fail("\n\n".join(reports.values()), pytrace=False)
    assert 0.02 < decoded / len(cases) < 0.95, f"{decoded} of {len(cases)} could be decoded"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.timeout(0)  # the time of each case is limited instead
def test_damaged_files_are_refused_or_consistent(kind: Kind) -> None:
    run(kind, range(FEW))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.timeout(0)
def test_many_damaged_files_are_refused_or_consistent(
    kind: Kind, request: pytest.FixtureRequest
) -> None:
    run(kind, range(request.config.getoption("--fuzz-cases")))


def test_lengths_that_the_bytes_do_not_back_up_cost_nothing() -> None:
    bombs = [
        b"\x97" + b"\xdd\x7f\xff\xff\xff" * 100,
        (b"\xdd" + struct.pack(">I", 1 << 20)) * 500 + bytes(1 << 20),
        b"\x91\xdf\x7f\xff\xff\xff",
        b"\x91" + packed([[]] * 3)[:-1],
    ]
    with limited_memory(64 * 1024 * 1024):
        for bomb in bombs:
            with pytest.raises(FormatError, match=r"not MessagePack|items"):
                files.decode_snapshot(bomb, NAME)


def test_json_that_goes_too_deep_is_refused() -> None:
    for data in (b"[" * 100_000, b'{"chunks":' * 100_000):
        with pytest.raises(FormatError, match=f"{NAME}: "):
            files.decode_manifest(data if data[:1] == b"{" else b"{" + data, NAME, IdMap(16))
    assert issubclass(InvalidInputError, ValueError)
