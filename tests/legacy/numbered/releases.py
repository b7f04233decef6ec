"""The bytes of every release from the weeks of document 000 to 0.1.3, for tests to read.

Nothing writes these any more, so this encoder follows the struct definitions of each release and
the conventions of rmp-serde: structs are arrays, variants are maps of one entry. It shares no code
with the package apart from the text of ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import zstandard

from icefloe.ids import encode_base32

MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")


@dataclass(frozen=True)
class Release:
    """How one release wrote its files."""

    name: str
    branch: str
    tag: str
    characters: int
    folders: str = "long"
    id_size: int = 12
    binary_ids: bool = False
    node_numbers: bool = False
    snapshot_items: int = 11
    file_info: str = "version"
    manifest: str = "flat3"
    manifest_version: int = 0
    manifest_ref: str = "two"
    boxes: bool = False
    one_manifest: bool = True
    location: str = "absolute"
    log_items: int = 0
    header: bool = False
    is_parquet: bool = False

    def folder(self, kind: str) -> str:
        return kind[0] + "/" if self.folders == "short" else kind + "/"


_NUMBERED = {"node_numbers": True}
RELEASES = {
    release.name: release
    for release in (
        Release(
            "2024-09 Parquet",
            "r/branch:{}/",
            "r/tag:{}/ref.json",
            13,
            folders="short",
            id_size=16,
            node_numbers=True,
            is_parquet=True,
        ),
        Release(
            "2024-09",
            "r/branch:{}/",
            "r/tag:{}/ref.json",
            13,
            folders="short",
            id_size=16,
            node_numbers=True,
            snapshot_items=7,
            manifest="flat1",
            manifest_ref="three",
            location="bare",
        ),
        Release("alpha.1", "refs/branch:{}/", "refs/tag:{}/ref.json", 13, node_numbers=True),
        Release("alpha.2", "refs/branch.{}/", "refs/tag.{}/ref.json", 8, node_numbers=True),
        Release("alpha.5", "refs/branch.{}/", "refs/tag.{}/ref.json", 8, log_items=8),
        Release(
            "alpha.8",
            "refs/branch.{}/",
            "refs/tag.{}/ref.json",
            8,
            log_items=8,
            location="checksum",
        ),
        Release(
            "alpha.10",
            "refs/branch.{}/",
            "refs/tag.{}/ref.json",
            8,
            log_items=8,
            location="checksum",
            header=True,
            snapshot_items=9,
            file_info="version size",
            manifest_version=1,
        ),
        Release(
            "alpha.11",
            "refs/branch.{}/",
            "refs/tag.{}/ref.json",
            8,
            log_items=8,
            location="checksum",
            header=True,
            snapshot_items=9,
            file_info="version size",
            manifest_version=1,
            manifest="nested3",
            binary_ids=True,
        ),
        Release(
            "alpha.15",
            "refs/branch.{}/",
            "refs/tag.{}/ref.json",
            8,
            log_items=8,
            location="checksum",
            header=True,
            snapshot_items=9,
            file_info="version size rows",
            manifest_version=1,
            manifest="nested4",
            binary_ids=True,
            boxes=True,
            one_manifest=False,
        ),
        Release(
            "0.1.0",
            "refs/branch.{}/",
            "refs/tag.{}/ref.json",
            8,
            log_items=7,
            location="checksum",
            header=True,
            snapshot_items=8,
            file_info="size rows",
            manifest="nested2",
            binary_ids=True,
            boxes=True,
            one_manifest=False,
        ),
    )
}


@dataclass
class Array:
    """An array as a release describes it; `fill` is a pair of kind and value."""

    shape: list[int]
    data_type: Any
    chunk_shape: list[int]
    fill: tuple[str, Any]
    codecs: list[list[Any]]
    names: list[str | None] | None = None
    transformers: list[list[Any]] | None = None
    manifests: list[tuple[bytes, list[tuple[int, int]]]] = field(default_factory=list)


@dataclass
class Node:
    number: int
    path: str
    attributes: Any = None
    """None, a dict, or (file id, location)."""
    array: Array | None = None

    @property
    def node_id(self) -> bytes:
        return b"node" + self.number.to_bytes(4, "big")


Payload = tuple[str, Any]
"""("Inline", bytes), ("Ref", (id, offset, length)) or ("Virtual", (url, offset, length, check))."""


class Encoder:
    """Files of one release."""

    def __init__(self, release: Release) -> None:
        self.release = release

    # -- ids

    def object_id(self, raw: bytes) -> Any:
        assert len(raw) == self.release.id_size
        return [raw, []] if self.release.binary_ids else encode_base32(raw)

    def node_id(self, node: Node) -> Any:
        if self.release.node_numbers:
            return node.number
        return [node.node_id, []] if self.release.binary_ids else encode_base32(node.node_id)

    # -- snapshots

    def snapshot(
        self,
        itself: tuple[bytes, str, str],
        history: Sequence[tuple[bytes, str, str]],
        nodes: Sequence[Node],
        *,
        properties: Mapping[str, Any],
        total_parents: int,
        started_at: str,
        manifest_files: Sequence[tuple[bytes, int, int]],
        attribute_files: Sequence[bytes] = (),
    ) -> bytes:
        release = self.release
        manifests = [self._file_info(*each) for each in manifest_files]
        attributes = [
            [self.object_id(each)] if release.snapshot_items == 8 else [self.object_id(each), 0]
            for each in attribute_files
        ]
        listed = _map([(packed(node.path), self._node(node)) for node in nodes])
        if release.snapshot_items == 8:
            identity, written_at, message = itself
            parent = self.object_id(history[0][0]) if history else None
            values = [self.object_id(identity), parent, written_at, message, dict(properties)]
            parts = [packed(each) for each in (*values, manifests, attributes)]
            return self._enclosed(_array([*parts, listed]), 1)
        values = [
            total_parents,
            len(history),
            [self._entry(each) for each in history],
            self._entry(itself),
            started_at,
            dict(properties),
        ]
        before: list[Any] = []
        if release.snapshot_items >= 9:
            before = [manifests, attributes]
        if release.snapshot_items == 11:
            before = [0, {}, *before]
        parts = [packed(each) for each in (*before, *values)]
        assert len(parts) + 1 == release.snapshot_items
        return self._enclosed(_array([*parts, listed]), 1)

    def _entry(self, entry: tuple[bytes, str, str]) -> list[Any]:
        return [self.object_id(entry[0]), entry[1], entry[2]]

    def _file_info(self, raw: bytes, size: int, rows: int) -> list[Any]:
        numbers = {"version": 1 if self.release.header else 0, "size": size, "rows": rows}
        return [self.object_id(raw), *(numbers[word] for word in self.release.file_info.split())]

    def _node(self, node: Node) -> bytes:
        attributes: Any = None
        if isinstance(node.attributes, dict):
            attributes = {"Inline": node.attributes}
        elif node.attributes is not None:
            raw, location = node.attributes
            flags: list[Any] = [[]] if self.release.manifest_ref == "three" else []
            attributes = {"Ref": [self.object_id(raw), location, *flags]}
        data = packed("Group")
        if node.array is not None:
            refs = [self._manifest_ref(*each) for each in node.array.manifests]
            data = _map([(packed("Array"), _array([_zarr(node.array), packed(refs)]))])
        return _array([packed(self.node_id(node)), packed(node.path), packed(attributes), data])

    def _manifest_ref(self, raw: bytes, box: list[tuple[int, int]]) -> list[Any]:
        extents = [list(side) for side in zip(*box, strict=True)] if self.release.boxes else []
        if self.release.boxes and not box:
            extents = [[], []]
        flags: list[Any] = [[]] if self.release.manifest_ref == "three" else []
        return [self.object_id(raw), *flags, extents]

    # -- manifests

    def manifest(
        self, raw: bytes, chunks: Mapping[int, Mapping[tuple[int, ...], Payload]], nodes: Any
    ) -> bytes:
        """`chunks` by node number and chunk index; `nodes` has the node of each number."""
        kind = self.release.manifest
        if kind.startswith("flat"):
            entries = [
                (packed([self.node_id(nodes[number]), list(index)]), self._payload(payload))
                for number, found in chunks.items()
                for index, payload in found.items()
            ]
        else:
            entries = [
                (
                    packed(self.node_id(nodes[number])),
                    _map([(packed(list(i)), self._payload(p)) for i, p in found.items()]),
                )
                for number, found in chunks.items()
            ]
        version = [packed(self.release.manifest_version), packed({})]
        identity = [packed(self.object_id(raw))]
        before = {
            "flat1": [],
            "flat3": version,
            "nested3": version,
            "nested4": version + identity,
            "nested2": identity,
        }[kind]
        return self._enclosed(_array([*before, _map(entries)]), 2)

    def _payload(self, payload: Payload) -> bytes:
        kind, content = payload
        if kind == "Inline":
            return packed({"Inline": content})
        if kind == "Ref":
            raw, offset, length = content
            return packed({"Ref": [self.object_id(raw), offset, length]})
        url, offset, length, check = content
        location = {"Absolute": url} if self.release.location == "absolute" else url
        more = [check] if self.release.location == "checksum" else []
        return packed({"Virtual": [location, offset, length, *more]})

    # -- the rest

    def log(self, lists: Sequence[Sequence[Node]], chunks: Sequence[tuple[Node, Any]]) -> bytes:
        """Six lists of nodes, and the chunks of each array."""
        assert len(lists) == 6
        parts = [packed([self.node_id(node) for node in each]) for each in lists]
        updated = [
            (packed(self.node_id(node)), packed([list(i) for i in rows])) for node, rows in chunks
        ]
        version = [packed(1 if self.release.header else 0)] if self.release.log_items == 8 else []
        return self._enclosed(_array([*version, *parts, _map(updated)]), 4)

    def attributes(self, sets: Sequence[Mapping[str, Any]]) -> bytes:
        return self._enclosed(packed([[dict(each) for each in sets]]), 3)

    def _enclosed(self, data: bytes, file_type: int) -> bytes:
        if not self.release.header:
            return data
        writer = f"ic-{self.release.name}".encode().ljust(24)
        head = MAGIC + writer + bytes((1, file_type, 1))
        return head + zstandard.ZstdCompressor().compress(data)


def packed(value: Any) -> bytes:
    found: bytes = msgpack.packb(value)
    return found


def _array(parts: Sequence[bytes]) -> bytes:
    return bytes(msgpack.Packer().pack_array_header(len(parts))) + b"".join(parts)


def _map(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    head = bytes(msgpack.Packer().pack_map_header(len(entries)))
    return head + b"".join(part for entry in entries for part in entry)


def _zarr(array: Array) -> bytes:
    kind, value = array.fill
    single = msgpack.Packer(use_single_float=True)
    if kind in ("Float16", "Float32"):
        fill: bytes = single.pack(float(value))
    elif kind == "Complex64":
        fill = _array([single.pack(float(part)) for part in value])
    else:
        fill = packed(value)
    before = (array.shape, array.data_type, array.chunk_shape, "Slash")
    after = (array.codecs, array.transformers, array.names)
    return _array(
        [
            *(packed(each) for each in before),
            _map([(packed(kind), fill)]),
            *(packed(each) for each in after),
        ]
    )
