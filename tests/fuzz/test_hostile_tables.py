"""Flatbuffers whose tables, vtables, vectors and texts lie where they must not.

One root table serves as the example where all files share the reader.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icefloe.format.flatbuffer.schema import MANIFEST, REPO, SNAPSHOT, TRANSACTION_LOG
from tests.fuzz import seeds
from tests.fuzz.files import Flat
from tests.fuzz.mutate import Seed
from tests.fuzz.refusal import DECODERS, refused

ROOTS = {"snapshot": SNAPSHOT, "manifest": MANIFEST, "log": TRANSACTION_LOG, "repo": REPO}
_SEEDS: dict[str, Callable[[], list[Seed]]] = {
    "snapshot": seeds.snapshots,
    "manifest": lambda: seeds.manifests()[:-1],
    "log": seeds.transaction_logs,
    "repo": seeds.repo_infos,
}


def flat(kind: str) -> Flat:
    """Our own file with every field, ready to be damaged."""
    return Flat(_SEEDS[kind]()[-1].data)


def slot(kind: str, field: str) -> int:
    return list(ROOTS[kind].fields).index(field)


REQUIRED = [
    (kind, field)
    for kind, spec in ROOTS.items()
    for field, its in spec.fields.items()
    if its.is_required
]
# Our seeds have no location dictionary; `manifest_files` is not looked at beside its successor.
_NOT_READ = ("location_dictionary", "manifest_files")
OFFSETS = [
    (kind, field)
    for kind, spec in ROOTS.items()
    for field, its in spec.fields.items()
    if its.is_offset and field not in _NOT_READ
]
VECTORS = [(kind, field) for kind, field in OFFSETS if field != "status"]
NUMBERS = [
    (kind, field)
    for kind, spec in ROOTS.items()
    for field, its in spec.fields.items()
    if its.align == 8
]


@pytest.mark.parametrize("kind", ROOTS)
class TestRoot:
    def test_beyond_the_end(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_u32(0, 0xFFFFFFFC)
        refused(kind, bad.done(), f"table {ROOTS[kind].name} reaches byte")

    def test_at_the_very_end(self, kind: str) -> None:
        bad = flat(kind)
        bad.data += bytes(4)  # its vtable is itself, and two bytes of that do not exist
        bad.set_u32(0, len(bad.data) - 4)
        refused(kind, bad.done(), f"{ROOTS[kind].name}")

    def test_not_aligned(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_u32(0, bad.root + 2)
        refused(kind, bad.done(), f"table {ROOTS[kind].name} is not aligned to 4 bytes")

    def test_in_the_head_of_the_file(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_u32(0, 0)
        refused(kind, bad.done(), f"table {ROOTS[kind].name}")


@pytest.mark.parametrize("kind", ROOTS)
class TestVtable:
    def test_before_the_start(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_i32(bad.root, bad.root + 4)
        refused(kind, bad.done(), f"vtable of {ROOTS[kind].name}")

    def test_beyond_the_end(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_i32(bad.root, bad.root - len(bad.data))
        refused(kind, bad.done(), f"vtable of {ROOTS[kind].name} reaches byte")

    def test_farthest_away(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_i32(bad.root, -(2**31))
        refused(kind, bad.done(), f"vtable of {ROOTS[kind].name} reaches byte")

    def test_on_an_odd_byte(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_i32(bad.root, bad.root - bad.vtable(bad.root) + 1)
        refused(kind, bad.done(), f"vtable of {ROOTS[kind].name} is not aligned to 2 bytes")

    def test_overlapping_its_table(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_i32(bad.root, 0)
        refused(kind, bad.done(), f"vtable of {ROOTS[kind].name} is 0 bytes long")

    @pytest.mark.parametrize("size", [0, 2, 5])
    def test_of_an_impossible_size(self, kind: str, size: int) -> None:
        bad = flat(kind)
        bad.set_u16(bad.vtable(bad.root), size)
        refused(kind, bad.done(), f"vtable of {ROOTS[kind].name} is {size} bytes long")

    def test_longer_than_the_file(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_u16(bad.vtable(bad.root), 0xFFFE)
        refused(kind, bad.done(), f"vtable of {ROOTS[kind].name} reaches byte")

    def test_of_a_table_longer_than_the_file(self, kind: str) -> None:
        bad = flat(kind)
        bad.set_u16(bad.vtable(bad.root) + 2, 0xFFFF)
        refused(kind, bad.done(), f"table {ROOTS[kind].name} reaches byte")


@pytest.mark.parametrize(("kind", "field"), REQUIRED)
def test_a_required_field_that_is_absent(kind: str, field: str) -> None:
    bad = flat(kind)
    bad.set_u16(bad.entry(bad.root, slot(kind, field)), 0)
    refused(kind, bad.done(), f"{ROOTS[kind].name}.{field} is required and absent")


@pytest.mark.parametrize(("kind", "field"), REQUIRED)
@pytest.mark.parametrize("offset", [2, 0xFFFC])
def test_a_field_outside_its_table(kind: str, field: str, offset: int) -> None:
    bad = flat(kind)
    bad.set_u16(bad.entry(bad.root, slot(kind, field)), offset)
    refused(kind, bad.done(), f"{ROOTS[kind].name}.{field} lies outside its table")


@pytest.mark.parametrize(("kind", "field"), OFFSETS)
def test_an_offset_that_is_not_aligned(kind: str, field: str) -> None:
    # Moved down by one byte, it is read from between two words.
    bad = flat(kind)
    entry = bad.entry(bad.root, slot(kind, field))
    bad.set_u16(entry, bad.u16(entry) - (1 if bad.u16(entry) > 4 else -1))
    refused(kind, bad.done(), f"{ROOTS[kind].name}.{field} is not aligned to 4 bytes")


@pytest.mark.parametrize(("kind", "field"), NUMBERS)
def test_a_number_that_is_not_aligned(kind: str, field: str) -> None:
    bad = flat(kind)
    entry = bad.entry(bad.root, slot(kind, field))
    bad.set_u16(entry, bad.u16(entry) - 4)
    refused(kind, bad.done(), f"{ROOTS[kind].name}.{field} is not aligned to 8 bytes")


@pytest.mark.parametrize(("kind", "field"), OFFSETS)
@pytest.mark.parametrize("distance", [0x7FFFFFFC, 0x80000000, 0xFFFFFFFC])
def test_an_offset_beyond_the_end(kind: str, field: str, distance: int) -> None:
    bad = flat(kind)
    bad.set_u32(bad.field(bad.root, slot(kind, field)), distance)
    refused(kind, bad.done(), "reaches byte")


@pytest.mark.parametrize(("kind", "field"), VECTORS)
@pytest.mark.parametrize("count", [2**16, 2**31, 2**32 - 1])
def test_a_vector_that_claims_more_than_the_file_has(kind: str, field: str, count: int) -> None:
    bad = flat(kind)
    bad.set_u32(bad.target(bad.root, slot(kind, field)), count)
    refused(kind, bad.done(), f"{ROOTS[kind].name}.{field} reaches byte")


@pytest.mark.parametrize("kind", ROOTS)
def test_bytes_behind_the_flatbuffer_are_harmless(kind: str) -> None:
    good = flat(kind)
    good.data += bytes(24)
    assert DECODERS[kind](good.done(), "a file") is not None
