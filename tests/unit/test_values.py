"""Metadata values: the bytes of Icechunk, what is refused, and reading what nobody should write."""

from __future__ import annotations

import datetime
import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import flexbuffers
from icefloe.format.columns import BlobColumn
from icefloe.format.flexbuffers import MAX_DEPTH
from icefloe.format.flexbuffers import decode as decode_flexbuffer
from icefloe.format.flexbuffers import decode_many as decode_flexbuffers
from icefloe.format.metadata import (
    decode_msgpack,
    encode_flexbuffer,
    encode_msgpack,
)

# Commit metadata as icechunk 2.3.0 stored it: in a repository of spec version 1, and of version 2.
OFFICIAL: list[tuple[Any, str, str]] = [
    (None, "c0", "000001"),
    (True, "c3", "016801"),
    (False, "c2", "006801"),
    (0, "00", "000801"),
    (1, "01", "010801"),
    (255, "ccff", "ff0801"),
    (256, "cd0100", "00010902"),
    (65535, "cdffff", "ffff0902"),
    (65536, "ce00010000", "000001000a04"),
    (4294967295, "ceffffffff", "ffffffff0a04"),
    (4294967296, "cf0000000100000000", "00000000010000000b08"),
    (9223372036854775807, "cf7fffffffffffffff", "ffffffffffffff7f0b08"),
    (9223372036854775808, "cf8000000000000000", "00000000000000800b08"),
    (18446744073709551615, "cfffffffffffffffff", "ffffffffffffffff0b08"),
    (-1, "ff", "ff0401"),
    (-128, "d080", "800401"),
    (-129, "d1ff7f", "7fff0502"),
    (-32768, "d18000", "00800502"),
    (-32769, "d2ffff7fff", "ff7fffff0604"),
    (-2147483648, "d280000000", "000000800604"),
    (-2147483649, "d3ffffffff7fffffff", "ffffff7fffffffff0708"),
    (-9223372036854775808, "d38000000000000000", "00000000000000800708"),
    (1.5, "cb3ff8000000000000", "0000c03f0e04"),
    (0.1, "cb3fb999999999999a", "9a9999999999b93f0f08"),
    (0.0, "cb0000000000000000", "000000000e04"),
    (-0.0, "cb8000000000000000", "000000800e04"),
    (1e300, "cb7e37e43c8800759c", "9c7500883ce4377e0f08"),
    (1e-45, "cb3696d601ad376ab9", "b96a37ad01d696360f08"),
    (1e39, "cb48078287f49c4a1d", "1d4a9cf4878207480f08"),
    (5e-324, "cb0000000000000001", "01000000000000000f08"),
    ("", "a0", "0000011401"),
    ("a", "a161", "016100021401"),
    ("é", "a2c3a9", "02c3a900031401"),
    ("a\x00b", "a3610062", "0361006200041401"),
    ("🧊", "a4f09fa78a", "04f09fa78a00051401"),
    ([], "90", "00002801"),
    ([1], "9101", "0101013001"),
    ([1, 2], "920102", "0102024401"),
    ([1, 2, 3], "93010203", "010203035001"),
    ([1, 2, 3, 4], "9401020304", "01020304045c01"),
    ([1, 2, 3, 4, 5], "950102030405", "050102030405053001"),
    ([-1, -2], "92fffe", "fffe024001"),
    ([-1], "91ff", "01ff012c01"),
    ([-1, -1, -1, -1, -1], "95ffffffffff", "05ffffffffff052c01"),
    ([1.5, 2.5], "92cb3ff8000000000000cb4004000000000000", "0000c03f00002040084a01"),
    (
        [0.1, 1.5, 2.5],
        "93cb3fb999999999999acb3ff8000000000000cb4004000000000000",
        "9a9999999999b93f000000000000f83f0000000000000440185701",
    ),
    ([1.5], "91cb3ff8000000000000", "010000000000c03f043601"),
    (
        [1.5, 1.5, 1.5, 1.5, 1.5],
        "95cb3ff8000000000000cb3ff8000000000000cb3ff8000000000000cb3ff8000000000000cb3ff8000000000000",
        "050000000000c03f0000c03f0000c03f0000c03f0000c03f143601",
    ),
    ([1, -1], "9201ff", "0201ff0804042801"),
    ([1, 1.5], "9201cb3ff8000000000000", "02000000010000000000c03f0a0e0a2a01"),
    ([True], "91c3", "0101019001"),
    ([True, False], "92c3c2", "020100029001"),
    ([True, False, True], "93c3c2c3", "03010001039001"),
    ([True, True, True, True, True], "95c3c3c3c3c3", "050101010101059001"),
    ([None], "91c0", "010000022801"),
    ([None, None, None], "93c0c0c0", "03000000000000062801"),
    (["a", "b"], "92a161a162", "0161000162000206041414042801"),
    (["a"], "91a161", "016100010314022801"),
    (["a", "a"], "92a161a161", "0161000161000206041414042801"),
    ([[1, 2], [3]], "929201029103", "010201030205034430042801"),
    ([[], []], "929090", "00000202022828042801"),
    ([1, 70000], "9201ce00011170", "0100000070110100084601"),
    (
        [1, 1099511627776, 3],
        "9301cf000001000000000003",
        "010000000000000000000000000100000300000000000000185301",
    ),
    ({}, "80", "00000100002401"),
    ({"a": 1}, "81a16101", "610001030101010108022401"),
    ({"b": 1, "a": 2}, "82a16102a16201", "6100620002050402010202010808042401"),
    (
        {"x": {"y": {"z": [1, {"a": None}]}}},
        "81a17881a17981a17a920181a161c0",
        "780079007a00610001030101010000020104082401110101010928011a010101072401230101010724022401",
    ),
    (
        {"a": {"a": 1}, "b": {"a": 2}},
        "82a16181a16101a16281a16102",
        "6100010301010101086200010c010101020802130b02010211092424042401",
    ),
    ({"k": "v"}, "81a16ba176", "6b0001760001060101010714022401"),
    ({"a": "a"}, "81a161a161", "610001610001060101010714022401"),
    (
        {"a": 70000, "b": 1},
        "82a161ce00011170a16201",
        "610062000205040003000000010000000200000070110100010000000a0a0a2601",
    ),
    (
        [{"a": 1}, {"a": 2}],
        "9281a1610181a16102",
        "610001030101010108010a0101010208020a042424042801",
    ),
    (
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        "9282a16101a1620282a16101a16202",
        "6100620002050402010201020808020f0e02010201020808020f062424042801",
    ),
    (
        {"é": 1, "z": 2, "": 3},
        "83a003a17a02a2c3a901",
        "007a00c3a90003070706030103030201080808062401",
    ),
    (
        {"a": 1.5, "b": 0.1, "c": 1099511627776},
        "83a161cb3ff8000000000000a162cb3fb999999999999aa163cf0000010000000000",
        "61006200630003070605000000000000090000000000000001000000000000000300000000000000000000000000f83f9a9999999999b93f00000000000100000f0f0b1b2701",
    ),
    (
        [[[[[[[[1]]]]]]]],
        "919191919191919101",
        "0101010230010328010328010328010328010328010328022801",
    ),
    ([None, 1], "92c001", "0200010008042801"),
    (["a", 1], "92a16101", "0161000203011408042801"),
    ([{"a": 1}, 1], "9281a1610101", "6100010301010101080203012408042801"),
]

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)
LISTS_OF_ONE_KIND = (
    st.lists(st.integers(0, 2**64 - 1))
    | st.lists(st.integers(-(2**63), -1))
    | st.lists(st.floats(allow_nan=False, allow_infinity=False))
    | st.lists(st.booleans())
)

CODECS = [(encode_msgpack, decode_msgpack), (encode_flexbuffer, decode_flexbuffer)]
ENCODERS = [encode_msgpack, encode_flexbuffer]


def same(found: Any, expected: Any) -> bool:
    """Equality that also tells 1 from 1.0 and True, and 0.0 from -0.0."""
    return repr(found) == repr(expected)


# --- the bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "packed", "flexed"), OFFICIAL)
def test_values_have_the_bytes_that_icechunk_gives_them(
    value: Any, packed: str, flexed: str
) -> None:
    assert encode_msgpack(value).hex() == packed
    assert encode_flexbuffer(value).hex() == flexed
    sorted_value = decode_msgpack(bytes.fromhex(packed))
    assert sorted_value == value
    assert same(decode_flexbuffer(bytes.fromhex(flexed)), sorted_value)


def test_the_metadata_of_a_first_snapshot_is_as_the_format_book_has_it() -> None:
    value = {"is_root": True}
    assert encode_msgpack(value).hex() == "81a769735f726f6f74c3"
    assert encode_flexbuffer(value).hex() == "69735f726f6f740001090101010168022401"


@pytest.mark.parametrize(
    ("value", "start", "size"),
    [
        ("x" * 300, "2c017878", 307),
        (list(range(300)), "2c0100000100", 606),
        ([1] * 70_000, "7011010001000000", 280_010),
        ({f"key{i}": i for i in range(100)}, "6b657930006b65793100", 1000),
    ],
)
def test_long_values_use_wider_lengths(value: Any, start: str, size: int) -> None:
    data = encode_flexbuffer(value)
    assert data.hex().startswith(start)
    assert abs(len(data) - size) <= 8
    assert decode_flexbuffer(data) == value


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@given(VALUES | LISTS_OF_ONE_KIND)
@example([0.1, 1e300])
@example([{"a": 1, "b": 2}, {"b": 2, "a": 1}])
def test_every_json_value_comes_back_as_it_was(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], value: Any
) -> None:
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data


@pytest.mark.parametrize("encode", ENCODERS)
def test_the_order_of_keys_makes_no_difference(encode: Callable[[Any], bytes]) -> None:
    assert encode({"b": {"y": 1, "x": 2}, "a": 3}) == encode({"a": 3, "b": {"x": 2, "y": 1}})


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (range(3), [0, 1, 2]),
        (np.int64(3), 3),
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ({"b": np.float64(0.1), ErrorKind.IO: ErrorKind.IO}, {"b": 0.1, "io": "io"}),
    ],
)
def test_values_that_mean_json_are_stored_as_json(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], value: Any, plain: Any
) -> None:
    assert decode(encode(value)) == plain


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(("encode", "decode"), CODECS)
def test_the_deepest_value_that_is_written_can_be_read(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    ("value", "where", "what"),
    [
        ({"a": [0, 1, 2, math.nan]}, "$.a[3]", "JSON has no nan"),
        ({"a b": -math.inf}, "$['a b']", "JSON has no -inf"),
        ([2**64], "$[0]", "does not fit into 64 bits"),
        (-(2**63) - 1, "$", "does not fit into 64 bits"),
        ({"a": b"bytes"}, "$.a", "found bytes"),
        ({"a": bytearray()}, "$.a", "found bytearray"),
        ({"a": {1, 2}}, "$.a", "found set"),
        ({"a": datetime.date(2024, 1, 1)}, "$.a", "found date"),
        ({"a": {1: 2}}, "$.a", "key 1 is int, expected str"),
        ({"a": {None: 2}}, "$.a", "key None is NoneType"),
        ({"a": {b"k": 2}}, "$.a", "key b'k' is bytes"),
        ({"a": {"x\0y": 2}}, "$.a", "contains a zero byte"),
        ({"a": "\ud800"}, "$.a", "half a surrogate pair"),
        ({"a": {"\udfff": 1}}, "$.a", "half a surrogate pair"),
        ({"a": np.array([1.0, np.nan])}, "$.a[1]", "JSON has no nan"),
        ({"a": 1 + 2j}, "$.a", "found complex"),
        ({"a": object}, "$.a", "found type"),
    ],
)
def test_what_json_cannot_say_is_refused_with_the_path_to_it(
    encode: Callable[[Any], bytes], value: Any, where: str, what: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        encode(value)
    assert caught.value.kind == ErrorKind.BAD_METADATA
    assert str(caught.value).startswith(f"metadata value at {where}: ")
    assert what in str(caught.value)


@pytest.mark.parametrize("encode", ENCODERS)
def test_a_value_that_contains_itself_is_refused(encode: Callable[[Any], bytes]) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInputError, match=f"more than {MAX_DEPTH} levels"):
        encode(endless)


# --- reading what other writers make of the format -------------------------------------------


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("ff0401", -1),  # INT in one byte
        ("05000000000000000708", 5),  # INT although it is positive
        ("003c0d02", 1.0),  # FLOAT in two bytes
        ("6162000310" + "01", "ab"),  # KEY on its own
        ("07" + "011801", 7),  # INDIRECT_INT
        ("ff" + "011c01", 255),  # INDIRECT_UINT
        ("0000c03f" + "042201", 1.5),  # INDIRECT_FLOAT
        ("6100620002" + "0504" + "023801", ["a", "b"]),  # VECTOR_KEY
        ("6100620002" + "0504" + "023c01", ["a", "b"]),  # the deprecated vector of strings
        ("ff01024001", [-1, 1]),  # VECTOR_INT2
        ("0000c07f0e04", None),  # NaN
        ("000000000000f0ff0f08", None),  # minus infinity
    ],
)
def test_the_reader_takes_what_the_official_writer_never_uses(data: str, value: Any) -> None:
    assert same(decode_flexbuffer(bytes.fromhex(data)), value)


def test_numbers_json_does_not_have_are_read_as_none() -> None:
    assert decode_msgpack(msgpack.packb([1.0, math.nan, math.inf])) == [1.0, None, None]
    doubles = struct.pack("<3d", 1.0, math.nan, -math.inf)
    assert decode_flexbuffer(doubles + bytes.fromhex("185701")) == [1.0, None, None]


# --- bytes nobody should have written --------------------------------------------------------


def laughs(levels: int) -> bytes:
    """Vectors of two slots that both point at the level below: 2**levels values."""
    data = bytes.fromhex("0201010808")  # [1, 1], its slots at 1
    for _ in range(levels):
        below = len(data) - 4  # where the slots of the level below start
        first = len(data) + 1
        data += bytes((2, first - below, first + 1 - below, 0x28, 0x28))
    return data + bytes((4, 0x28, 1))


def overlapping_keys(count: int) -> bytes:
    """A vector of keys, each of which starts one letter later in the same long text."""
    text = b"a" * count + b"\0"
    text += bytes(-len(text) % 4)
    slots = len(text) + 4
    offsets = (struct.pack("<I", slots + 4 * i - i) for i in range(count))
    data = text + struct.pack("<I", count) + b"".join(offsets)
    return data + struct.pack("<I", len(data) - slots) + bytes((14 << 2 | 2, 4))


HOSTILE_FLEXBUFFERS = {
    "nothing": b"",
    "only a type": bytes.fromhex("2801"),
    "root width 0": bytes.fromhex("00000800"),
    "root width 3": bytes.fromhex("0000000803"),
    "root wider than the buffer": bytes.fromhex("000b08"),
    "slot before the start": bytes.fromhex("05" + "2801"),
    "slot of 2**64 - 1": bytes.fromhex("ff" * 8 + "2808"),
    "vector longer than the buffer": bytes.fromhex("ff" + "002801"),
    "vector of 2**64 - 1 slots": bytes.fromhex("ff" * 8 + "00" * 8 + "2b08"),
    "vector without its length": bytes.fromhex("00" + "2801"),
    "typed vector longer than the buffer": bytes.fromhex("ff" + "003001"),
    "fixed vector over the end": bytes.fromhex("00" + "5f01"),
    "string longer than the buffer": bytes.fromhex("0961" + "011401"),
    "string that is not UTF-8": bytes.fromhex("01ff00" + "021401"),
    "key without an end": bytes.fromhex("6161" + "021001"),
    "key that is not UTF-8": bytes.fromhex("ff00" + "021001"),
    "float in one byte": bytes.fromhex("000c01"),
    "blob": bytes.fromhex("0161" + "016401"),
    "map without keys": bytes.fromhex("00" + "2401"),
    "map with keys of width 3": bytes.fromhex("610001030103010108022401"),
    "map with another number of keys": bytes.fromhex("610002030101010108022401"),
    "map with keys before the start": bytes.fromhex("610001030901010108022401"),
    "map with a key before the start": bytes.fromhex("610001090101010108022401"),
    "vector of itself": bytes.fromhex("0200012828042801"),
    "more values than bytes": laughs(40),
    "more text than bytes": overlapping_keys(20_000),
    **{f"type {number}": bytes((0, 0, number << 2, 1)) for number in (27, 35, 37, 63)},
}


@pytest.mark.parametrize("data", HOSTILE_FLEXBUFFERS.values(), ids=HOSTILE_FLEXBUFFERS.keys())
def test_a_hostile_flexbuffer_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError, match="FlexBuffer") as caught:
        decode_flexbuffer(data)
    assert caught.value.kind == ErrorKind.DESERIALIZATION


HOSTILE_MSGPACK = {
    "nothing": "",
    "two values": "0102",
    "unused byte": "c1",
    "array longer than the buffer": "ddffffffff00",
    "map longer than the buffer": "dfffffffffa16100",
    "string longer than the buffer": "dbffffffff61",
    "text that is not UTF-8": "a1ff",
    "bytes": "c40161",
    "integer key": "810102",
    "bytes key": "81c4016102",
    "list key": "81900102",
    "extension": "c7010561",
    "timestamp": "d6ff00000001",
    "inside a list": "92c0c40161",
}


@pytest.mark.parametrize("data", HOSTILE_MSGPACK.values(), ids=HOSTILE_MSGPACK.keys())
def test_hostile_messagepack_is_a_format_error(data: str) -> None:
    with pytest.raises(FormatError, match="metadata value") as caught:
        decode_msgpack(bytes.fromhex(data))
    assert caught.value.kind == ErrorKind.DESERIALIZATION


def too_deep_flexbuffer(levels: int) -> bytes:
    data = bytes.fromhex("010008")  # [0], its slot at 1
    for _ in range(levels):
        data += bytes((1, 3, 0x28))
    return data + bytes((2, 0x28, 1))


@pytest.mark.parametrize("levels", [MAX_DEPTH, 1000, 100_000])
def test_values_nested_too_deep_are_a_format_error(levels: int) -> None:
    with pytest.raises(FormatError, match="levels"):
        decode_flexbuffer(too_deep_flexbuffer(levels))
    with pytest.raises(FormatError):
        decode_msgpack(b"\x91" * (levels + 1) + b"\x01")


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Damaged copies: bytes changed, runs removed or repeated, ends cut off."""
    chance = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(damaged) + 1)
            match chance.randrange(5):
                case 0:
                    damaged[at : at + 1] = bytes((chance.randrange(256),))
                case 1:
                    damaged[at : at + 1] = bytes((chance.choice((0, 1, 2, 4, 8, 127, 128, 255)),))
                case 2:
                    del damaged[at : at + chance.randint(1, 8)]
                case 3:
                    damaged[at:at] = damaged[at : at + chance.randint(1, 8)]
                case 4:
                    damaged[-2:-1] = bytes((chance.randrange(256),))
        yield bytes(damaged)


def is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(item) for key, item in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


SAMPLES: list[Any] = [
    {"a": [1, 2.5, None, {"b": "text", "c": [True, False]}], "long key": "v" * 40, "n": -70_000},
    [list(range(20)), [0.1, 0.2], [-1, -2, -3], ["x", ["y", ["z"]]], {}, []],
    {f"key{number}": {"same": number, "keys": [number] * 3} for number in range(30)},
]


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_damaged_bytes_are_a_format_error_or_a_value(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], sample: int
) -> None:
    refusals = []
    for damaged in mutations(encode(SAMPLES[sample]), seed=sample, count=2000):
        try:
            value = decode(damaged)
        except FormatError as error:
            refusals.append(error.kind)
        else:
            assert is_json(value)
    assert set(refusals) == {ErrorKind.DESERIALIZATION}
    assert len(refusals) < 2000


@pytest.mark.parametrize("decode", [decode_msgpack, decode_flexbuffer])
@given(st.binary(max_size=64))
def test_random_bytes_are_a_format_error_or_a_value(
    decode: Callable[[bytes], Any], data: bytes
) -> None:
    try:
        value = decode(data)
    except FormatError:
        return
    assert is_json(value)


@pytest.mark.parametrize(
    "value", [0, 1, 255, 256, -1, -129, 2**63, -(2**63), "", "a", "größe", "x" * 251, "x" * 300]
)
def test_short_values_read_as_they_do_inside_a_list(value: int | str) -> None:
    assert decode_flexbuffer(encode_flexbuffer(value)) == value
    assert decode_flexbuffer(encode_flexbuffer([value, None])) == [value, None]


# --- many at once ----------------------------------------------------------------------------


def decoded(buffers: list[bytes]) -> list[Any]:
    return decode_flexbuffers(BlobColumn.from_values(buffers))


@given(st.lists(VALUES | LISTS_OF_ONE_KIND, max_size=6), st.randoms(use_true_random=False))
def test_a_column_of_values_reads_as_they_do_one_by_one(values: list[Any], chance: Any) -> None:
    buffers = [encode_flexbuffer(value) for value in values] * 9
    chance.shuffle(buffers)
    assert same(decoded(buffers), [decode_flexbuffer(data) for data in buffers])


@pytest.mark.parametrize(
    "value",
    [
        lambda number: {"run": 200 + number, "who": f"user {number % 7}", "where": None},
        lambda number: {"é": [number / 7, -number], "b": {"n": [number % 2 == 0, "ü" * 2]}},
        lambda number: [number / 7, float("inf"), "größer"[number % 3 :]],
        lambda number: [[], {}, [number, number + 1, number + 2], [0.1 * number] * 5],
        lambda number: f"{'text' * 80} {number:03}",
        lambda number: 2**64 - 1 - number,
    ],
)
def test_values_of_the_same_shape_read_as_they_do_one_by_one(value: Callable[[int], Any]) -> None:
    buffers = [flexbuffers.encode(value(number)) for number in range(200)]
    assert same(decoded(buffers), [decode_flexbuffer(data) for data in buffers])


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_damaged_values_among_others_read_as_they_do_one_by_one(sample: int) -> None:
    """One that has the length of the others may have another shape."""
    whole = encode_flexbuffer(SAMPLES[sample])
    readable = [whole] * 10
    for damaged in mutations(whole, seed=sample, count=500):
        try:
            decode_flexbuffer(damaged)
        except FormatError:
            with pytest.raises(FormatError):
                decoded([*[whole] * 10, damaged])
        else:
            readable.append(damaged)
    assert len(readable) > 20
    assert same(decoded(readable), [decode_flexbuffer(data) for data in readable])


def test_values_of_a_column_share_nothing_that_can_be_changed() -> None:
    one, other, *_ = decoded([encode_flexbuffer({"a": [{"b": []}]})] * 20)
    one["a"][0]["b"].append(1)
    assert other == {"a": [{"b": []}]}
