"""Random repositories of every release, and what they hold according to a plain model."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.ids import encode_base32
from icefloe.legacy.numbered.names import sequence_name
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from tests.legacy.numbered.parquet_release import ParquetEncoder, file_name
from tests.legacy.numbered.releases import Array, Encoder, Node, Payload, Release

BYTES = [["bytes", {"endian": "little"}]]
START = 1_728_302_400_000_000
TYPES: list[tuple[str, str, tuple[str, Any], Any]] = [
    ("float32", "<f4", ("Float32", 1.5), 1.5),
    ("int16", "<i2", ("Int16", -7), -7),
    ("uint64", "<u8", ("UInt64", 2**63), 2**63),
    ("bool", "?", ("Bool", True), True),
    ("complex64", "<c8", ("Complex64", [0.5, -1.0]), 0.5 - 1j),
]


@dataclass
class ModelArray:
    """Values, and which chunks are stored."""

    number: int
    dtype: str
    fill: Any
    chunk_shape: tuple[int, ...]
    values: np.ndarray[Any, Any]
    node: Node
    chunks: dict[tuple[int, ...], Payload] = field(default_factory=dict)


@dataclass
class State:
    """The nodes of one snapshot."""

    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, ModelArray] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)


@dataclass
class Commit:
    """A snapshot: its id, what it says, what it holds, and what it changed."""

    id: bytes
    message: str
    written_at: int
    properties: dict[str, Any]
    state: State
    parent: Commit | None
    new: list[Node]
    deleted: list[Node]
    updated: list[Node]
    chunks: dict[str, set[tuple[int, ...]]]

    @property
    def text(self) -> str:
        return encode_base32(self.id)

    def line(self) -> list[Commit]:
        return [self, *(self.parent.line() if self.parent is not None else [])]


@dataclass
class World:
    """A repository: commits by ref."""

    release: Release
    branches: dict[str, Commit]
    tags: dict[str, Commit]


class Builder:
    """Writes a random repository of one release into a storage."""

    def __init__(self, release: Release, storage: Storage, seed: int, foreign: str) -> None:
        self.release = release
        self.encoder = ParquetEncoder(release) if release.is_parquet else Encoder(release)
        self.driver = storage.driver(
            storage.default_settings().resolved(), blocking=True, max_concurrent_requests=4
        )
        self.random = Random(f"{release.name} {seed}")
        self.foreign = foreign
        """A file of which ranges are virtual chunks, as a URL without its end."""
        self.foreign_parts: dict[str, bytes] = {}
        self.numbers = 0
        self.clock = START
        self.branches: dict[str, list[Commit]] = {}
        self.history_kept = self.random.choice([100, 2])

    # -- storing

    def put(self, key: str, data: bytes) -> None:
        run_blocking(self.driver.put(key, data))

    def key(self, kind: str, raw: bytes) -> str:
        name = file_name(raw) if self.release.is_parquet else encode_base32(raw)
        return self.release.folder(kind) + name

    def new_id(self) -> bytes:
        return self.random.randbytes(self.release.id_size)

    def build(self) -> World:
        first = self.commit(None, State(), "Repository initialized")
        self.point("main", first)
        tip = first
        for number in range(self.random.randint(2, 5)):
            tip = self.change(tip, f"commit {number} ü")
            self.point("main", tip)
        side = self.change(first, "aside")
        self.point("side", first)
        self.point("side", side)
        tags = {"v1": tip, "first": first}
        for name, commit in tags.items():
            self.put(self.release.tag.format(name), self.ref(commit))
        if self.release.log_items == 7:
            key = self.release.tag.format("gone")
            self.put(key, self.ref(tip))
            self.put(key + ".deleted", b"")
        branches = {name: commits[-1] for name, commits in self.branches.items()}
        return World(self.release, branches, tags)

    def ref(self, commit: Commit) -> bytes:
        if not self.release.is_parquet:
            return json.dumps({"snapshot": commit.text}).encode()
        properties = {"message": commit.message, **commit.properties}
        values = {"timestamp": _instant(commit.written_at), "properties": properties}
        return json.dumps({"snapshot": commit.text, **values}).encode()

    def point(self, name: str, commit: Commit) -> None:
        commits = self.branches.setdefault(name, [])
        number = sequence_name(len(commits), self.release.characters)
        self.put(self.release.branch.format(name) + f"{number}.json", self.ref(commit))
        commits.append(commit)

    # -- changing

    def change(self, parent: Commit, message: str) -> Commit:
        state = deepcopy(parent.state)
        draw = self.random
        before = set(state.nodes)
        touched: dict[str, set[tuple[int, ...]]] = {}
        updated: list[Node] = []
        if "/" not in state.nodes:
            self.add_group(state, "/")
        for _ in range(draw.randint(1, 4)):
            self.add_group(state, f"/g{draw.randint(0, 3)}")
            self.add_array(state, f"/g{draw.randint(0, 3)}/a{draw.randint(0, 3)}")
        if state.arrays and draw.random() < 0.3:
            path = draw.choice(sorted(state.arrays))
            del state.arrays[path], state.nodes[path], state.attributes[path]
        old_paths = sorted(before & set(state.nodes))
        if old_paths and draw.random() < 0.7:
            path = draw.choice(old_paths)
            state.attributes[path] = {"changed": draw.randint(0, 9), "text": "ü", "list": [1, None]}
            updated.append(state.nodes[path])
        for path in state.arrays:
            if draw.random() < 0.8:
                touched[path] = self.write_chunks(state.arrays[path])
        new = [state.nodes[path] for path in set(state.nodes) - before]
        deleted = [parent.state.nodes[path] for path in before - set(state.nodes)]
        updated = [node for node in updated if node.path in state.nodes]
        return self.commit(parent, state, message, new, deleted, updated, touched)

    def add_group(self, state: State, path: str) -> None:
        if path not in state.nodes:
            self.numbers += 1
            state.nodes[path] = Node(self.numbers, path)
            state.attributes[path] = {"number": self.numbers} if self.random.random() < 0.6 else {}

    def add_array(self, state: State, path: str) -> None:
        draw = self.random
        self.add_group(state, path.rpartition("/")[0])
        if path in state.nodes:
            return
        self.numbers += 1
        data_type, dtype, fill, value = draw.choice(TYPES)
        ndim = draw.randint(0, 3)
        shape = tuple(draw.randint(1, 7) for _ in range(ndim))
        chunk_shape = tuple(draw.randint(1, 4) for _ in range(ndim))
        names: list[str | None] | None = [f"d{at}" for at in range(ndim)]
        array = Array(
            list(shape),
            data_type,
            list(chunk_shape),
            fill,
            BYTES,
            draw.choice([None, names]),
        )
        node = Node(self.numbers, path, array=array)
        state.nodes[path] = node
        state.attributes[path] = {"units": "K"} if draw.random() < 0.5 else {}
        values = np.full(shape, value, dtype)
        state.arrays[path] = ModelArray(self.numbers, dtype, value, chunk_shape, values, node)

    def write_chunks(self, array: ModelArray) -> set[tuple[int, ...]]:
        """Some chunks of an array, one or several in a file, inline or in a foreign file."""
        draw = self.random
        shape = array.values.shape
        grid = [
            range(-(-length // size)) for length, size in zip(shape, array.chunk_shape, strict=True)
        ]
        every = list(product(*grid))
        chosen = draw.sample(every, draw.randint(1, min(4, len(every))))
        pack: list[bytes] = []
        pack_id = self.new_id()
        for index in chosen:
            chunk = np.full(array.chunk_shape, array.fill, array.dtype)
            box = tuple(
                slice(at * size, min((at + 1) * size, length))
                for at, size, length in zip(index, array.chunk_shape, shape, strict=True)
            )
            inside = array.values[box]
            numbers = np.array([draw.randint(0, 100) for _ in range(inside.size)])
            array.values[box] = numbers.reshape(inside.shape).astype(array.dtype)
            chunk[tuple(slice(0, size) for size in inside.shape)] = array.values[box]
            data = chunk.tobytes()
            kind = draw.choice(["inline", "own", "packed", "packed", "virtual"])
            if kind == "inline":
                array.chunks[index] = ("Inline", data)
            elif kind == "virtual":
                array.chunks[index] = ("Virtual", self.virtual(data))
            elif kind == "own":
                raw = self.new_id()
                self.put(self.key("chunks", raw), data)
                array.chunks[index] = ("Ref", (raw, 0, len(data)))
            else:
                offset = sum(map(len, pack))
                pack.append(data)
                array.chunks[index] = ("Ref", (pack_id, offset, len(data)))
        if pack:
            self.put(self.key("chunks", pack_id), b"".join(pack))
        return set(chosen)

    def virtual(self, data: bytes) -> tuple[str, int, int, Any]:
        name = f"part{len(self.foreign_parts)}.bin"
        self.foreign_parts[name] = b"head" + data
        return f"{self.foreign}/{name}", 4, len(data), None

    # -- committing

    def commit(
        self,
        parent: Commit | None,
        state: State,
        message: str,
        new: Any = (),
        deleted: Any = (),
        updated: Any = (),
        chunks: Any = None,
    ) -> Commit:
        draw = self.random
        self.clock += draw.randint(1, 10**9)
        properties = {"user": "somebody", "number": draw.randint(0, 9)} if parent else {}
        made = Commit(
            self.new_id(),
            message,
            self.clock,
            properties,
            state,
            parent,
            list(new),
            list(deleted),
            list(updated),
            dict(chunks or {}),
        )
        manifests = self.manifests(state)
        attribute_files = self.place_attributes(state)
        line = made.line()[1:]
        data = self.encoder.snapshot(
            self.entry(made),
            [self.entry(each) for each in line[: self.history_kept]],
            list(state.nodes.values()),
            properties=properties,
            total_parents=len(line),
            started_at=_instant(self.clock - 5),
            manifest_files=manifests,
            attribute_files=attribute_files,
        )
        self.put(self.key("snapshots", made.id), data)
        if self.release.log_items and parent is not None:
            self.put("transactions/" + made.text, self.log(made))
        return made

    def entry(self, commit: Commit) -> tuple[bytes, str, str]:
        return commit.id, _instant(commit.written_at), commit.message

    def manifests(self, state: State) -> list[tuple[bytes, int, int]]:
        """One manifest for all arrays, or one for each; some arrays are spread over several."""
        for array in state.arrays.values():
            assert array.node.array is not None
            array.node.array.manifests = []
            state.nodes[array.node.path] = array.node
        spread = [(array, self.spread(array.chunks)) for array in state.arrays.values()]
        groups: list[list[tuple[ModelArray, dict[tuple[int, ...], Payload]]]] = []
        if self.release.one_manifest:
            parts = max((len(some) for _, some in spread), default=0)
            groups = [
                [(array, some[at]) for array, some in spread if at < len(some)]
                for at in range(parts)
            ]
        else:
            groups = [[(array, one)] for array, some in spread for one in some]
        made = []
        for group in groups:
            raw = self.new_id()
            nodes = {array.number: array.node for array, _ in group}
            data = self.encoder.manifest(
                raw, {array.number: chunks for array, chunks in group}, nodes
            )
            self.put(self.key("manifests", raw), data)
            made.append((raw, len(data), sum(len(chunks) for _, chunks in group)))
            for array, chunks in group:
                assert array.node.array is not None
                axes = list(zip(*chunks, strict=True))
                box = [(min(axis), max(axis) + 1) for axis in axes]
                array.node.array.manifests.append((raw, box))
        return made

    def spread(self, chunks: dict[tuple[int, ...], Payload]) -> list[dict[Any, Payload]]:
        """Chunks over one to three manifests, whose boxes may overlap.

        The first manifest that has a chunk counts, so later ones may have another payload for it.
        """
        draw = self.random
        parts: list[dict[Any, Payload]] = [{} for _ in range(draw.choice([1, 1, 2, 3]))]
        for index, payload in chunks.items():
            first = draw.randrange(len(parts))
            parts[first][index] = payload
            for later in parts[first + 1 :]:
                if draw.random() < 0.3:
                    later[index] = ("Inline", b"not this one")
        return [part for part in parts if part]

    def place_attributes(self, state: State) -> list[bytes]:
        """Attributes inside the snapshot, or some of them in a file of their own."""
        draw = self.random
        outside: list[dict[str, Any]] = []
        raw = self.new_id()
        for path, node in state.nodes.items():
            found = state.attributes[path]
            if found and not self.release.is_parquet and draw.random() < 0.3:
                node.attributes = (raw, len(outside))
                outside.append(found)
            else:
                node.attributes = found if found or draw.random() < 0.5 else None
        if not outside:
            return []
        key = self.release.folder("attributes") + encode_base32(raw)
        self.put(key, self.encoder.attributes(outside))
        return [raw]

    def log(self, commit: Commit) -> bytes:
        def of(nodes: list[Node], is_array: bool) -> list[Node]:
            return [node for node in nodes if (node.array is not None) == is_array]

        lists = [
            of(commit.new, False),
            of(commit.new, True),
            of(commit.deleted, False),
            of(commit.deleted, True),
            commit.updated,
            [],
        ]
        chunks = [
            (commit.state.nodes[path], sorted(found)) for path, found in commit.chunks.items()
        ]
        return self.encoder.log(lists, chunks)


def _instant(microseconds: int) -> str:
    text = np.datetime64(microseconds, "us").item().isoformat()
    return f"{text}Z"


def contents(session: icefloe.Session) -> dict[str, Any]:
    """Values, fill values and attributes of all nodes of a session, by path."""
    found: dict[str, Any] = {}
    root = zarr.open_group(session.store, mode="r")
    found["/"] = dict(root.attrs)
    for name, node in root.members(max_depth=None):
        path = f"/{name}"
        if isinstance(node, zarr.Array):
            found[path] = (dict(node.attrs), node.fill_value, node.chunks, node[...])
        else:
            found[path] = dict(node.attrs)
    return found


def check_contents(found: dict[str, Any], state: State) -> None:
    assert found.keys() == state.nodes.keys()
    for path, value in found.items():
        if path not in state.arrays:
            assert value == state.attributes[path], path
            continue
        array = state.arrays[path]
        attributes, fill, chunks, values = value
        assert attributes == state.attributes[path]
        assert fill == array.fill
        assert chunks == array.chunk_shape
        assert values.dtype == np.dtype(array.dtype)
        np.testing.assert_array_equal(values, array.values, path)
