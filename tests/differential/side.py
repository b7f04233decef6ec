"""One library with a repository of its own, on which the steps of a program are run.

Both libraries have the same names, so this is one program that is given the module. Snapshot ids
are random; they are replaced by the order in which they came up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tests.api.outcomes import is_id
from tests.differential import documents
from tests.differential.documents import Document
from tests.differential.programs import Program, Settings, Step, Where
from tests.oracle.conflict_cases import described, solvers

PROTOTYPE = default_buffer_prototype()
SKIPPED = "skipped"
Index = Iterable[int]


class Side:
    """A repository, two sessions of it, and a method for every kind of step."""

    def __init__(self, library: Any, folder: Path, source: Path, program: Program) -> None:
        self.library = library
        self.is_official = not hasattr(library, "PackingConfig")
        self.folder = folder
        self.source = source
        self.solvers = solvers(library)
        self.labels: dict[str, str] = {}
        self.settings = program.settings
        self.repository = library.Repository.create(
            library.local_filesystem_storage(str(folder)),
            **self.opening(program.settings),
            spec_version=program.spec,
        )
        self.label(self.repository.lookup_branch("main"))
        self.sessions = [self.repository.writable_session("main") for _ in range(2)]

    def label(self, snapshot_id: str | None) -> str | None:
        """What to call a snapshot; the order of the calls is the same on both sides."""
        if snapshot_id is None:
            return None
        return self.labels.setdefault(snapshot_id, f"snapshot {len(self.labels)}")

    def snapshot(self, number: int) -> str:
        ids = list(self.labels)
        return ids[number % len(ids)]

    def run(self, step: Step) -> Any:
        """What the step returned, or the class and kind of what it raised, with all conflicts."""
        try:
            value = getattr(self, step.name)(**step.arguments)
        except (KeyboardInterrupt, SystemExit, AssertionError):
            raise
        except BaseException as error:  # noqa: BLE001 - official code panics outside of Exception
            return self._failure(error)
        return self.label(value) if is_id(value) else value

    def _failure(self, error: BaseException) -> Any:
        kind = getattr(error, "kind", None)
        name = type(error).__name__ if kind is None else f"{type(error).__name__} {kind}"
        if isinstance(error, self.library.RebaseFailedError):
            conflicts = sorted(map(described, error.conflicts))
            return {"error": name, "at": self.label(error.snapshot), "conflicts": conflicts}
        if isinstance(error, self.library.ConflictError):
            parents = error.expected_parent, error.actual_parent
            return {"error": name, "parents": list(map(self.label, parents))}
        return {"error": name}

    # -- opening

    def opening(self, settings: Settings) -> dict[str, Any]:
        library = self.library
        prefix = f"file://{self.source}/"
        store = library.local_filesystem_store(str(self.source))
        config = library.RepositoryConfig(
            inline_chunk_threshold_bytes=settings.inline_bytes,
            num_updates_per_repo_info_file=settings.updates_per_file,
            manifest=library.ManifestConfig(splitting=self._splitting(settings.split)),
        )
        config.set_virtual_chunk_container(library.VirtualChunkContainer(prefix, store, "source"))
        if not self.is_official:
            config.manifest.max_refs_per_manifest = settings.refs_per_manifest
            if settings.packing:
                config.packing = library.PackingConfig(target_size_bytes=100)
        access = {prefix: library.credentials.LocalFileSystemAccess}
        return {"config": config, "authorize_virtual_chunk_access": access}

    def _splitting(self, split: str) -> Any:
        arrays = self.library.ManifestSplitCondition
        axes = self.library.ManifestSplitDimCondition
        rules: dict[str, Any] = {
            "none": None,
            "one": {arrays.AnyArray(): {axes.Any(): 1}},
            "two": {arrays.name_matches("^[ax]$"): {axes.Axis(0): 2}},
            "named": {
                arrays.path_matches("^/g"): {axes.DimensionName("x"): 1, axes.Any(): 3},
                arrays.AnyArray(): {axes.Axis(1): 2},
            },
        }
        found = rules[split]
        return found and self.library.ManifestSplittingConfig.from_dict(found)

    def reopen(self, settings: Settings) -> None:
        """Nothing is cached afterwards. The sessions live on with what they were opened with."""
        self.settings = settings
        self.repository = self.opened(self.folder)

    def opened(self, folder: Path) -> Any:
        """The repository in a folder, whoever wrote it."""
        storage = self.library.local_filesystem_storage(str(folder))
        return self.library.Repository.open(storage, **self.opening(self.settings))

    def open(self, session: int, branch: str, rearrange: bool) -> None:
        kind = "rearrange_session" if rearrange else "writable_session"
        self.sessions[session] = getattr(self.repository, kind)(branch)

    def renew(self, session: int, branch: str) -> Any:
        """A new session in place of one that is at its end."""
        if not self.sessions[session].read_only:
            return SKIPPED
        self.sessions[session] = self.repository.writable_session(branch)
        return None

    # -- nodes

    def _get(self, session: int, key: str) -> bytes | None:
        value = sync(self.sessions[session].store.get(key, PROTOTYPE))
        return None if value is None else value.to_bytes()

    def _set(self, session: int, key: str, data: bytes) -> None:
        sync(self.sessions[session].store.set(key, PROTOTYPE.buffer.from_bytes(data)))

    def _document(self, session: int, path: str) -> Document | None:
        data = self._get(session, _key(path, "zarr.json"))
        return None if data is None else json.loads(data)

    def array(self, session: int, path: str) -> Document | None:
        """The document of an array, if there is one at the path."""
        found = self._document(session, path)
        return found if found is not None and found["node_type"] == "array" else None

    def nodes(self, session: int) -> list[str]:
        """The paths of all nodes."""
        return sorted(sync(_node_paths(self.sessions[session].store)))

    def node(self, session: int, where: Where, node_type: str | None = None) -> str:
        """The path that is meant; where there is no such node, one that is not there."""
        if isinstance(where, str):
            return where
        paths = self.nodes(session)
        if node_type is not None:
            found = {path: self._document(session, path) for path in paths}
            paths = [path for path, it in found.items() if it and it["node_type"] == node_type]
        return paths[where % len(paths)] if paths else "nothing"

    def document(self, session: int, path: str, document: Document, inside: bool) -> Any:
        """Create a node or replace its document; with `inside` only where there is a group."""
        if inside and path:
            above = self._document(session, path.rpartition("/")[0])
            if above is None or above["node_type"] != "group":
                return SKIPPED
        there = self.array(session, path)
        rank = None if there is None else len(there["shape"])
        if rank not in (None, len(document.get("shape", [0] * (rank or 0)))):
            return SKIPPED  # a change of rank is a case of tests/store
        self._set(session, _key(path, "zarr.json"), documents.encoded(document))
        return None

    def change(self, session: int, path: Where, members: Document) -> Any:
        path = self.node(session, path)
        there = self._document(session, path)
        if there is None:
            return SKIPPED
        changed = documents.with_members(there, members)
        self._set(session, _key(path, "zarr.json"), documents.encoded(changed))
        return None

    def reshape(self, session: int, path: Where, cells: list[int], rest: int, by_zarr: bool) -> Any:
        path = self.node(session, path, "array")
        there = self.array(session, path)
        if there is None:
            return SKIPPED
        changed = documents.resized(there, cells, rest)
        if by_zarr:
            self._opened(session, path).resize(tuple(changed["shape"]))
        else:
            self._set(session, _key(path, "zarr.json"), documents.encoded(changed))
        return None

    def delete_node(self, session: int, path: Where) -> None:
        path = self.node(session, path)
        sync(self.sessions[session].store.delete(_key(path, "zarr.json")))

    def delete_dir(self, session: int, path: Where, below: str) -> None:
        path = self.node(session, path)
        sync(self.sessions[session].store.delete_dir(path + below))

    def clear(self, session: int) -> None:
        sync(self.sessions[session].store.clear())

    def move(self, session: int, source: Where, into: int | None, name: str) -> None:
        """To a name in one of the groups, or to a path."""
        source = self.node(session, source)
        self.sessions[session].move(f"/{source}", f"/{self.target(session, into, name)}")

    def target(self, session: int, into: int | None, name: str) -> str:
        """Where a move leads."""
        return name if into is None else _key(self.node(session, into, "group"), name)

    # -- chunks

    def _opened(self, session: int, path: str) -> Any:
        return zarr.open_array(self.sessions[session].store, path=path, mode="r+", zarr_format=3)

    def _chunk_key(self, session: int, path: Where, index: list[int], outside: int) -> str | None:
        """The key of a chunk with an index of the array's rank; None where there is no array."""
        path = self.node(session, path, "array")
        there = self.array(session, path)
        if there is None:
            return None
        cells = documents.num_cells(there)
        folded = [at % max(1, cell + outside) for at, cell in zip(index, cells, strict=False)]
        return _key(path, "/".join(["c", *map(str, folded)]))

    def chunk(
        self, session: int, path: Where, index: list[int], outside: int, length: int, byte: int
    ) -> Any:
        key = self._chunk_key(session, path, index, outside)
        if key is None:
            return SKIPPED
        self._set(session, key, bytes((byte + at) % 256 for at in range(length)))
        return None

    def virtual(self, session: int, path: Where, index: list[int], at: int, length: int) -> Any:
        key = self._chunk_key(session, path, index, 0)
        if key is None:
            return SKIPPED
        location = f"file://{self.source}/data.bin"
        self.sessions[session].store.set_virtual_ref(key, location, offset=at, length=length)
        return None

    def delete_chunk(self, session: int, path: Where, index: list[int], outside: int) -> Any:
        key = self._chunk_key(session, path, index, outside)
        if key is None:
            return SKIPPED
        sync(self.sessions[session].store.delete(key))
        return None

    def write(self, session: int, path: Where, bounds: list[list[int]], value: int) -> Any:
        """Through Zarr: parts of chunks, and the fill value, which makes chunks go away."""
        path = self.node(session, path, "array")
        if self.array(session, path) is None:
            return SKIPPED
        opened = self._opened(session, path)
        region = tuple(
            slice(low % (size + 1), high % (size + 1))
            for (low, high), size in zip(bounds, opened.shape, strict=False)
        )
        opened[region] = np.asarray(value).astype(opened.dtype)
        return None

    def shift(self, session: int, path: Where, offset: list[int]) -> Any:
        path = self.node(session, path, "array")
        there = self.array(session, path)
        if _is_empty(there):
            return SKIPPED
        rank = 1 if there is None else len(there["shape"])
        return self.sessions[session].shift_array(f"/{path}", offset[:rank])

    def reindex(self, session: int, path: Where, how: str, back: bool) -> Any:
        path = self.node(session, path, "array")
        there = self.array(session, path)
        if _is_empty(there):
            return SKIPPED
        cells = [1] if there is None else documents.num_cells(there)
        forward, backward = _relabelling(how, cells)
        return self.sessions[session].reindex_array(f"/{path}", forward, backward if back else None)

    # -- transactions

    def _solver(self, name: str | None) -> Any:
        return None if name is None else self.solvers[name]

    def commit(
        self, session: int, message: str, solver: str | None, metadata: Any, empty: bool
    ) -> Any:
        return self.sessions[session].commit(
            message, metadata, rebase_with=self._solver(solver), rebase_tries=3, allow_empty=empty
        )

    def amend(self, session: int, message: str, metadata: Any, empty: bool) -> Any:
        return self.sessions[session].amend(message, metadata=metadata, allow_empty=empty)

    def flush(self, session: int, message: str, metadata: Any) -> Any:
        return self.sessions[session].flush(message, metadata=metadata)

    def discard(self, session: int) -> Any:
        return self.sessions[session].discard_changes()

    def rebase(self, session: int, solver: str) -> Any:
        return self.sessions[session].rebase(self._solver(solver))

    # -- the repository

    def create_branch(self, branch: str, snapshot: int) -> None:
        self.repository.create_branch(branch, self.snapshot(snapshot))

    def delete_branch(self, branch: str) -> None:
        self.repository.delete_branch(branch)

    def reset_branch(self, branch: str, snapshot: int, expected: str | None) -> None:
        tip = None
        if expected is not None:
            is_tip = expected == "tip"
            tip = self.repository.lookup_branch(branch) if is_tip else self.snapshot(snapshot + 1)
        self.repository.reset_branch(branch, self.snapshot(snapshot), from_snapshot_id=tip)

    def create_tag(self, tag: str, snapshot: int) -> None:
        self.repository.create_tag(tag, self.snapshot(snapshot))

    def delete_tag(self, tag: str) -> None:
        self.repository.delete_tag(tag)

    def rewrite(self, branch: str, message: str, method: str) -> Any:
        return self.repository.rewrite_manifests(message, branch=branch, commit_method=method)


async def _node_paths(store: Any) -> list[str]:
    return [
        key.removesuffix("zarr.json").removesuffix("/")
        async for key in store.list()
        if key.endswith("zarr.json")
    ]


def _is_empty(array: Document | None) -> bool:
    """Whether a dimension has no chunks; official takes chunk 0 for one of them until the commit,
    which is in docs/differences.md and would make every later step differ."""
    return array is not None and 0 in documents.num_cells(array)


def _key(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _relabelling(
    how: str, cells: Sequence[int]
) -> tuple[Callable[[Index], Index | None], Callable[[Index], Index | None]]:
    """New indices for chunks, and the way back."""

    def reverse(index: Index) -> Index:
        return [max(0, cell - 1 - at) for at, cell in zip(index, cells, strict=True)]

    def roll(index: Index, by: int = 1) -> Index:
        found = list(index)
        return [(found[0] + by) % max(1, cells[0]), *found[1:]] if found else found

    def back(index: Index) -> Index:
        return roll(index, -1)

    def halves(index: Index) -> Index | None:
        found = list(index)
        return None if found and found[0] % 2 else reverse(found)

    def one(index: Index) -> Index:
        return [0 for _ in index]

    def same(index: Index) -> Index:
        return list(index)

    ways: dict[str, Any] = {
        "reverse": (reverse, reverse),
        "roll": (roll, back),
        "halves": (halves, halves),
        "one": (one, same),
    }
    found: tuple[Any, Any] = ways[how]
    return found
