"""Object ids: bytes inside files, Crockford base32 in names."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import find_id, find_ids
from icefloe.ids import (
    FIRST_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    ObjectId,
    SnapshotId,
    decode_base32,
    decode_base32_rows,
    encode_base32,
)

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
KINDS = [SnapshotId, ManifestId, ChunkId, NodeId]

every_kind = pytest.mark.parametrize("kind", KINDS)


def by_hand(data: bytes) -> str:
    """Crockford text the slow way: bits as a string, cut into fives."""
    bits = "".join(f"{byte:08b}" for byte in data)
    bits += "0" * (-len(bits) % 5)
    return "".join(ALPHABET[int(bits[at : at + 5], 2)] for at in range(0, len(bits), 5))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bytes(range(12)), "000G40R40M30E209185G"),
        (bytes.fromhex("0b1cc8d6787580f0e33a6534"), "1CECHNKREP0F1RSTCMT0"),
        (bytes(12), "0" * 20),
        (b"\xff" * 12, "Z" * 19 + "G"),
        (bytes(8), "0" * 13),
        (b"\xff" * 8, "Z" * 12 + "Y"),
    ],
)
def test_text_of_known_ids(data: bytes, text: str) -> None:
    kind = SnapshotId if len(data) == 12 else NodeId
    assert kind(data).text == text
    assert kind.parse(text) == data


@given(st.binary(max_size=40))
def test_base32_is_its_definition_and_comes_back(data: bytes) -> None:
    text = encode_base32(data)
    assert text == by_hand(data)
    assert decode_base32(text, len(data)) == data


@every_kind
def test_text_has_the_length_the_format_gives_it(kind: type[ObjectId]) -> None:
    assert len(kind(bytes(kind.size)).text) == (13 if kind is NodeId else 20)


def test_lower_case_and_letters_that_look_like_digits_are_read() -> None:
    assert SnapshotId.parse("1cechnkrep0f1rstcmt0") == FIRST_SNAPSHOT_ID
    assert SnapshotId.parse("lCECHNKREPoFIRSTCMTO") == FIRST_SNAPSHOT_ID
    assert FIRST_SNAPSHOT_ID.text == "1CECHNKREP0F1RSTCMT0"


def test_pad_bits_that_are_not_zero_are_dropped() -> None:
    assert SnapshotId.parse("1CECHNKREP0F1RSTCMT1") == FIRST_SNAPSHOT_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1CECHNKREP0F1RSTCMT",
        "1CECHNKREP0F1RSTCMT00",
        "UCECHNKREP0F1RSTCMT0",
        "1CECHNKREP0F1RSTCMT*",
        "1CECHNKREP0F1RSTCM 0",
        "1CECHNKREP0F1RSTCMT\u0660",  # an Arabic digit zero
    ],
)
def test_text_that_is_no_id_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        SnapshotId.parse(text)
    assert caught.value.kind == ErrorKind.INVALID_SNAPSHOT_ID
    assert repr(text) in str(caught.value)
    assert "snapshot id" in str(caught.value)


@every_kind
@pytest.mark.parametrize("change", [-1, 1])
def test_bytes_of_another_length_are_refused(kind: type[ObjectId], change: int) -> None:
    with pytest.raises(InvalidInputError, match=f"expected {kind.size}"):
        kind(bytes(kind.size + change))


@given(st.lists(st.binary(min_size=12, max_size=12), min_size=2, max_size=8))
def test_ids_sort_like_their_bytes_and_like_their_text(raw: list[bytes]) -> None:
    ids = sorted(map(SnapshotId, raw))
    assert ids == sorted(raw)
    assert [each.text for each in ids] == sorted(each.text for each in ids)


@every_kind
def test_ids_show_their_text(kind: type[ObjectId]) -> None:
    each = kind(bytes(range(kind.size)))
    assert str(each) == f"{each}" == each.text
    assert repr(each) == f"{kind.__name__}({each.text!r})"


@every_kind
def test_ids_are_bytes_that_survive_pickle(kind: type[ObjectId]) -> None:
    each = kind(bytes(range(kind.size)))
    again = pickle.loads(pickle.dumps(each))
    assert again == each == bytes(range(kind.size))
    assert type(again) is kind
    assert {each: 1}[kind(bytes(each))] == 1


@given(st.lists(st.binary(min_size=12, max_size=12)), st.lists(st.text("0aAIz#é", max_size=22)))
def test_many_texts_are_read_like_one(ids: list[bytes], others: list[str]) -> None:
    texts = [encode_base32(one) for one in ids] + others + ["1CECHNKREP0F1RSTCMT1"]
    column = np.array([text.encode() for text in texts], np.bytes_)
    rows, is_id = decode_base32_rows(column, 12)
    assert is_id.tolist() == [is_canonical(text) for text in texts]
    found = [text for text, this in zip(texts, is_id.tolist(), strict=True) if this]
    assert [row.tobytes() for row in rows] == [decode_base32(text, 12) for text in found]


def is_canonical(text: str) -> bool:
    try:
        return encode_base32(decode_base32(text, 12)) == text
    except ValueError:
        return False


def test_rows_of_a_matrix_are_the_ids_that_one_by_one_makes() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (5, 12), np.uint8)
    found = SnapshotId.of_rows(rows)
    assert found == [SnapshotId(row.tobytes()) for row in rows]
    assert {type(one) for one in found} == {SnapshotId}
    assert SnapshotId.of_rows(rows[:0]) == []


@pytest.mark.parametrize("count", [3, 500])
def test_many_ids_are_found_where_each_is(count: int) -> None:
    rows = np.random.default_rng(0).integers(0, 3, (count, 3), np.uint8)  # zeros at the end too
    ids = np.unique(rows, axis=0)
    wanted = [bytes(row) for row in rows] + [b"\x00\x00\x09", b"\xff\xff\xff"]
    assert find_ids(ids, wanted).tolist() == [find_id(ids, key) for key in wanted]
    assert find_ids(ids[:0], wanted).tolist() == [-1] * len(wanted)
