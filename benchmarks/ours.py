"""What icefloe does. Never imports official icechunk."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.data import Corpus, committed_file, grid_index
from benchmarks.steps import PREPARED, Scenario, Step
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.manifest.encode import encode_manifest
from icefloe.format.manifest.file import ArrayManifest, Manifest, decode_manifest
from icefloe.format.repo_info.file import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot.encode import encode_snapshot
from icefloe.format.snapshot.file import Snapshot, decode_snapshot
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.ids import ManifestId, NodeId

LOOKUPS = 2000


def decode(corpus: Corpus, dataset: str) -> Scenario:
    """Decode a manifest, look chunks up, then make every column, down to a list of strings."""
    coordinates = corpus.coordinates(LOOKUPS)
    path = committed_file(corpus / dataset, "manifests")
    size = path.stat().st_size
    yield PREPARED
    refs = decode_manifest(path.read_bytes()).arrays[0].refs
    yield Step("decode", size_bytes=size)
    for at in coordinates:
        refs.get(at)
    yield Step("look up", times=LOOKUPS)
    if refs.location is not None:
        refs.location.values.strings()
    yield Step("inflate", size_bytes=size)
    texts = [] if refs.location is None else refs.location.to_arrow().cast(pa.string()).to_pylist()
    yield Step("to list", size_bytes=size)
    del texts


@dataclass(frozen=True, slots=True)
class _Commit:
    """The parts of a commit that are small, taken from the repository official wrote."""

    root: Path
    node_id: NodeId
    snapshot: Snapshot
    repo_info: RepoInfo

    @classmethod
    def like(cls, source: Path, target: Path) -> _Commit:
        snapshot = decode_snapshot(committed_file(source, "snapshots").read_bytes())
        array = next(node for node in snapshot.nodes if node.path == "/a")
        repo_info = decode_repo_info((source / "repo").read_bytes())
        return cls(target, array.id, snapshot, repo_info)

    def write_manifest(self, refs: ChunkRefs, spec_version: int) -> int:
        manifest = Manifest(ManifestId(bytes(12)), (ArrayManifest(self.node_id, refs),))
        data = encode_manifest(manifest, spec_version=spec_version)
        return (self.root / f"manifest-{spec_version}").write_bytes(data)

    def write_rest(self, index: NDArray[np.uint32], spec_version: int) -> None:
        log = TransactionLog(self.snapshot.id, updated_chunks={self.node_id: index})
        data = encode_transaction_log(log, spec_version=spec_version)
        (self.root / f"log-{spec_version}").write_bytes(data)
        data = encode_snapshot(self.snapshot, spec_version=spec_version)
        (self.root / f"snapshot-{spec_version}").write_bytes(data)
        if spec_version > 1:
            (self.root / "repo").write_bytes(encode_repo_info(self.repo_info))


def write(corpus: Corpus, dataset: str) -> Scenario:
    """Hand in references twice, from strings and from an Arrow column, then write all files."""
    source = corpus.references(dataset)
    column = pa.array(source.locations).dictionary_encode()
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        commit = _Commit.like(corpus / dataset, Path(folder))
        yield PREPARED
        index = grid_index(source.grid)
        refs = ChunkRefs.virtual(index, column, source.offset, source.length)
        yield Step("hand in Arrow")
        del index, refs
        index = grid_index(source.grid)
        refs = ChunkRefs.virtual(index, source.locations, source.offset, source.length)
        yield Step("hand in list")
        for spec_version in (2, 1):
            size = commit.write_manifest(refs, spec_version)
            yield Step(f"manifest {spec_version}", size_bytes=size)
            commit.write_rest(refs.index, spec_version)
            yield Step(f"rest {spec_version}")


def snapshot(corpus: Corpus, dataset: str) -> Scenario:
    """Decode a snapshot, encode it, then list its nodes."""
    path = committed_file(corpus / dataset, "snapshots")
    size = path.stat().st_size
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        yield PREPARED
        decoded = decode_snapshot(path.read_bytes())
        yield Step("decode", size_bytes=size)
        changed = replace(decoded, message="encoded anew")
        size = (Path(folder) / "snapshot").write_bytes(encode_snapshot(changed, spec_version=2))
        yield Step("encode", size_bytes=size)
        nodes = list(decoded.nodes)
        yield Step("list")
        del nodes


def transaction_log(corpus: Corpus, dataset: str) -> Scenario:
    """Decode a transaction log, encode it, then make lists of it."""
    path = committed_file(corpus / dataset, "transactions")
    size = path.stat().st_size
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        yield PREPARED
        log = decode_transaction_log(path.read_bytes())
        yield Step("decode", size_bytes=size)
        size = (Path(folder) / "log").write_bytes(encode_transaction_log(log))
        yield Step("encode", size_bytes=size)
        lists = {node: index.tolist() for node, index in log.updated_chunks.items()}
        yield Step("to list")
        del lists
