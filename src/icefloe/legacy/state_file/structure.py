"""Structure files: nodes, their `zarr.json` and fill values."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple

import pyarrow as pa

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.layout import Generation
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef, Node, NodeTable
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles
from icefloe.ids import ManifestId, NodeId
from icefloe.legacy.checked import Checked, read_parquet
from icefloe.legacy.state_file import state
from icefloe.legacy.state_file.state import checked
from icefloe.legacy.state_file.tables import (
    Profile,
    check_fits,
    notes_of,
    structure_schema,
    write_parquet,
)

# -- Conversion of fill values between the bytes of a structure file and zarr.json.
#
# Types of fixed width are big-endian values. Text is UTF-8. The value of any other type is the
# JSON of zarr.json.


_WHOLE = {
    f"{sign}int{bits}": (sign == "", bits // 8) for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_FLOATS = {"float16": ">e", "float32": ">f", "float64": ">d"}
_COMPLEX = {"complex64": ">f", "complex128": ">d"}
_RAW = re.compile(r"r([1-9][0-9]*)")
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def encode_fill_value(data_type: Any, value: Any, where: str) -> bytes:
    """The bytes of a fill value of zarr.json."""
    try:
        return fill_to_bytes(data_type, value)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise InvalidInputError(
            f"{where}: fill_value {value!r:.80} is none of data type {data_type!r:.80} ({error})",
            ErrorKind.BAD_METADATA,
        ) from None


def fill_to_bytes(data_type: Any, value: Any) -> bytes:
    """The big-endian bytes of a fill value; several kinds of errors if it does not fit."""
    if not isinstance(data_type, str):
        return json.dumps(value, separators=(",", ":")).encode()
    if data_type == "bool" or data_type in _WHOLE:
        return _encode_whole(data_type, value)
    if data_type in _FLOATS:
        return _encode_float(_FLOATS[data_type], value)
    if data_type in _COMPLEX:
        if not isinstance(value, list) or len(value) != 2:
            raise TypeError("expected two numbers")
        return b"".join(_encode_float(_COMPLEX[data_type], part) for part in value)
    size = _raw_size(data_type)
    if size is not None:
        raw = bytes(value)
        _check_size(raw, size)
        return raw
    if data_type == "string":
        if not isinstance(value, str):
            raise TypeError("expected text")
        return value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


def _encode_whole(data_type: str, value: Any) -> bytes:
    expected = bool if data_type == "bool" else int
    if not isinstance(value, int) or isinstance(value, bool) != (expected is bool):
        raise TypeError(f"expected {expected.__name__}")
    if expected is bool:
        return bytes([value])
    signed, size = _WHOLE[data_type]
    return value.to_bytes(size, "big", signed=signed)


def _encode_float(layout: str, value: Any) -> bytes:
    if isinstance(value, str) and value in _NOT_FINITE:
        return struct.pack(layout, _NOT_FINITE[value])
    if isinstance(value, str):  # the bits themselves, for NaNs with a payload
        size = struct.calcsize(layout)
        if not value.startswith("0x") or len(value) != 2 + 2 * size:
            raise ValueError("expected a number, NaN, Infinity, -Infinity or all bits as 0x...")
        return bytes.fromhex(value[2:])
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("expected a number")
    return struct.pack(layout, value)


def decode_fill_value(data_type: Any, data: bytes | None, where: str) -> Any:
    """The fill value in zarr.json. Zarr requires one, so the default is zero."""
    try:
        return fill_from_bytes(data_type, data)
    except (ValueError, struct.error, RecursionError) as error:
        raise checked(where).fail(
            f"fill_value {data!r:.80} is none of data type {data_type!r:.80} ({error})"
        ) from None


def fill_from_bytes(data_type: Any, data: bytes | None) -> Any:
    """The fill value of such bytes; several kinds of errors if they do not fit."""
    if not isinstance(data_type, str):
        return None if data is None else json.loads(data)
    if data_type == "bool":
        if data not in (None, b"\0", b"\1"):
            raise ValueError("expected one byte, 0 or 1")
        return data == b"\1"
    if data_type in _WHOLE:
        signed, size = _WHOLE[data_type]
        _check_size(data, size)
        return int.from_bytes(data or b"", "big", signed=signed)
    if data_type in _FLOATS:
        layout = _FLOATS[data_type]
        if data_type == "float16" and data is not None and len(data) == 4:
            layout = ">f"  # a prototype stored half floats as single floats
        _check_size(data, struct.calcsize(layout))
        return 0.0 if data is None else _decode_float(layout, data)
    if data_type in _COMPLEX:
        layout = _COMPLEX[data_type]
        size = struct.calcsize(layout)
        _check_size(data, 2 * size)
        if data is None:
            return [0.0, 0.0]
        return [_decode_float(layout, data[:size]), _decode_float(layout, data[size:])]
    raw_size = _raw_size(data_type)
    if raw_size is not None:
        _check_size(data, raw_size)
        return list(bytes(raw_size) if data is None else data)
    if data_type == "string":
        return (data or b"").decode()
    return None if data is None else json.loads(data)


def _decode_float(layout: str, data: bytes) -> float | str:
    (value,) = struct.unpack(layout, data)
    for text, other in _NOT_FINITE.items():
        if struct.pack(layout, other) == data:
            return text
    return "0x" + data.hex() if value != value else float(value)


def _raw_size(data_type: str) -> int | None:
    found = _RAW.fullmatch(data_type)
    return None if found is None else -(-int(found[1]) // 8)


def _check_size(data: bytes | None, size: int) -> None:
    if data is not None and len(data) != size:
        raise ValueError(f"it has {len(data)} bytes, expected {size}")


# -- Conversion between zarr.json and the columns of a structure file.
#
# A structure file has one column per array member of Zarr's core specification. Members without a
# column are refused. The store always uses the default chunk keys, whatever encoding the file
# names.


GROUP_MEMBERS = {"zarr_format", "node_type", "attributes"}
ARRAY_MEMBERS = GROUP_MEMBERS | {
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "dimension_names",
    "storage_transformers",
}
_DEFAULT_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}]
_DEFAULT_KEYS = {"name": "default", "configuration": {"separator": "/"}}


def split_document(user_data: bytes, path: str) -> tuple[dict[str, Any] | None, bytes | None]:
    """A zarr.json as `array_metadata` (None for a group) and attributes (None if there are none).

    Raises:
        InvalidInputError: the structure file has no column for a part of it.
    """
    document = json.loads(user_data)  # already checked by `parse_zarr_json`
    attributes = document.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise refused(path, f"attributes are {attributes!r:.80}, expected an object")
    packed = None if attributes is None else compact_json(attributes)
    is_array = document.get("node_type") == "array"
    unknown = document.keys() - (ARRAY_MEMBERS if is_array else GROUP_MEMBERS)
    for member in sorted(unknown):
        if document[member] is not None:
            raise _no_place(path, f"member {member!r}")
    if document.get("storage_transformers"):
        raise _no_place(path, "storage transformers")
    return (_array_metadata(document, path) if is_array else None), packed


def _array_metadata(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    grid = document["chunk_grid"]
    if grid["name"] != "regular":
        raise _no_place(path, f"chunk grid {grid['name']!r}")
    data_type, fill = document.get("data_type"), document.get("fill_value")
    if not isinstance(data_type, str | dict):
        raise refused(path, f"data_type is {data_type!r:.80}")
    where = f"zarr.json of {path!r}"
    keys: Any = document.get("chunk_key_encoding") or _DEFAULT_KEYS
    keys = {"name": keys} if isinstance(keys, str) else keys
    separator = (keys.get("configuration") or {}).get("separator")
    codecs = document.get("codecs")
    if not isinstance(codecs, list):
        raise refused(path, f"codecs are {codecs!r:.80}, expected a list")
    names = document.get("dimension_names")
    return {
        "shape": document["shape"],
        # The column holds text. The name of a type that is not Zarr's own is a JSON object.
        "data_type": data_type if isinstance(data_type, str) else compact_json(data_type).decode(),
        "fill_value": None if fill is None else encode_fill_value(data_type, fill, where),
        "dimension_names": names,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": grid["configuration"]["chunk_shape"]},
        },
        "chunk_key_encoding": {
            "name": keys.get("name", "default"),
            "configuration": {
                "separator": separator or ("." if keys.get("name") == "v2" else "/"),
            },
        },
        "codecs": [_split_codec(codec, path) for codec in codecs],
    }


def _split_codec(codec: Any, path: str) -> dict[str, Any]:
    if isinstance(codec, str):
        return {"name": codec, "configuration": None}
    if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
        raise refused(path, f"a codec is {codec!r:.80}, expected a name and a configuration")
    for member in codec.keys() - {"name", "configuration"}:
        raise _no_place(path, f"member {member!r} of codec {codec['name']!r}")
    configuration = codec.get("configuration")
    packed = None if configuration is None else compact_json(configuration)
    return {"name": codec["name"], "configuration": packed}


def join_document(
    array: Mapping[str, Any] | None, attributes: bytes | None, where: str
) -> dict[str, Any]:
    """The zarr.json of a row. `where` is the name of the row in errors.

    Raises:
        FormatError: the columns are not consistent.
    """
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "group" if array is None else "array",
    }
    if attributes is not None:
        document["attributes"] = _object(attributes, "attributes", where)
    if array is None:
        return document
    data_type: Any = array["data_type"]
    if data_type.startswith("{"):
        data_type = _object(data_type.encode(), "data_type", where)
    grid = array["chunk_grid"]
    if grid is None:
        raise checked(where).fail("the array has no chunk_grid")
    if grid["name"] != "regular":
        raise checked(where).fail(f"chunk grid {grid['name']!r} is not known, expected 'regular'")
    codecs = array["codecs"]
    document |= {
        "shape": array["shape"],
        "data_type": data_type,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": grid["configuration"]["chunk_shape"]},
        },
        "chunk_key_encoding": _DEFAULT_KEYS,
        "fill_value": decode_fill_value(data_type, array["fill_value"], where),
        "codecs": _DEFAULT_CODECS
        if codecs is None
        else [_join_codec(codec, where) for codec in codecs],
    }
    if array["dimension_names"] is not None:
        document["dimension_names"] = array["dimension_names"]
    return document


def _join_codec(codec: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    if codec is None:
        raise checked(where).fail("a codec is null")
    if codec["configuration"] is None:
        return {"name": codec["name"]}
    found = _object(codec["configuration"], f"configuration of codec {codec['name']!r}", where)
    return {"name": codec["name"], "configuration": found}


def readable_document(user_data: bytes, path: str) -> bytes:
    """The canonical zarr.json that readers build from the columns.

    Raises:
        InvalidInputError: the structure file has no column for a part of it.
    """
    return compact_json(join_document(*split_document(user_data, path), path))


def compact_json(value: Any) -> bytes:
    """JSON of the columns. Numbers that JSON lacks are encoded as in Zarr."""
    return json.dumps(value, separators=(",", ":")).encode()


def _object(data: bytes, what: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise checked(where).fail(f"{what} are not JSON ({error})") from None
    if not isinstance(found, dict):
        raise checked(where).fail(f"{what} are a JSON {type(found).__name__}, expected an object")
    return found


def refused(path: str, problem: str) -> InvalidInputError:
    """The error for a zarr.json that cannot be stored."""
    return InvalidInputError(f"zarr.json of {path!r}: {problem}", ErrorKind.BAD_METADATA)


def _no_place(path: str, what: str) -> InvalidInputError:
    return refused(
        path,
        f"{Generation.STATE_FILE.noun} has no place for {what}; leave it out, or migrate the "
        "repository",
    )


# -- Structure files: one row per node, with the contents of its zarr.json.
#
# Node ids are numbers, unique in a dataset. The next free number is in the file's metadata,
# because the numbers of deleted nodes are not reused.


_COLUMNS = (
    "id",
    "type",
    "path",
    "array_metadata",
    "inline_attrs",
    "attrs_reference",
    "inventories",
)
_NEXT_ID = "icefloe.next_node_id"
_OWN_IDS = "icefloe.node_ids"
_MAX_CHUNKS = 2**32 - 1
_DIGEST_BYTES = 16


class Inventory(NamedTuple):
    """The location of an array's chunk references: rows of a manifest file, from `row` on."""

    file: str
    row: int
    node_id: NodeId
    extent: tuple[tuple[int, int], ...]

    @property
    def id(self) -> ManifestId:
        """Its id in memory."""
        text = json.dumps([self.file, self.row, self.node_id.hex(), self.extent])
        return ManifestId(blake2b(text.encode(), digest_size=ManifestId.size).digest())


class Structure(NamedTuple):
    """The rows of a structure file, before its attributes files are read."""

    rows: Sequence[Mapping[str, Any]]
    next_id: int
    profile: Profile
    own_ids: Mapping[str, NodeId]
    """Ids of nodes by path, in a snapshot that only forks of a session read."""
    name: str

    @property
    def attrs_files(self) -> list[str]:
        """Names of the attributes files that nodes refer to."""
        check = state.checked(self.name)
        found = (row["attrs_reference"] for row in self.rows)
        wanted = [_attrs_reference(ref, check)[0] for ref in found if ref is not None]
        return list(dict.fromkeys(wanted))


def read_structure(data: bytes | memoryview, name: str) -> Structure:
    """The rows of a structure file. `name` is the name of the file in errors.

    Raises:
        FormatError: it lacks the columns of a structure file.
    """
    check = state.checked(name)
    table = read_parquet(data, _COLUMNS, check)
    rows = table.to_pylist()
    highest = -1
    for row in rows:
        highest = max(highest, check.whole(row["id"], "the id of a node", 2**32 - 1))
    notes = notes_of(table)
    note = notes.get(_NEXT_ID, "")
    noted = int(note) if note.isdecimal() and len(note) < 16 else 0
    profile = Profile.strict if table.schema.field("id").type == pa.uint16() else Profile.wide
    own_ids = _decode_own_ids(notes.get(_OWN_IDS), check)
    return Structure(rows, max(highest + 1, noted), profile, own_ids, name)


def _decode_own_ids(note: str | None, check: Checked) -> dict[str, NodeId]:
    if note is None:
        return {}
    try:
        return {path: NodeId(bytes.fromhex(text)) for path, text in json.loads(note).items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise check.unexpected(f"note {_OWN_IDS}", note, "ids by path") from None


def nodes_of(
    structure: Structure, attributes: Mapping[str, Sequence[bytes]]
) -> tuple[NodeTable, list[Inventory]]:
    """The nodes of a structure file, and the locations of their chunk references."""
    check = state.checked(structure.name)
    nodes: dict[str, Node] = {}
    seen: set[NodeId] = set()
    inventories: list[Inventory] = []
    for row in structure.rows:
        path = _path(check.text(row["path"], "the path of a node"), check)
        node_id = structure.own_ids.get(path) or state.node_id(row["id"], structure.name)
        if path in nodes or node_id in seen:
            raise check.fail(f"node {path!r} (id {row['id']}) appears twice")
        seen.add(node_id)
        found = _inventories(row, node_id, path, check)
        inventories.extend(found)
        nodes[path] = _node(row, node_id, path, found, attributes, structure.name)
    return NodeTable.from_nodes(nodes.values()), inventories


def manifest_files(inventories: Iterable[Inventory]) -> ManifestFiles:
    """The inventories as manifest entries of a snapshot. Sizes are unknown; counts are bounds."""
    infos = {
        inventory.id: ManifestFileInfo(
            inventory.id,
            0,
            min(prod(max(0, stop - start) for start, stop in inventory.extent), _MAX_CHUNKS),
            compact_json([inventory.file, inventory.row]),
        )
        for inventory in inventories
    }
    return ManifestFiles.from_infos(infos.values())


def _path(text: str, check: Checked) -> str:
    """The absolute path. The document does not say whether paths start with a slash."""
    path = text if text.startswith("/") else "/" + text
    if len(path) > 1 and any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise check.unexpected("the path of a node", text, "names joined by '/'")
    return path


def _inventories(
    row: Mapping[str, Any], node_id: NodeId, path: str, check: Checked
) -> list[Inventory]:
    found = []
    for item in check.items(row["inventories"] or [], f"inventories of {path!r}"):
        ref = check.mapping(item, f"an inventory of {path!r}")
        file = check.text(check.member(ref, "inventory_file", "an inventory"), "inventory_file")
        start = check.whole(check.member(ref, "row", "an inventory"), "row of an inventory")
        box = []
        for pair in check.items(check.member(ref, "extent", "an inventory"), "extent"):
            first, last = check.items(pair, "a range of an extent", 2)
            box.append(
                (
                    check.whole(first, "an extent", _MAX_CHUNKS),
                    check.whole(last, "an extent", _MAX_CHUNKS),
                )
            )
        found.append(Inventory(file, start, node_id, tuple(box)))
    return found


def _node(
    row: Mapping[str, Any],
    node_id: NodeId,
    path: str,
    inventories: Sequence[Inventory],
    attributes: Mapping[str, Sequence[bytes]],
    name: str,
) -> Node:
    where = f"{name}, node {path!r},"
    check = state.checked(where)
    kind, metadata = row["type"], row["array_metadata"]
    if kind not in ("array", "group") or (metadata is None) == (kind == "array"):
        there = "no" if metadata is None else "an"
        raise check.fail(
            f"it is a {kind!r} and has {there} array_metadata, expected array or group"
        )
    packed, extra = row["inline_attrs"], None
    if row["attrs_reference"] is not None:
        file, at = _attrs_reference(row["attrs_reference"], check)
        stored = attributes[file]
        if at >= len(stored):
            raise check.fail(f"its attributes are row {at} of {file}, which has {len(stored)} rows")
        packed, extra = stored[at], _note(file, at, stored[at])
    if metadata is not None:
        metadata = _complete(metadata, check)
    document = join_document(metadata, packed, where)
    array = None if metadata is None else _array(document, inventories, check)
    return Node(node_id, path, compact_json(document), array, extra)


def _complete(metadata: Mapping[str, Any], check: Checked) -> Mapping[str, Any]:
    """`array_metadata`, checked for required members and their types."""
    what = "array_metadata"
    for part in ("fill_value", "dimension_names", "chunk_key_encoding", "codecs"):
        check.member(metadata, part, what)
    for size in check.items(check.member(metadata, "shape", what), "shape"):
        check.whole(size, "shape")
    check.text(check.member(metadata, "data_type", what), "data_type")
    grid = check.mapping(check.member(metadata, "chunk_grid", what), "chunk_grid")
    check.text(check.member(grid, "name", "chunk_grid"), "the name of the chunk grid")
    configuration = check.mapping(check.member(grid, "configuration", "chunk_grid"), "chunk_grid")
    sizes = check.items(check.member(configuration, "chunk_shape", "chunk_grid"), "chunk_shape")
    for size in sizes:
        check.whole(size, "chunk_shape")
    if len(sizes) != len(metadata["shape"]):
        raise check.fail(f"shape has {len(metadata['shape'])} dimensions, chunk_shape {len(sizes)}")
    named = metadata["dimension_names"]
    if named is not None and len(named) != len(sizes):
        raise check.fail(f"{len(named)} dimension names for {len(sizes)} dimensions")
    for codec in metadata["codecs"] or ():
        check.text(check.member(check.mapping(codec, "a codec"), "name", "a codec"), "a codec")
        check.member(codec, "configuration", "a codec")
    return metadata


def _array(
    document: Mapping[str, Any], inventories: Sequence[Inventory], check: Checked
) -> ArrayData:
    sizes = document["chunk_grid"]["configuration"]["chunk_shape"]
    shape = tuple(
        Dimension(length, -(-length // size) if size else 0)
        for length, size in zip(document["shape"], sizes, strict=True)
    )
    if any(dimension.num_chunks > _MAX_CHUNKS for dimension in shape):
        raise check.fail(f"more than {_MAX_CHUNKS:,} chunks along a dimension")
    for inventory in inventories:
        if len(inventory.extent) != len(shape):
            raise check.fail(
                f"its inventory in {inventory.file} covers {len(inventory.extent)} dimensions, "
                f"the array has {len(shape)}"
            )
    named = document.get("dimension_names")
    refs = tuple(ManifestRef(inventory.id, inventory.extent) for inventory in inventories)
    return ArrayData(shape, None if named is None else tuple(name or None for name in named), refs)


def _attrs_reference(ref: Any, check: Checked) -> tuple[str, int]:
    found = check.mapping(ref, "attrs_reference")
    file = check.text(check.member(found, "attrs_file", "attrs_reference"), "attrs_file")
    return file, check.whole(check.member(found, "row", "attrs_reference"), "row of attributes")


class NewStructure(NamedTuple):
    """A structure file, and its contents as readers will find them."""

    data: bytes
    attributes: list[bytes]
    """Rows for the new attributes file; empty if no file is needed."""
    nodes: NodeTable
    """Nodes with canonical zarr.json and manifests by inventory, as readers will find them."""
    inventories: dict[ManifestId, Inventory]
    """Keyed by the previous ids of the manifests."""


def encode_structure(
    nodes: NodeTable,
    files: ManifestFiles,
    *,
    next_id: int,
    profile: Profile,
    attrs_file: str,
    inline_attrs_bytes: int,
) -> NewStructure:
    """The structure file of these nodes.

    Nodes have numbers, except in a snapshot that only forks of a session read. Such a file has the
    session's ids of its nodes in its metadata.

    Attributes of more than `inline_attrs_bytes` go into `attrs_file`. Attributes that are already
    in an attributes file stay there.

    Raises:
        InvalidInputError: a number is too large for its column, or something has no column.
    """
    stored: list[bytes] = []
    rows, readable = [], []
    own_ids: dict[str, str] = {}
    inventories: dict[ManifestId, Inventory] = {}
    for node in nodes:
        metadata, packed = split_document(node.user_data, node.path)
        reference = _kept_reference(node.extra, packed)
        if reference is None and packed is not None and len(packed) > inline_attrs_bytes:
            reference = attrs_file, len(stored)
            stored.append(packed)
        array = node.array
        if array is not None:
            found = {ref.id: _inventory(files[ref.id], node.id, ref) for ref in array.manifests}
            inventories |= found
            array = replace(
                array, manifests=tuple(ManifestRef(at.id, at.extent) for at in found.values())
            )
        number = state.node_number(node.id)
        if number is None:
            number, next_id = next_id, next_id + 1
            own_ids[node.path] = node.id.hex()
        rows.append(_row(node, number, metadata, packed, reference, inventories, profile))
        document = join_document(metadata, packed, node.path)
        note = None if reference is None or packed is None else _note(*reference, packed)
        readable.append(Node(node.id, node.path, compact_json(document), array, note))
    table = pa.Table.from_pylist(rows, structure_schema(profile))
    notes = {_NEXT_ID: str(next_id)} | ({_OWN_IDS: json.dumps(own_ids)} if own_ids else {})
    data = write_parquet(table, notes)
    return NewStructure(data, stored, NodeTable.from_nodes(readable), inventories)


def _row(
    node: Node,
    number: int,
    metadata: Mapping[str, Any] | None,
    packed: bytes | None,
    reference: tuple[str, int] | None,
    known: Mapping[ManifestId, Inventory],
    profile: Profile,
) -> dict[str, Any]:
    is_wide = profile is Profile.wide
    size_bits, row_bits = (64, 32) if is_wide else (16, 16)

    def fits(what: str, value: int, bits: int) -> int:
        return check_fits(f"{what} of {node.path!r}", value, bits, profile)

    inventories = None
    if metadata is not None:
        for what, sizes in (
            ("the shape", metadata["shape"]),
            ("the chunk shape", metadata["chunk_grid"]["configuration"]["chunk_shape"]),
        ):
            for size in sizes:
                fits(f"a size in {what}", size, size_bits)
        inventories = []
        for ref in () if node.array is None else node.array.manifests:
            file, row, _, extent = known[ref.id]
            inventories.append(
                {
                    "inventory_file": file,
                    "row": fits("a row of the manifest", row, row_bits),
                    "extent": [
                        [fits("a chunk index", at, row_bits) for at in pair] for pair in extent
                    ],
                    "flags": None,
                }
            )
    attrs_reference = None
    if reference is not None:
        row = fits("the row of the attributes", reference[1], row_bits)
        attrs_reference = {"attrs_file": reference[0], "row": row, "flags": None}
    return {
        "id": fits("the id", number, row_bits),
        "type": "group" if metadata is None else "array",
        "path": node.path,
        "array_metadata": metadata,
        "inline_attrs": packed if reference is None else None,
        "attrs_reference": attrs_reference,
        "inventories": inventories,
    }


def _inventory(info: ManifestFileInfo, node_id: NodeId, ref: ManifestRef) -> Inventory:
    """The location of references. A new manifest has its own file."""
    if info.extra is None:
        return Inventory(state.parquet_name(info.id), 0, node_id, ref.extents)
    file, row = json.loads(info.extra)
    return Inventory(file, row, node_id, ref.extents)


def _note(file: str, row: int, packed: bytes) -> bytes:
    """The attributes file of a node: file and row, and the attributes that are there."""
    return compact_json([file, row, _digest(packed)])


def _kept_reference(note: bytes | None, packed: bytes | None) -> tuple[str, int] | None:
    if note is None or packed is None:
        return None
    file, row, digest = json.loads(note)
    return (file, row) if digest == _digest(packed) else None


def _digest(packed: bytes) -> str:
    canonical = json.dumps(json.loads(packed), sort_keys=True)
    return blake2b(canonical.encode(), digest_size=_DIGEST_BYTES).hexdigest()
