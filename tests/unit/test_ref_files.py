"""Ref files of version 1: exact bytes, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.ref_files import TOMBSTONE, decode_ref_file, encode_ref_file
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId

FILE = b'{"snapshot":"1CECHNKREP0F1RSTCMT0"}'


def test_a_ref_file_has_the_bytes_official_writers_give_it() -> None:
    assert encode_ref_file(FIRST_SNAPSHOT_ID) == FILE
    assert len(FILE) == 35


def test_a_tombstone_is_empty() -> None:
    assert TOMBSTONE == b""


@given(st.binary(min_size=12, max_size=12).map(SnapshotId))
def test_a_ref_file_comes_back(snapshot_id: SnapshotId) -> None:
    assert decode_ref_file(encode_ref_file(snapshot_id)) == snapshot_id


@pytest.mark.parametrize(
    "data",
    [
        b'{ "snapshot" : "1CECHNKREP0F1RSTCMT0" }\n',
        b'{"snapshot":"1cechnkrep0f1rstcmt0"}',
        b'{"snapshot":"1CECHNKREP0F1RSTCMT0","later":[1]}',
    ],
)
def test_other_ways_to_write_the_same_json_are_read(data: bytes) -> None:
    assert decode_ref_file(data) == FIRST_SNAPSHOT_ID


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"1CECHNKREP0F1RSTCMT0"',
        b"{}",
        b'{"snapshot":null}',
        b'{"snapshot":12}',
        b'{"snapshot":["1CECHNKREP0F1RSTCMT0"]}',
        b'{"snapshot":"1CECHNKREP0F1RSTCMT"}',
        b'{"snapshot":"UCECHNKREP0F1RSTCMT0"}',
        b'{"Snapshot":"1CECHNKREP0F1RSTCMT0"}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        FILE + FILE,
    ],
)
def test_anything_else_is_a_format_error_that_names_the_file(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        decode_ref_file(data, "refs/branch.main/ref.json")
    assert caught.value.kind == ErrorKind.DESERIALIZATION
    assert str(caught.value).startswith("refs/branch.main/ref.json: ")
    assert len(str(caught.value)) < 300
