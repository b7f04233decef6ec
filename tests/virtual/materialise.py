"""A committed repository as a plain Zarr store in memory, virtual chunks read from their files."""

from __future__ import annotations

from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from icefloe import Repository
from icefloe.format.chunk_refs import ChunkKind
from icefloe.repo.sessions import all_chunks
from icefloe.storage.run import run_blocking
from icefloe.virtual.access import SourceAccess
from tests.virtual.decoding import bytes_at


def materialise(repository: Repository, branch: str = "main") -> Any:
    """Everything a reader of the branch gets; checksums of references are compared on the way."""
    session = repository.readonly_session(branch)
    state, handle = session._state, session._handles.blocking
    store, buffer = MemoryStore(), default_buffer_prototype().buffer
    for path in state.all_paths():
        node = state.node(path)
        prefix = path.strip("/")
        name = f"{prefix}/zarr.json" if prefix else "zarr.json"
        sync(store.set(name, buffer.from_bytes(node.user_data)))
        if node.array is None:
            continue
        refs = run_blocking(all_chunks(handle, state, node))
        for row in range(len(refs)):
            ref = refs.row(row)
            key = "/".join([prefix, "c", *map(str, refs.index[row].tolist())])
            if ref.kind == ChunkKind.VIRTUAL:
                assert ref.location is not None
                found = SourceAccess().open(ref.location).version
                assert ref.etag or ref.last_modified, "a reference without a checksum"
                assert ref.etag in (None, found.etag)
                assert ref.last_modified in (None, found.last_modified)
                data = bytes_at(ref.location, ref.offset, ref.length, SourceAccess())
            else:
                got = sync(session.store.get(key, default_buffer_prototype()))
                assert got is not None
                data = got.to_bytes()
            sync(store.set(key, buffer.from_bytes(data)))
    return store
