"""Structure and attributes files as document 003 describes them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe.changes.change_set import parse_zarr_json
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.nodes import ManifestRef, Node, NodeTable
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles
from icefloe.ids import ManifestId, NodeId
from icefloe.legacy.state_file.structure import (
    NewStructure,
    decode_fill_value,
    encode_fill_value,
    encode_structure,
    manifest_files,
    nodes_of,
    read_structure,
)
from icefloe.legacy.state_file.tables import Profile, decode_attributes, encode_attributes

# Section "Structure Files", as it is printed there.
DOCUMENT_TYPES = {
    "id": "uint16",
    "type": "string",
    "path": "string",
    "array_metadata": (
        "struct<shape: list<item: uint16> not null, data_type: string not null, "
        "fill_value: binary, dimension_names: list<item: string>, chunk_grid: struct<name: string "
        "not null, configuration: struct<chunk_shape: list<item: uint16> not null> not null>, "
        "chunk_key_encoding: struct<name: string not null, configuration: struct<separator: string "
        "not null> not null>, codecs: list<item: struct<name: string not null, configuration: "
        "binary>>>"
    ),
    "inline_attrs": "binary",
    "attrs_reference": "struct<attrs_file: string not null, row: uint16 not null, flags: uint16>",
    "inventories": (
        "list<item: struct<inventory_file: string not null, row: uint16 not null, "
        "extent: list<item: fixed_size_list<item: uint16>[2]> not null, flags: uint16>>"
    ),
}
DOCUMENT_REQUIRED = {"id", "type", "path"}
DOCUMENT_DESCRIPTIONS = {
    "id": "unique identifier for the node",
    "type": "array or group",
    "path": "path to the node within the store",
    "array_metadata": "All the Zarr array metadata",
    "inline_attrs": "user-defined attributes, stored inline with this entry",
    "attrs_reference": "user-defined attributes, stored in a separate attributes file",
}

MANIFEST = ManifestId(bytes(range(12)))


def document(shape: list[int], chunks: list[int], **changes: Any) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "NaN",
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
            **changes,
        }
    ).encode()


def node(number: int, path: str, user_data: bytes, *manifests: ManifestRef) -> Node:
    array = parse_zarr_json(user_data, path)
    if array is not None:
        array = type(array)(array.shape, array.dimension_names, manifests)
    return Node(NodeId(number.to_bytes(8, "big")), path, user_data, array)


def group(**attributes: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


NODES = [
    node(0, "/", group(title="t")),
    node(4, "/g", b'{"zarr_format":3,"node_type":"group"}'),
    node(
        7,
        "/g/a",
        document([10, 6], [3, 6], dimension_names=["x", None], attributes={"units": "K" * 90}),
        ManifestRef(MANIFEST, ((0, 4), (0, 1))),
    ),
    node(9, "/scalar", document([], [], data_type="int16", fill_value=-2)),
]
FILES = ManifestFiles.from_infos([ManifestFileInfo(MANIFEST, 0, 4)])


def encoded(nodes: list[Node], profile: Profile = Profile.strict, **options: Any) -> NewStructure:
    options = {"next_id": 12, "attrs_file": "A.parquet", "inline_attrs_bytes": 64, **options}
    return encode_structure(NodeTable.from_nodes(nodes), FILES, profile=profile, **options)


def read_back(new: NewStructure, name: str = "s/x.parquet") -> NodeTable:
    stored = {"A.parquet": decode_attributes(encode_attributes(new.attributes), "a/A.parquet")}
    return nodes_of(read_structure(new.data, name), stored)[0]


def table_of(new: NewStructure) -> pa.Table:
    return pq.read_table(pa.BufferReader(new.data))


def test_columns_and_types_are_those_of_the_document() -> None:
    schema = table_of(encoded(NODES)).schema
    assert schema.names == list(DOCUMENT_TYPES)
    for field in schema:
        assert str(field.type) == DOCUMENT_TYPES[field.name]
        assert field.nullable == (field.name not in DOCUMENT_REQUIRED)
        description = (field.metadata or {}).get(b"description", b"").decode()
        assert description == DOCUMENT_DESCRIPTIONS.get(field.name, "")


def test_the_wide_profile_differs_in_widths_only() -> None:
    schema = table_of(encoded(NODES, Profile.wide)).schema
    assert schema.names == list(DOCUMENT_TYPES)
    assert str(schema.field("id").type) == "uint32"
    assert "shape: list<item: uint64> not null" in str(schema.field("array_metadata").type)
    narrow = str(schema).replace("uint64", "uint16").replace("uint32", "uint16")
    assert narrow.split("--")[0] == str(table_of(encoded(NODES)).schema).split("--")[0]


def test_golden_rows() -> None:
    rows = {row["path"]: row for row in table_of(encoded(NODES)).to_pylist()}
    assert rows["/"] == {
        "id": 0,
        "type": "group",
        "path": "/",
        "array_metadata": None,
        "inline_attrs": b'{"title":"t"}',
        "attrs_reference": None,
        "inventories": None,
    }
    assert rows["/g/a"] == {
        "id": 7,
        "type": "array",
        "path": "/g/a",
        "array_metadata": {
            "shape": [10, 6],
            "data_type": "float32",
            "fill_value": b"\x7f\xc0\0\0",
            "dimension_names": ["x", None],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 6]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [
                {"name": "bytes", "configuration": b'{"endian":"little"}'},
                {"name": "crc32c", "configuration": None},
            ],
        },
        "inline_attrs": None,
        "attrs_reference": {"attrs_file": "A.parquet", "row": 0, "flags": None},
        "inventories": [
            {
                "inventory_file": "000G40R40M30E209185G.parquet",
                "row": 0,
                "extent": [[0, 4], [0, 1]],
                "flags": None,
            }
        ],
    }


@pytest.mark.parametrize("profile", Profile)
def test_nodes_come_back(profile: Profile) -> None:
    new = encoded(NODES, profile)
    table = read_back(new)
    assert table.path == ["/", "/g", "/g/a", "/scalar"]
    for old, found in zip(NODES, table, strict=True):
        assert found.id == old.id
        assert json.loads(found.user_data) == json.loads(old.user_data)
        assert (found.array is None) == (old.array is None)
        if found.array is not None and old.array is not None:
            assert found.array.shape == old.array.shape
            assert found.array.dimension_names == old.array.dimension_names
            boxes = [ref.extents for ref in found.array.manifests]
            assert boxes == [ref.extents for ref in old.array.manifests]


def test_attributes_that_are_stored_stay_where_they_are() -> None:
    """Figure of the overview: two structure files refer to one attributes file."""
    table = read_back(encoded(NODES))
    files = manifest_files(nodes_of(read_structure(encoded(NODES).data, "s"), _stored())[1])
    again = encode_structure(
        table,
        files,
        next_id=12,
        profile=Profile.strict,
        attrs_file="B.parquet",
        inline_attrs_bytes=64,
    )
    assert again.attributes == []
    assert table_of(again).to_pylist() == table_of(encoded(NODES)).to_pylist()


def _stored() -> dict[str, list[bytes]]:
    return {"A.parquet": encoded(NODES).attributes}


def test_the_number_of_the_next_node_is_noted() -> None:
    assert read_structure(encoded(NODES).data, "s").next_id == 12
    assert read_structure(encoded(NODES, next_id=3).data, "s").next_id == 10  # above all ids


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(0, "/a", document([65536], [1]))], "a size in the shape of '/a' is 65,536"),
        ([node(0, "/a", document([5], [70000]))], "a size in the chunk shape of '/a' is 70,000"),
        ([node(70000, "/a", document([5], [1]))], "the id of '/a' is 70,000"),
    ],
)
def test_strict_numbers_that_are_too_large_are_refused(nodes: list[Node], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        encoded(nodes)
    assert "up to 65,535; use the wide profile" in str(caught.value)
    assert len(read_back(encoded(nodes, Profile.wide))) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        ({"other": 1}, "member 'other'"),
        ({"codecs": [{"name": "x", "must_understand": False}]}, "must_understand"),
        ({"codecs": None}, "codecs"),
        ({"data_type": None}, "data_type"),
        ({"fill_value": "x"}, "fill_value"),
        ({"attributes": []}, "attributes"),
        (
            {"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[1, 2]]}}},
            "chunk grid 'rectilinear'",
        ),
    ],
)
def test_what_has_no_column_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        encoded([node(0, "/a", document([3], [3], **change))])


@pytest.mark.parametrize(
    ("data_type", "value", "data"),
    [
        ("bool", True, b"\x01"),
        ("int8", -1, b"\xff"),
        ("int32", 1, b"\0\0\0\x01"),
        ("uint64", 2**64 - 1, b"\xff" * 8),
        ("float16", 1.0, b"\x3c\0"),
        ("float32", "NaN", b"\x7f\xc0\0\0"),
        ("float64", "-Infinity", b"\xff\xf0" + bytes(6)),
        ("float64", "0x7ff8000000000001", b"\x7f\xf8\0\0\0\0\0\x01"),
        ("complex64", [1.0, "NaN"], b"\x3f\x80\0\0\x7f\xc0\0\0"),
        ("complex128", [0.0, -2.0], bytes(8) + b"\xc0" + bytes(7)),
        ("r16", [1, 2], b"\x01\x02"),
        ("string", "ä", "ä".encode()),
        ("variable_length_bytes", "AAA=", b'"AAA="'),
        ({"name": "numpy.datetime64", "configuration": {}}, "NaT", b'"NaT"'),
    ],
)
def test_fill_values(data_type: Any, value: Any, data: bytes) -> None:
    assert encode_fill_value(data_type, value, "x") == data
    assert decode_fill_value(data_type, data, "x") == value


def test_half_floats_of_the_prototype_have_four_bytes() -> None:
    assert decode_fill_value("float16", b"\x3f\xc0\0\0", "x") == 1.5


@pytest.mark.parametrize(
    ("data_type", "value"),
    [("int8", 128), ("int8", 1.5), ("uint8", -1), ("bool", 1), ("float32", "x"), ("r8", [256])],
)
def test_fill_values_of_other_types_are_refused(data_type: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match="fill_value"):
        encode_fill_value(data_type, value, "x")


def _changed(**changes: Any) -> bytes:
    """A file in which the row of `/g/a` is another one."""
    table = table_of(encoded(NODES, Profile.wide))
    rows = [{**row, **changes} if row["path"] == "/g/a" else row for row in table.to_pylist()]
    fields = [field.with_nullable(True) for field in table.schema]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"path": "/g"}, "appears twice"),
        ({"path": "/g//b"}, "path of a node"),
        ({"path": None}, "path of a node"),
        ({"id": 4}, "appears twice"),
        ({"id": None}, "id of a node"),
        ({"type": "group"}, "array or group"),
        ({"type": "tree"}, "array or group"),
        ({"inline_attrs": b"[]", "attrs_reference": None}, "attributes"),
        ({"attrs_reference": {"attrs_file": "A.parquet", "row": 5, "flags": 0}}, "row 5"),
        (
            {"inventories": [{"inventory_file": "x", "row": 0, "extent": [[0, 1]], "flags": 0}]},
            "covers 1 dimensions",
        ),
    ],
)
def test_damaged_rows_are_refused_by_file_and_generation(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        nodes_of(read_structure(_changed(**change), "s/y.parquet"), _stored())
    assert "s/y.parquet" in str(caught.value)
    assert "a dataset with a state file" in str(caught.value)


def test_a_file_without_a_column_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table_of(encoded(NODES)).drop_columns(["inventories"]), sink)
    with pytest.raises(FormatError, match="no column 'inventories'"):
        read_structure(sink.getvalue().to_pybytes(), "s/y.parquet")
