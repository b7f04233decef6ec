"""Locations that wait as zstd frames: inflated one by one on lookup, together on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard

from icefloe.errors import FormatError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import BlobColumn
from icefloe.format.locations import (
    MAX_COMPRESSED_LOCATION_BYTES,
    Coded,
    CompressedLocations,
    Locations,
)

TEXTS = [f"s3://bucket/years/{1900 + number}/größe-{number:04d}.nc" for number in range(300)]
DICTIONARY = zstandard.train_dictionary(2048, [text.encode() for text in TEXTS * 4])


def compress(text: str | bytes, **options: Any) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return zstandard.ZstdCompressor(dict_data=DICTIONARY, **options).compress(data)


def waiting(frames: list[bytes]) -> CompressedLocations:
    return CompressedLocations(BlobColumn.from_values(frames), DICTIONARY.as_bytes(), "manifests/X")


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts calls that inflate one location or all of them."""
    calls: list[int] = []
    one, every = CompressedLocations.get, CompressedLocations.strings

    def get(self: CompressedLocations, row: int) -> str:
        calls.append(1)
        return one(self, row)

    def strings(self: CompressedLocations) -> BlobColumn:
        calls.append(len(self))
        return every(self)

    monkeypatch.setattr(CompressedLocations, "get", get)
    monkeypatch.setattr(CompressedLocations, "strings", strings)
    return calls


def refs_waiting(count: int = 300) -> ChunkRefs:
    codes = np.arange(count, dtype=np.int32)
    values = Locations(
        BlobColumn.from_values([], is_text=True), waiting([compress(t) for t in TEXTS[:count]])
    )
    index = codes[:, None].astype(np.uint32)
    return ChunkRefs.virtual(index, Coded(codes, values), 8 * codes, 8)


def is_waiting(refs: ChunkRefs) -> bool:
    return refs.location is not None and refs.location.values.is_waiting


def test_a_point_lookup_inflates_only_one_location(inflated: list[int]) -> None:
    refs = refs_waiting()
    ref = refs.get((217,))
    assert ref is not None
    assert ref.location == TEXTS[217]
    assert inflated == [1]


def test_looking_for_a_chunk_that_is_not_there_inflates_nothing(inflated: list[int]) -> None:
    assert refs_waiting().get((300,)) is None
    assert inflated == []


def test_selecting_and_deleting_inflates_nothing(inflated: list[int]) -> None:
    refs = refs_waiting()
    part = refs.select((10,), (20,)).merge(ChunkRefs.empty(1), np.array([[12]], np.uint32))
    assert len(part) == 9
    assert inflated == []
    assert part.row(0).location == TEXTS[10]
    assert inflated == [1]


def test_all_locations_are_inflated_once_and_kept(inflated: list[int]) -> None:
    refs = refs_waiting()
    states = [is_waiting(refs)]
    for _ in range(2):
        assert refs.to_arrow(plain=True)["location"].to_pylist() == TEXTS
        states.append(is_waiting(refs))
    assert states == [True, False, False]
    assert inflated == [300]


def test_waiting_locations_merge_with_plain_ones_and_with_other_kinds() -> None:
    virtual = ChunkRefs.virtual([[5], [400]], ["s3://other/a", "s3://other/b"], [1, 2], [3, 4])
    inline = ChunkRefs.inline_chunks([[6]], [b"bytes"])
    native = ChunkRefs.native([[7]], np.ones((1, 12), np.uint8), 0, 9)
    merged = refs_waiting().merge(virtual).merge(inline).merge(native)
    assert len(merged) == 301
    found = merged.to_arrow(plain=True)["location"].to_pylist()
    expected: list[str | None] = [*TEXTS, "s3://other/b"]
    expected[5:8] = ["s3://other/a", None, None]
    assert found == expected


def test_two_waiting_columns_with_their_own_dictionaries_merge() -> None:
    other = zstandard.train_dictionary(1024, [text.upper().encode() for text in TEXTS * 4])
    frames = [
        zstandard.ZstdCompressor(dict_data=other).compress(text.upper().encode())
        for text in TEXTS[:5]
    ]
    column = CompressedLocations(BlobColumn.from_values(frames), other.as_bytes(), "manifests/Y")
    values = Locations(BlobColumn.from_values([], is_text=True), column)
    codes = np.arange(5, dtype=np.int32)
    upper = ChunkRefs.virtual(2 * codes[:, None], Coded(codes, values), 0, 1)
    merged = refs_waiting(10).merge(upper)
    expected = [TEXTS[at] if at % 2 else TEXTS[at // 2].upper() for at in range(10)]
    assert merged.to_arrow(plain=True)["location"].to_pylist() == expected


def test_plain_locations_come_before_waiting_ones() -> None:
    both = Locations(BlobColumn.from_values(["plain"], is_text=True), waiting([compress(TEXTS[3])]))
    assert len(both) == 2
    assert (both.get(0), both.get(1)) == ("plain", TEXTS[3])
    assert both.strings().to_list() == ["plain", TEXTS[3]]
    assert (len(both), both.get(1)) == (2, TEXTS[3])


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [""],
        ["", "a", ""],
        ["x" * 255, "x" * 256, "x" * 257],
        ["y" * MAX_COMPRESSED_LOCATION_BYTES],
        [np.random.default_rng(2).integers(32, 127, 1000, np.uint8).tobytes().decode(), "a"],
        TEXTS,
    ],
    ids=["none", "empty", "empties", "around 256", "longest", "incompressible", "many"],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"write_content_size": False}, {"write_checksum": True}, {"write_dict_id": False}],
    ids=["usual", "no size", "checksum", "no dictionary id"],
)
def test_frames_of_any_form_are_inflated_alike(texts: list[str], options: dict[str, bool]) -> None:
    column = waiting([compress(text, **options) for text in texts])
    assert column.strings().to_list() == texts
    assert [column.get(row) for row in range(len(texts))] == texts


def test_usual_and_unusual_frames_mix() -> None:
    column = waiting([compress("a"), compress("b", write_content_size=False), compress("c")])
    assert column.strings().to_list() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"not a frame",
        compress("cut short")[:-1],
        compress("joined") + compress("twice"),
        compress("trailing") + b"\0",
        compress("z" * (MAX_COMPRESSED_LOCATION_BYTES + 1)),
        compress(b"\xff\xfe"),
        b"\x28\xb5\x2f\xfd\xe0" + (2**50).to_bytes(8, "little") + b"\x09\0\0a",
    ],
    ids=["empty", "noise", "cut", "two frames", "trailing", "too long", "not UTF-8", "absurd size"],
)
@pytest.mark.parametrize("neighbours", [[], [compress("fine")]])
def test_a_damaged_location_is_an_error_that_names_the_file(
    frame: bytes, neighbours: list[bytes]
) -> None:
    column = waiting([*neighbours, frame, *neighbours])
    with pytest.raises(FormatError, match=r"^manifests/X: a compressed location"):
        column.strings()
    with pytest.raises(FormatError, match=r"^manifests/X: a compressed location"):
        column.get(len(neighbours))


def test_a_damaged_dictionary_is_an_error_that_names_the_file() -> None:
    broken = DICTIONARY.as_bytes()[:20]
    with pytest.raises(FormatError, match=r"^manifests/X: "):
        CompressedLocations(BlobColumn.from_values([compress("a")]), broken, "manifests/X").get(0)


def test_a_slice_of_waiting_frames_is_inflated_from_its_own_place() -> None:
    frames = BlobColumn.from_values([compress(text) for text in TEXTS[:9]])[4:7]
    column = CompressedLocations(frames, DICTIONARY.as_bytes(), "x")
    assert column.strings().to_list() == TEXTS[4:7]
    assert column.get(1) == TEXTS[5]
