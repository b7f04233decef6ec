"""Structure files: one row per node, with the contents of its zarr.json.

Node ids are numbers, unique in a dataset. The next free number is in the file's metadata, because
the numbers of deleted nodes are not reused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.format.snapshot.file import ManifestFileInfo, ManifestFiles
from icefloe.format.snapshot.manifest_refs import ManifestRef
from icefloe.format.snapshot.nodes import ArrayData, Dimension, Node, NodeTable
from icefloe.ids import ManifestId, NodeId
from icefloe.legacy.checked import Checked
from icefloe.legacy.state_file import names
from icefloe.legacy.state_file.parquet import check_fits, notes_of, read_parquet, write_parquet
from icefloe.legacy.state_file.schema import Profile, structure_schema
from icefloe.legacy.state_file.zarr_json import compact_json, join_document, split_document
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

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
        check = names.checked(self.name)
        found = (row["attrs_reference"] for row in self.rows)
        wanted = [_attrs_reference(ref, check)[0] for ref in found if ref is not None]
        return list(dict.fromkeys(wanted))


def read_structure(data: bytes | memoryview, name: str) -> Structure:
    """The rows of a structure file. `name` is the name of the file in errors.

    Raises:
        FormatError: it lacks the columns of a structure file.
    """
    table = read_parquet(data, _COLUMNS, name)
    check = names.checked(name)
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
    check = names.checked(structure.name)
    nodes: dict[str, Node] = {}
    seen: set[NodeId] = set()
    inventories: list[Inventory] = []
    for row in structure.rows:
        path = _path(check.text(row["path"], "the path of a node"), check)
        node_id = structure.own_ids.get(path) or names.node_id(row["id"], structure.name)
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
    check = names.checked(where)
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


# -- writing


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
        number = names.node_number(node.id)
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
        return Inventory(names.parquet_name(info.id), 0, node_id, ref.extents)
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
