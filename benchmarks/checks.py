"""Both sides must yield the same before it means anything which is faster.

Started as `python -m benchmarks.checks FOLDER ROWS FUNCTION:DATASET...`, in a process of its own.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks import official
from benchmarks.data import CHUNK_BYTES, Corpus, committed_file, grid_index
from benchmarks.repositories import substitute
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.file import decode_manifest
from icefloe.format.snapshot.encode import encode_snapshot
from icefloe.format.snapshot.file import decode_snapshot
from icefloe.format.snapshot.nodes import Node
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log

_BASE32 = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """References of one array, in the form that can be compared."""

    index: NDArray[Any]
    kind: NDArray[Any]
    path: pa.Array
    offset: NDArray[Any]
    length: NDArray[Any]

    @classmethod
    def of_official(cls, root: Path) -> Columns:
        session = official.open_repository(root).readonly_session("main")
        index, kind, path, offset, length, _ = zip(*official.read_columns(session), strict=True)
        return cls(
            np.concatenate(index),
            np.concatenate(kind),
            pa.concat_arrays([pa.array(texts, pa.string()) for texts in path]),
            np.concatenate(offset),
            np.concatenate(length),
        )

    @classmethod
    def of_refs(cls, refs: ChunkRefs) -> Columns:
        if refs.location is not None:
            path = refs.location.to_arrow().cast(pa.string())
        else:
            assert refs.chunk_id is not None
            path = base32_texts(refs.chunk_id)
        return cls(refs.index, refs.kind, path, refs.offset, refs.length)

    @classmethod
    def expected(cls, corpus: Corpus, dataset: str) -> Columns:
        if dataset == "native":
            ids = corpus.chunk_ids()
            refs = ChunkRefs.native(grid_index(corpus.grid), ids, 0, CHUNK_BYTES)
            return cls.of_refs(refs)
        source = corpus.references(dataset)
        return cls(
            grid_index(corpus.grid),
            np.full(corpus.rows, ChunkKind.VIRTUAL, np.uint8),
            pa.array(source.locations, pa.string()),
            source.offset,
            source.length,
        )

    def require_equal(self, other: Columns, what: str) -> None:
        for name in ("index", "kind", "offset", "length"):
            mine, yours = getattr(self, name), getattr(other, name)
            assert np.array_equal(mine, yours), f"{what}: column {name} differs"
        assert self.path.equals(other.path), f"{what}: locations or chunk ids differ"


def base32_texts(ids: NDArray[np.uint8]) -> pa.Array:
    """Chunk ids as official spells them."""
    bits = np.pad(np.unpackbits(ids, axis=1), ((0, 0), (0, 4))).reshape(len(ids), 20, 5)
    text = _BASE32[bits @ np.array([16, 8, 4, 2, 1], np.uint8)]
    offsets = np.arange(0, text.size + 1, 20, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))]
    return pa.Array.from_buffers(pa.string(), len(ids), buffers)


def check_decode(corpus: Corpus, dataset: str) -> None:
    """Official and icefloe read the same from a manifest: what was handed in."""
    root = corpus / dataset
    refs = decode_manifest(committed_file(root, "manifests").read_bytes()).arrays[0].refs
    expected = Columns.expected(corpus, dataset)
    expected.require_equal(Columns.of_refs(refs), f"{dataset} as icefloe reads it")
    expected.require_equal(Columns.of_official(root), f"{dataset} as official reads it")


def check_write(corpus: Corpus, dataset: str) -> None:
    """Official reads from our manifest, of either spec version, what was handed in."""
    expected = Columns.expected(corpus, dataset)
    source = corpus.references(dataset)
    refs = ChunkRefs.virtual(expected.index, source.locations, source.offset, source.length)
    for spec_version in (1, 2):
        with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
            root = Path(folder) / "copy"
            shutil.copytree(corpus / dataset, root)
            substitute(root, refs, spec_version=spec_version)
            what = f"{dataset} as icefloe writes it with spec {spec_version}"
            expected.require_equal(Columns.of_official(root), what)


def check_snapshot(corpus: Corpus, dataset: str) -> None:
    """Both list the same nodes, also from the snapshot that icefloe encodes."""
    path = committed_file(corpus / dataset, "snapshots")
    snapshot = decode_snapshot(path.read_bytes())
    listed = [_node_as_official_shows_it(node) for node in snapshot.nodes]
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        root = Path(folder) / "copy"
        shutil.copytree(corpus / dataset, root)
        committed_file(root, "snapshots").write_bytes(encode_snapshot(snapshot, spec_version=2))
        for place in (corpus / dataset, root):
            shown = official.open_repository(place).inspect_snapshot(path.name)["nodes"]
            assert listed == shown, f"{place}: nodes differ"


def _node_as_official_shows_it(node: Node) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": node.id.text, "path": node.path, "node_type": "group"}
    if node.array is None:
        return shown
    names = node.array.dimension_names or ()
    shape = [
        {"name": name, "array_length": size.array_length, "num_chunks": size.num_chunks}
        for name, size in zip(names, node.array.shape, strict=True)
    ]
    manifests = [
        {"id": ref.id.text, "extents": [list(extent) for extent in ref.extents]}
        for ref in node.array.manifests
    ]
    return shown | {"node_type": "array", "shape": shape, "manifest_refs": manifests}


def check_transaction_log(corpus: Corpus, dataset: str) -> None:
    """Both find the same changed chunks, also in the log that icefloe encodes."""
    log = decode_transaction_log(committed_file(corpus / dataset, "transactions").read_bytes())
    [index] = log.updated_chunks.values()
    assert np.array_equal(index, grid_index(corpus.grid)), "icefloe reads other chunks"
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        root = Path(folder) / "copy"
        shutil.copytree(corpus / dataset, root)
        committed_file(root, "transactions").write_bytes(encode_transaction_log(log))
        for place in (corpus / dataset, root):
            [changed] = official.read_difference(place).updated_chunks.values()
            assert np.array_equal(changed, index), f"{place}: changed chunks differ"


CHECKS: dict[str, Callable[[Corpus, str], None]] = {
    "decode": check_decode,
    "write": check_write,
    "snapshot": check_snapshot,
    "transaction_log": check_transaction_log,
}


def main(folder: str, rows: str, *wanted: str) -> None:
    """Run the checks of these scenarios."""
    corpus = Corpus(Path(folder), int(rows))
    for item in wanted:
        function, dataset = item.split(":")
        CHECKS[function](corpus, dataset)


if __name__ == "__main__":
    main(*sys.argv[1:])
