"""Looking one chunk up in a large manifest, without decoding the rest of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icefloe.errors import InvalidInputError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.encode import encode_manifest
from icefloe.format.manifest.file import ArrayManifest, Manifest, decode_manifest
from icefloe.ids import ManifestId, NodeId

NODE, OTHER = NodeId(b"the node"), NodeId(b"nodeless")
GRID = (40, 50, 20)


def refs_of(kind: ChunkKind) -> ChunkRefs:
    every = np.stack(np.unravel_index(np.arange(np.prod(GRID)), GRID), axis=1).astype(np.uint32)
    index = every[every.sum(axis=1) % 3 != 0]  # holes
    count = len(index)
    numbers = np.arange(count, dtype=np.uint64)
    kinds = np.full(count, kind, np.uint8)
    if kind == ChunkKind.NATIVE:
        ids = np.zeros((count, 12), np.uint8)
        ids[:, :4] = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(-1, 4)
        return ChunkRefs(index, kinds, numbers * 8, numbers + 1, ids)
    texts = pa.array([f"s3://bucket/file-{number % 7}" for number in range(count)])
    table = pa.table(
        {
            "index": pa.FixedSizeListArray.from_arrays(pa.array(index.reshape(-1)), 3),
            "kind": pa.array(kinds),
            "offset": pa.array(numbers * 8),
            "length": pa.array(numbers + 1),
            "location": texts,
            "last_modified": pa.array(np.full(count, 7, np.uint32)),
        }
    )
    return ChunkRefs.from_arrow(table)


@pytest.fixture(scope="module", params=[ChunkKind.NATIVE, ChunkKind.VIRTUAL])
def file(request: pytest.FixtureRequest) -> bytes:
    manifest = Manifest(ManifestId(b"a manifest  "), (ArrayManifest(NODE, refs_of(request.param)),))
    return encode_manifest(manifest)


def test_a_search_finds_what_the_columns_have(file: bytes) -> None:
    columns = decode_manifest(file, lazy_from=1 << 30)
    lazy = decode_manifest(file, lazy_from=0)
    rng = np.random.default_rng(1)
    wanted = [(0, 0, 0), (0, 0, 1), (39, 49, 19), (39, 49, 18), (40, 0, 0), (0, 0, 2**32 - 1)]
    wanted += [tuple(row) for row in rng.integers(0, GRID, (200, 3)).tolist()]
    found = [lazy.get(NODE, at) for at in wanted]
    assert found == [columns.get(NODE, at) for at in wanted]
    assert any(found)
    assert not all(found)
    assert lazy.equals(columns)


def test_the_file_is_kept_until_many_are_asked_for(file: bytes) -> None:
    manifest = decode_manifest(file, lazy_from=0)
    [array] = manifest.arrays
    before = array.nbytes
    assert manifest.num_chunk_refs == len(array) == len(array.refs)
    assert array.nbytes == array.refs.nbytes != before
    searched = decode_manifest(file, lazy_from=0)
    for _ in range(8):
        assert searched.get(NODE, (0, 0, 1)) is not None
        assert searched.nbytes == before
    assert searched.get(NODE, (0, 0, 1)) is not None
    assert searched.nbytes == array.nbytes


def test_another_node_or_number_of_dimensions(file: bytes) -> None:
    manifest = decode_manifest(file, lazy_from=0)
    assert manifest.get(OTHER, (0, 0, 1)) is None
    with pytest.raises(InvalidInputError, match=r"\(0, 1\) has 2 dimensions, the array has 3"):
        manifest.get(NODE, (0, 1))
