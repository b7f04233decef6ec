"""Files of document 000 in every form: written, valid against the schemas, read back."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.envelope import FileType
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.legacy.numbered import files
from icefloe.legacy.numbered.files import Form, form_of
from icefloe.legacy.numbered.model import FillValue, node_id
from icefloe.legacy.numbered.names import IdMap
from icefloe.legacy.numbered.zarr_documents import array_document, group_document, parse_document
from tests.legacy.numbered import examples
from tests.legacy.numbered.examples import FILLS, validate, wide

FORMS = list(Form)


def same_value(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(same_value, first, second))
    return bool(first == second)


@pytest.mark.parametrize("form", FORMS)
def test_snapshot_files(form: Form) -> None:
    """000, Snapshot Files, and 004, Metadata files."""
    before = examples.snapshot()
    data = files.encode_snapshot(before, form, 3)
    assert form_of(data) is form
    after = files.decode_snapshot(data, "s/X")
    for one, other in zip(before.nodes, after.nodes, strict=True):
        assert (one.id, one.path, one.attributes) == (other.id, other.path, other.attributes)
        assert one.manifests == other.manifests
        if one.metadata is not None:
            assert other.metadata is not None
            first = json.loads(array_document(one.metadata, None))
            assert first == json.loads(array_document(other.metadata, None))
    names = ("id", "written_at", "message", "properties", "history", "total_parents", "started_at")
    assert [getattr(before, name) for name in names] == [getattr(after, name) for name in names]
    if form is Form.JSON:
        document = validate("Snapshot", data)
        assert document["metadata"]["id"] == list(wide(1))
        assert document["short_term_parents"] == 3


@pytest.mark.parametrize("form", FORMS)
def test_chunk_manifest_files(form: Form) -> None:
    """000, Chunk Manifest Files: several arrays in one file."""
    before = examples.references()
    data = files.encode_manifest(before, IdMap(16), form, 3)
    after = files.decode_manifest(data, "m/X", IdMap(16)).arrays
    assert after.keys() == before.keys()
    for node, refs in before.items():
        assert refs.equals(after[node])
    if form is Form.JSON:
        document = validate("Manifest", data)
        assert set(document["chunks"]) >= {"5", "4294967295/0/0", "4294967295/4294967295/5"}


@pytest.mark.parametrize("form", FORMS)
def test_attributes_files(form: Form) -> None:
    """000, Attributes Files; 004, file type 3."""
    sets = [{}, {"a": {"b": [1, None, "ü"]}}]
    data = files.encode_attributes(sets, form, 3)
    assert files.decode_attributes(data, "a/X") == sets


@pytest.mark.parametrize("form", [Form.BINARY, Form.UNCOMPRESSED])
def test_transaction_log_files(form: Form) -> None:
    """004, file type 4."""
    identity = SnapshotId(bytes(12))
    log = TransactionLog(
        identity,
        new_groups=frozenset([node_id(1)]),
        deleted_arrays=frozenset([node_id(2)]),
        updated_arrays=frozenset([node_id(3)]),
        updated_groups=frozenset([node_id(4)]),
        updated_chunks={node_id(3): np.array([[0, 1], [2, 0]], np.uint32)},
        moved_nodes=None,
    )
    data = files.encode_log(log, form, 3)
    assert data is not None
    assert data[36:38] == bytes((1, 4))
    assert files.decode_log(data, "t/X", identity, {node_id(3)}).equals(log)


@pytest.mark.parametrize("form", [Form.JSON, Form.MSGPACK])
def test_document_000_knows_no_transaction_logs(form: Form) -> None:
    assert files.encode_log(TransactionLog(SnapshotId(bytes(12))), form, 3) is None


@pytest.mark.parametrize(
    ("form", "compression"), [(Form.BINARY, b"\x01"), (Form.UNCOMPRESSED, b"\0")]
)
def test_headers_of_document_004(form: Form, compression: bytes) -> None:
    """004, File structure."""
    data = files.encode_snapshot(examples.snapshot(), form, 3)
    assert data[:12] == "ICE🧊CHUNK".encode()
    assert data[12:36].rstrip(b" ").startswith(b"ic-")
    assert data[36:39] == b"\x01\x01" + compression
    if form is Form.UNCOMPRESSED:
        assert data[39:] == files.encode_snapshot(examples.snapshot(), Form.MSGPACK, 3)


def test_reference_files() -> None:
    """000, Reference Files."""
    data = files.encode_ref(wide(7), 1728302400000000, {"who": "me"})
    document = validate("RefData", data)
    assert document["snapshot"] == list(wide(7))
    assert document["timestamp"] == "2024-10-07T12:00:00Z"
    assert files.decode_ref(data, "r/main/ZZZZZZZZ.json") == wide(7)


def test_reference_files_of_the_program_have_text() -> None:
    assert files.decode_ref(b'{"snapshot":"000G40R40M30E209185G"}', "f") == bytes(range(12))


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"snapshot":3}', b'{"snapshot":[1,2]}', b'{"snapshot":"AB"}', b"\xff"],
)
def test_other_reference_files_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^r/main/ZZZZZZZZ\.json: "):
        files.decode_ref(data, "r/main/ZZZZZZZZ.json")


# -- zarr.json


@pytest.mark.parametrize(("data_type", "fill", "shown"), FILLS)
def test_fill_values_to_zarr_json_and_back(data_type: Any, fill: FillValue, shown: Any) -> None:
    metadata = examples.metadata(data_type, fill)
    data = array_document(metadata, {"units": "K"})
    assert json.loads(data)["fill_value"] == shown
    attributes, found = parse_document(data, "/a")
    assert attributes == {"units": "K"}
    assert found is not None
    assert same_value(found.fill_value, fill)
    assert found.data_type == data_type
    assert (found.shape, found.chunk_shape) == (metadata.shape, metadata.chunk_shape)
    assert (found.codecs, found.dimension_names) == (metadata.codecs, metadata.dimension_names)


def test_groups() -> None:
    assert json.loads(group_document({"a": 1})) == {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"a": 1},
    }
    assert parse_document(group_document(None), "/") == ({}, None)


def changed(**members: Any) -> bytes:
    document = json.loads(array_document(examples.metadata(), None))
    return json.dumps(document | members).encode()


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (changed(data_type="string"), "data type 'string' has no place"),
        (changed(data_type={"name": "numpy.datetime64"}), "has no place"),
        (changed(fill_value="x"), "fill value 'x' does not fit"),
        (changed(fill_value=1e39), "fill value 1e\\+39 does not fit"),
        (changed(chunk_key_encoding={"name": "v2"}), "chunk key encoding"),
        (changed(chunk_grid={"name": "rectilinear"}), "chunk grid 'rectilinear'"),
        (changed(extension={"must_understand": True}), "no place for \\['extension'\\]"),
        (b"{}x", "not JSON"),
    ],
)
def test_what_document_000_has_no_place_for_is_refused(document: bytes, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=f"zarr.json of '/a': .*{problem}"):
        parse_document(document, "/a")


# -- what does not belong


def test_files_of_another_type_or_generation_are_refused() -> None:
    manifest = files.encode_manifest({}, IdMap(16), Form.BINARY, 3)
    with pytest.raises(FormatError, match="s/X: is a manifest file, expected a snapshot"):
        files.decode_snapshot(manifest, "s/X")
    snapshot = files.encode_snapshot(examples.snapshot(), Form.MSGPACK, 3)
    with pytest.raises(FormatError, match="m/X: the manifest has 7 items, expected 1 or 2 or 3"):
        files.decode_manifest(snapshot, "m/X", IdMap(16))
    newer = files._enclosed(b"\x10\0\0\0Ichk" + bytes(16), FileType.SNAPSHOT, Form.BINARY, 3)
    with pytest.raises(FormatError, match="s/X: the payload is a flatbuffer"):
        files.decode_snapshot(newer, "s/X")
    wider = files.encode_manifest(examples.references(), IdMap(16), Form.JSON, 3)
    with pytest.raises(FormatError, match="ids of 16 bytes, those of this repository have 12"):
        files.decode_manifest(wider, "m/X", IdMap(12))


def test_chunks_that_are_listed_twice_are_refused() -> None:
    data = b'{"chunks":{"1/0":{"Inline":[1]},"1/00":{"Inline":[2]}}}'
    with pytest.raises(FormatError, match="m/X: a chunk of an array is listed twice"):
        files.decode_manifest(data, "m/X", IdMap(16))


def test_node_ids_are_eight_bytes() -> None:
    assert node_id(1) == NodeId(bytes(7) + b"\x01")
