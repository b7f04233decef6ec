"""`state.json` as section "State File" of document 003 describes it."""

from __future__ import annotations

import json

import pytest

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import SnapshotId
from icefloe.legacy.state_file.state import (
    Entry,
    Ref,
    RefType,
    State,
    decode_state,
    encode_state,
    line,
    properties_of,
)

GOLDEN = (
    b'{"id":"000G40R40M30E209185G","generation":3,"store_root":"s3://bucket/data",'
    b'"snapshots":[{"snapshot-id":"1CECHNKREP0F1RSTCMT0","parent-snapshot-id":null,'
    b'"timestamp-ms":1722729600000,"structure-file":"1CECHNKREP0F1RSTCMT0.parquet"},'
    b'{"snapshot-id":"second","parent-snapshot-id":"1CECHNKREP0F1RSTCMT0",'
    b'"timestamp-ms":1722729600001,"structure-file":"s/x.parquet",'
    b'"properties":{"message":"more","author":"me"}}],'
    b'"refs":{"main":{"name":"main","snapshot-id":"second","type":"branch"},'
    b'"v1":{"name":"v1","snapshot-id":"1CECHNKREP0F1RSTCMT0","type":"tag"}}}'
)
STATE = State(
    "000G40R40M30E209185G",
    3,
    (
        Entry("1CECHNKREP0F1RSTCMT0", None, 1722729600000, "1CECHNKREP0F1RSTCMT0.parquet"),
        Entry(
            "second",
            "1CECHNKREP0F1RSTCMT0",
            1722729600001,
            "s/x.parquet",
            {"message": "more", "author": "me"},
        ),
    ),
    {"main": Ref("second", RefType.branch), "v1": Ref("1CECHNKREP0F1RSTCMT0", RefType.tag)},
    "s3://bucket/data",
)


def test_golden_state_file() -> None:
    assert encode_state(STATE) == GOLDEN
    assert decode_state(GOLDEN) == STATE


def test_ids_are_texts_of_any_form() -> None:
    first, second = STATE.snapshots
    assert first.id == SnapshotId.parse("1CECHNKREP0F1RSTCMT0")
    assert second.id == decode_state(GOLDEN).snapshots[1].id  # the same in every process
    assert (second.message, second.metadata) == ("more", {"author": "me"})


@pytest.mark.parametrize(
    "refs",
    [
        {"main": {"snapshot-id": "a", "type": "branch"}},
        {"main": {"name": "main", "snapshot-id": "a", "type": "branch"}},
        [{"name": "main", "snapshot-id": "a", "type": "branch"}],
    ],
)
def test_references_are_a_mapping_and_a_list_is_read_too(refs: object) -> None:
    state = decode_state(json.dumps({**_MINIMAL, "refs": refs}).encode())
    assert state.refs == {"main": Ref("a", RefType.branch)}


_SNAPSHOT = {"snapshot-id": "a", "timestamp-ms": 5, "structure-file": "a.parquet"}
_MINIMAL = {"id": "d", "generation": 0, "snapshots": [_SNAPSHOT]}


def test_without_references_the_newest_snapshot_is_main() -> None:
    """ "The state file contains, at minimum, a pointer to the latest structure file snapshot."""
    older = {**_SNAPSHOT, "snapshot-id": "b", "timestamp-ms": 4}
    state = decode_state(json.dumps({**_MINIMAL, "snapshots": [_SNAPSHOT, older]}).encode())
    assert state.named(RefType.branch) == {"main": "a"}
    assert state.named(RefType.tag) == {}


def test_unknown_members_stay() -> None:
    document = {**_MINIMAL, "snapshots": [{**_SNAPSHOT, "by": 1}], "refs": {}, "format": [1]}
    written = json.loads(encode_state(decode_state(json.dumps(document).encode())))
    assert written["format"] == [1]
    assert written["snapshots"][0]["by"] == 1


def test_a_line_ends_where_history_was_cut_or_turns_back() -> None:
    c, x = Entry("c", "b", 3, "c"), Entry("x", "y", 1, "x")
    listed = (c, Entry("b", "gone", 2, "b"), x, Entry("y", "x", 1, "y"))
    entries = {entry.id: entry for entry in listed}
    assert [entry.snapshot for entry in line(entries, c.id)] == ["c", "b"]
    assert [entry.snapshot for entry in line(entries, x.id)] == ["x", "y"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": ""}, "id of the file"),
        ({"id": None}, "id of the file"),
        ({"generation": -1}, "generation"),
        ({"generation": True}, "generation"),
        ({"generation": "1"}, "generation"),
        ({"snapshots": {}}, "snapshots"),
        ({"snapshots": [3]}, "snapshot 0"),
        ({"snapshots": [{}]}, "timestamp-ms"),
        ({"snapshots": [_SNAPSHOT, _SNAPSHOT]}, "listed twice"),
        ({"snapshots": [{**_SNAPSHOT, "timestamp-ms": 2**80}]}, "timestamp-ms"),
        ({"snapshots": [{**_SNAPSHOT, "properties": 1}]}, "properties"),
        ({"refs": 1}, "refs"),
        ({"refs": {"x": {"snapshot-id": "a", "type": "twig"}}}, "type of reference 'x'"),
        ({"refs": {"x": {"name": "y", "snapshot-id": "a", "type": "tag"}}}, "name of reference"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_generation(change: object, problem: str) -> None:
    assert isinstance(change, dict)
    with pytest.raises(FormatError, match=problem) as caught:
        decode_state(json.dumps({**_MINIMAL, **change}).encode(), "there/state.json")
    assert "there/state.json of a dataset with a state file" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"state\.json"):
        decode_state(data)


def test_commit_metadata_that_cannot_be_kept_is_refused() -> None:
    assert properties_of("m", {"a": 1}) == {"message": "m", "a": 1}
    with pytest.raises(InvalidInputError, match="'message'"):
        properties_of("m", {"message": "other"})
    with pytest.raises(InvalidInputError, match="JSON"):
        properties_of("m", {"a": float("nan")})
