"""The byte vectors of the founding documents and of the facts book (parts I.1 and K)."""

from __future__ import annotations

import numpy as np
import pytest

from icefloe.errors import FormatError, InternalError, InvalidInputError
from icefloe.ids import ChunkId, NodeId, SnapshotId, encode_base32
from icefloe.legacy.checked import Checked, instant_text
from icefloe.legacy.numbered.encodings import MsgpackReader, Pairs
from icefloe.legacy.numbered.names import (
    LAST,
    IdMap,
    WideSnapshotId,
    new_id,
    next_number,
    own_id,
    sequence_name,
    sequence_number,
)
from tests.legacy.numbered.releases import MAGIC, RELEASES, Encoder, Node, packed

CHECKED = Checked("a file")
READER = MsgpackReader("f")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "ZZZZZZZZ"),
        (1, "ZZZZZZZY"),
        (31, "ZZZZZZZ0"),
        (32, "ZZZZZZYZ"),
        (100, "ZZZZZZWV"),
        (1099511627775, "00000000"),
    ],
)
def test_creating_and_updating_branches_names_of_sequence_numbers(number: int, name: str) -> None:
    """000, Creating and Updating Branches: examples of the text, and others."""
    assert sequence_name(number) == name
    assert sequence_number(name) == number


def test_long_names_count_down_from_64_bits() -> None:
    assert sequence_name(0, 13) == "ZZZZZZZZZZZZY"
    assert sequence_number("ZZZZZZZZZZZZY") == 0
    assert sequence_number(sequence_name(12345, 13)) == 12345


def test_the_latest_sequence_appears_first_when_sorted() -> None:
    """000, Creating and Updating Branches."""
    for characters in (8, 13):
        names = [sequence_name(number, characters) for number in (0, 1, 31, 32, 1023, 2**39)]
        assert names == sorted(names, reverse=True)


def test_the_maximum_number_of_commits() -> None:
    """000, Creating and Updating Branches: 1099511627775."""
    assert next_number(LAST - 1, "main") == LAST
    with pytest.raises(FormatError, match="has its last sequence number"):
        next_number(LAST, "main")
    with pytest.raises(InvalidInputError):
        sequence_name(LAST + 1)


@pytest.mark.parametrize("name", ["ref", "zzzzzzzz", "ZZZZZZZU", "ZZZZZZZ", "ZZZZZZZZZZZZZ", ""])
def test_other_names_are_no_sequence_numbers(name: str) -> None:
    assert sequence_number(name) is None


# -- I.1, rmp-serde


def test_ids_from_alpha_11_on() -> None:
    raw = bytes(range(12))
    assert packed(Encoder(RELEASES["alpha.11"]).object_id(raw)) == b"\x92\xc4\x0c" + raw + b"\x90"
    assert READER.object_id(READER.load(b"\x92\xc4\x0c" + raw + b"\x90"), "id") == raw
    node = READER.load(b"\x92\xc4\x08" + raw[:8] + b"\x90")
    assert READER.node_id(node) == NodeId(raw[:8])


def test_ids_to_alpha_10() -> None:
    raw = bytes(range(12))
    data = b"\xb4000G40R40M30E209185G"
    assert packed(Encoder(RELEASES["alpha.10"]).object_id(raw)) == data
    assert READER.object_id(READER.load(data), "id") == raw
    text = encode_base32(raw[:8])
    assert len(text) == 13
    assert READER.node_id(READER.load(b"\xad" + text.encode())) == NodeId(raw[:8])


def test_ids_of_16_bytes() -> None:
    raw = bytes(range(16))
    text = encode_base32(raw)
    assert len(text) == 26
    assert READER.object_id(READER.load(b"\xba" + text.encode()), "id") == raw


def test_numbers_of_nodes_become_eight_bytes_that_sort_alike() -> None:
    """I.7: four zero bytes and the number, big-endian."""
    assert READER.node_id(7) == NodeId(bytes(7) + b"\x07")
    assert READER.node_id(2**32 - 1) == NodeId(bytes(4) + b"\xff" * 4)


def test_variants_and_groups() -> None:
    inline = bytes.fromhex("81a6496e6c696e65c403") + b"abc"
    assert packed({"Inline": b"abc"}) == inline
    assert READER.load(inline) == Pairs((("Inline", b"abc"),))
    assert packed("Group") == bytes.fromhex("a547726f7570")


def test_the_header_has_39_bytes() -> None:
    """004, File structure; the text's "index 27" is older than the table (J.21)."""
    data = Encoder(RELEASES["0.1.0"]).attributes([])
    assert data[:12] == MAGIC
    assert data[12:36] == b"ic-0.1.0" + b" " * 16
    assert data[36:39] == bytes((1, 3, 1))
    assert data[39:43] == bytes.fromhex("28b52ffd")


def test_maps_may_have_lists_for_keys() -> None:
    data = bytes.fromhex("81 92 01 92 00 02 a1 61")
    assert READER.load(data) == Pairs((((1, (0, 2)), "a"),))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not MessagePack"),
        (b"\x93\x01", "not MessagePack"),
        (b"\x01\x02", "it ends at byte 1 of 2"),
        (b"\xdd\xff\xff\xff\xff", "not MessagePack"),
        (b"\xdd\x00\x10\x00\x00" * 200, "not MessagePack"),
        (b"\xa2\xff\xff", "not MessagePack"),
        (b"\x91" * 3000 + b"\x01", "not MessagePack"),
    ],
)
def test_what_is_not_whole_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=f"a/file: .*{problem}"):
        MsgpackReader("a/file").load(data)


# -- times


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-10-07T12:00:00Z", 1728302400000000),
        ("2024-10-07T12:00:00.123Z", 1728302400123000),
        ("2024-10-07T12:00:00.123456Z", 1728302400123456),
        ("2024-10-07T12:00:00.123456789Z", 1728302400123456),
        ("2024-10-07T14:00:00+02:00", 1728302400000000),
    ],
)
def test_times_have_no_three_six_or_nine_digits(text: str, microseconds: int) -> None:
    assert CHECKED.instant(text, "a time") == microseconds
    assert CHECKED.instant(instant_text(microseconds), "a time") == microseconds


@pytest.mark.parametrize("value", ["2024-10-07T12:00:00", "today", ""])
def test_other_times_are_refused(value: str) -> None:
    with pytest.raises(FormatError, match=r"a file: written_at is .*, expected a time"):
        CHECKED.instant(value, "written_at")


# -- ids of 16 bytes in sessions made for 12


def test_ids_made_here_follow_from_their_first_twelve_bytes() -> None:
    ids = IdMap(16)
    short = np.random.default_rng(5).integers(0, 256, (1000, 12)).astype(np.uint8)
    short[:, -1] &= 0xFE
    wide = ids.widen(short)
    assert wide.shape == (1000, 16)
    assert np.array_equal(IdMap(16).shorten(wide), short)
    assert ids.wide(short[3].tobytes()) == wide[3].tobytes()


def test_other_ids_are_remembered() -> None:
    ids = IdMap(16)
    drawn = np.random.default_rng(6)
    wide = np.concatenate([drawn.integers(0, 256, (40, 16)), np.arange(160).reshape(10, 16)])
    rows = wide.astype(np.uint8)
    zeros = np.zeros((1, 16), np.uint8)
    for part in (*np.array_split(rows, 25), zeros):
        assert np.array_equal(ids.widen(ids.shorten(part)), part)
    assert np.array_equal(ids.widen(ids.shorten(rows)), rows)
    assert len({row.tobytes() for row in ids.shorten(rows)}) == 50
    assert ids.wide(ids.short(bytes(16))) == bytes(16)


def test_an_id_that_nobody_remembers_is_an_error_and_no_wrong_name() -> None:
    short = IdMap(16).short(bytes(range(16)))
    with pytest.raises(InternalError, match="is not known here"):
        IdMap(16).wide(short)


def test_people_see_the_text_of_16_bytes() -> None:
    ids = IdMap(16)
    found = ids.parse_snapshot_id(encode_base32(bytes(range(16))))
    assert isinstance(found, WideSnapshotId)
    assert found.text == str(found) == encode_base32(bytes(range(16)))
    assert found == ids.snapshot_id(bytes(range(16)))
    made = new_id(SnapshotId, bytes(range(12)), ids)
    assert len(made.text) == 26
    assert ids.parse_snapshot_id(made.text) == made == own_id(bytes(range(12)))
    assert new_id(ChunkId, bytes(range(12)), ids) == own_id(bytes(range(12)))
    with pytest.raises(InvalidInputError, match="expected 26"):
        ids.parse_snapshot_id("1CECHNKREP0F1RSTCMT0")


def test_nodes_know_their_number() -> None:
    assert Node(3, "/a").node_id == b"node\0\0\0\x03"
