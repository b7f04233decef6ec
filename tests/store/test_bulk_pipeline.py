"""The bulk pipeline reads and writes what Zarr's own pipeline does, in fewer steps."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.abc.codec import BytesBytesCodec
from zarr.core.codec_pipeline import BatchedCodecPipeline

import icefloe
from icefloe import Repository, RepositoryConfig, Storage, in_memory_storage
from icefloe.store import pipeline
from icefloe.store.pipeline import BulkCodecPipeline
from icefloe.testing.latency import LatencyStorage
from tests.proxy import misbehaving_proxy
from tests.servers import S3Server

pytestmark = [
    pytest.mark.skipif(
        not hasattr(zarr.codecs.BytesCodec, "_decode_sync"),
        reason="codecs of this Zarr work in an event loop only, so the bulk pipeline hands over to "
        "Zarr's own",
    ),
    # Texts of fixed length and some codecs are not in the specification of Zarr version 3.
    pytest.mark.filterwarnings("ignore:The data type", "ignore:The codec"),
]

DTYPES = ["u1", "<i2", ">i4", "<f4", "<f8", "<c8", "?", "<M8[s]", "<U3", "S4"]
COMPRESSORS: list[Any] = [
    None,
    zarr.codecs.ZstdCodec(level=1),
    zarr.codecs.BloscCodec(),
    [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()],
]


@pytest.fixture(autouse=True)
def bulk(request: pytest.FixtureRequest) -> Iterator[None]:
    """Chunks of any size are treated as large ones, unless a test chooses otherwise: threads decode
    them, straight into the values where that can be done."""
    with (
        pytest.MonkeyPatch.context() as patch,
        zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}),
    ):
        patch.setattr(pipeline, "THREADS_FROM_BYTES", getattr(request, "param", 0))
        icefloe.use_bulk_pipeline()
        yield


@pytest.fixture
def only_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zarr's own pipeline is not to be used."""

    async def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("handed over to Zarr's own pipeline")

    monkeypatch.setattr(BatchedCodecPipeline, "read", refuse)
    monkeypatch.setattr(BatchedCodecPipeline, "write", refuse)


large_and_small = pytest.mark.parametrize(
    "bulk", [0, pipeline.THREADS_FROM_BYTES], indirect=True, ids=["large", "small"]
)


def values(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    numbers = np.random.default_rng(seed).integers(0, 4, shape)
    kind = np.dtype(dtype).kind
    if kind in "US":
        return numbers.astype(dtype)
    return (numbers > 1).astype(dtype) if kind == "b" else numbers.astype(dtype)


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[str, Any]:
    """A kind of indexing, and an index of that kind."""
    kind = draw(st.sampled_from(["basic", "orthogonal", "coordinate", "mask"]))
    if kind == "basic":
        return kind, tuple(draw(basic(size)) for size in shape)
    if kind == "orthogonal":
        return kind, tuple(draw(st.one_of(basic(size), few(size))) for size in shape)
    if kind == "coordinate":
        flat = draw(few(int(np.prod(shape))))
        return kind, tuple(np.array(axis) for axis in np.unravel_index(flat, shape))
    return kind, np.random.default_rng(draw(st.integers(0, 99))).random(shape) < 0.4


def few(size: int) -> st.SearchStrategy[list[int]]:
    """Different numbers, because of points that are written twice either may win."""
    return st.lists(st.integers(0, size - 1), min_size=1, max_size=4, unique=True)


def basic(size: int) -> st.SearchStrategy[Any]:
    def span(ends: tuple[int, int], step: int) -> slice:
        return slice(min(ends), max(ends) + 1, step)

    ends = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    return st.one_of(
        st.integers(0, size - 1), st.builds(span, ends, st.sampled_from([1, 1, 2])), st.just(...)
    ).map(lambda index: slice(None) if index is ... else index)


def picked(array: Any, kind: str, index: Any) -> Any:
    """The selection, from a Zarr or a numpy array."""
    if isinstance(array, np.ndarray):
        return array[np_index(array.shape, kind, index)]
    if kind == "basic":
        return array[index]
    return getattr(array, {"orthogonal": "oindex", "coordinate": "vindex", "mask": "vindex"}[kind])[
        index
    ]


def put(array: Any, kind: str, index: Any, value: Any) -> None:
    """Assign to the selection."""
    if isinstance(array, np.ndarray):
        array[np_index(array.shape, kind, index)] = value
    elif kind == "basic":
        array[index] = value
    elif kind == "orthogonal":
        array.oindex[index] = value
    else:
        array.vindex[index] = value


def np_index(shape: tuple[int, ...], kind: str, index: Any) -> Any:
    if kind != "orthogonal" or not any(isinstance(axis, list) for axis in index):
        return index
    # numpy mixes several lists; a grid of all of them is what orthogonal indexing means.
    grid = np.ix_(
        *(
            np.arange(size)[axis].reshape(-1) if not isinstance(axis, list) else axis
            for axis, size in zip(index, shape, strict=True)
        )
    )
    return _Dropped(grid, tuple(at for at, axis in enumerate(index) if isinstance(axis, int)))


class _Dropped(tuple[Any, ...]):
    """A grid, and the axes that single numbers drop."""

    __slots__ = ()

    def __new__(cls, grid: Any, axes: tuple[int, ...]) -> Any:
        if not axes:
            return grid
        return tuple(part.squeeze(axes) if part.ndim else part for part in grid)


@large_and_small
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_programs_are_what_numpy_and_zarr_make_of_them(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunks = tuple(draw(st.integers(1, size)) for size in shape)
    shards: Any = None
    if draw(st.integers(0, 2)) == 0:
        shards = {
            "shape": tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks),
            "index_location": draw(st.sampled_from(["start", "end"])),
        }
    dtype = draw(st.sampled_from(DTYPES))
    config = RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = draw(st.sampled_from([0, 16, 512]))
    if draw(st.booleans()):
        config.packing = icefloe.PackingConfig(max_chunk_size_bytes=64)
    storage = in_memory_storage()
    if draw(st.booleans()):
        storage = LatencyStorage(storage)  # no pause, but its driver is not called a local one
    repo = Repository.create(storage, config)
    session = repo.writable_session("main")
    filters = [zarr.codecs.TransposeCodec(order=tuple(reversed(range(len(shape)))))]
    array = zarr.create_array(
        session.store,
        name="a",
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
        compressors=draw(st.sampled_from(COMPRESSORS)),
        filters=filters if draw(st.booleans()) else None,
        fill_value=values(dtype, (1,), draw(st.integers(0, 3)))[0],
        config={
            "write_empty_chunks": draw(st.booleans()),
            "order": draw(st.sampled_from(["C", "F"])),
        },
    )
    assert isinstance(array.async_array.codec_pipeline, BulkCodecPipeline)
    model = np.full(shape, array.fill_value, dtype)
    for step in range(draw(st.integers(1, 4))):
        kind, index = draw(selections(shape))
        chosen = picked(model, kind, index)
        value = values(dtype, chosen.shape, step)
        if draw(st.integers(0, 3)) == 0:
            value = values(dtype, (1,), step)[0]  # one value for all of it
        put(array, kind, index, value)
        put(model, kind, index, value)
        np.testing.assert_array_equal(array[...], model)
        if draw(st.integers(0, 2)) == 0:
            session.commit(f"step {step}", allow_empty=True)
            session = repo.writable_session("main")
            array = zarr.open_array(session.store, path="a")
        kind, index = draw(selections(shape))
        np.testing.assert_array_equal(picked(array, kind, index), picked(model, kind, index))
        with zarr.config.set(
            {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
        ):
            plain = zarr.open_array(session.store, path="a")
        assert type(plain.async_array.codec_pipeline) is BatchedCodecPipeline
        np.testing.assert_array_equal(plain[...], model)


@pytest.mark.usefixtures("only_bulk")
def test_on_every_storage(storage: Storage) -> None:
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    written = {}
    for name, chunks, compressors in (
        ("large", (64, 1024), None),
        ("compressed", (32, 64), zarr.codecs.ZstdCodec()),
        ("tiny", (1, 8), None),
    ):
        shape = tuple(4 * size for size in chunks)
        array = group.create_array(
            name, shape=shape, chunks=chunks, dtype="f4", compressors=compressors
        )
        written[name] = np.random.default_rng(0).random(shape, "f4")
        array[...] = written[name]
        array[1:3, :5] = 7
        written[name][1:3, :5] = 7
        np.testing.assert_array_equal(array[...], written[name])
    session.commit("data")
    store = repo.readonly_session("main").store
    for name, expected in written.items():
        read: Any = zarr.open_array(store, path=name, mode="r")
        np.testing.assert_array_equal(read[...], expected)
        np.testing.assert_array_equal(read[1::2, 3], expected[1::2, 3])


@pytest.mark.usefixtures("only_bulk")
def test_parts_of_shards_are_read_with_few_requests(s3_server: S3Server) -> None:
    with misbehaving_proxy(s3_server) as proxy:
        storage = proxy.storage()
        session = Repository.create(storage).writable_session("main")
        values = np.random.default_rng(0).integers(0, 2**16, (32, 1024), "u2")
        array: Any = zarr.create_array(
            session.store, name="a", shape=(32, 1024), chunks=(1, 128), shards=(4, 1024), dtype="u2"
        )
        array[...] = values
        session.commit("shards")
        store = Repository.open(storage).readonly_session("main").store
        read: Any = zarr.open_array(store, path="a", mode="r")
        read[0, 0]  # manifests are loaded
        proxy.seen.clear()
        np.testing.assert_array_equal(read[:, 300:500], values[:, 300:500])
        assert len(proxy.seen) == 16, "an index and one range of each of 8 shards"
        proxy.seen.clear()
        np.testing.assert_array_equal(read[:], values)
        assert len(proxy.seen) == 8


@pytest.mark.usefixtures("only_bulk")
def test_large_chunks_are_decoded_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Repository.create(in_memory_storage()).writable_session("main").store
    array: Any = zarr.create_array(store, name="a", shape=(90, 64), chunks=(20, 64), dtype="f8")
    written = np.random.default_rng(0).random((90, 64))
    array[:] = written
    made = []
    monkeypatch.setattr(pipeline, "scatter", lambda chunk, item, *_: made.append(item[3]))
    assert np.array_equal(array[:80], written[:80])
    assert np.array_equal(array[20:60, :], written[20:60])
    assert made == []
    array[:]  # the last chunk is larger than what is wanted of it
    assert made == [(slice(80, 90), slice(0, 64))]
    array[:, 1:]
    assert len(made) == 6


@pytest.mark.parametrize("num_bytes", [8, 72, 88, 160])
def test_a_chunk_of_another_size_is_refused(num_bytes: int) -> None:
    store = Repository.create(in_memory_storage()).writable_session("main").store
    array: Any = zarr.create_array(store, name="a", shape=(40,), chunks=(10,), dtype="f8")
    array[:] = 1.0
    frame = numcodecs.Zstd().encode(bytes(num_bytes))
    data = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(frame))
    asyncio.run(store.set("a/c/1", data))
    with pytest.raises(ValueError, match=r"reshape|multiple of element size"):
        array[:]


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    prefix = f"file://{tmp_path}/"
    (tmp_path / "shards").write_bytes(bytes(200))
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    access = {prefix: icefloe.credentials.LocalFileSystemAccess}
    repo = Repository.create(in_memory_storage(), config, authorize_virtual_chunk_access=access)
    store = repo.writable_session("main").store
    array: Any = zarr.create_array(
        store, name="a", shape=(8,), chunks=(2,), shards=(4,), dtype="u2"
    )
    for shard in range(2):
        store.set_virtual_ref(f"a/c/{shard}", f"{prefix}shards", offset=shard, length=20)
    with pytest.raises(icefloe.StorageError, match="shard 'a/c/0' has 20 bytes"):
        array[2:6]


def test_virtual_chunks_of_one_file_share_requests(tmp_path: Path) -> None:
    data = np.arange(64, dtype="<u2")
    (tmp_path / "source.bin").write_bytes(data.tobytes())
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig.default()
    container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    config.set_virtual_chunk_container(container)
    repo = Repository.create(
        in_memory_storage(),
        config,
        authorize_virtual_chunk_access={prefix: icefloe.credentials.LocalFileSystemAccess},
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="v", shape=(64,), chunks=(4,), dtype="<u2", compressors=None
    )
    for chunk in range(15):
        session.store.set_virtual_ref(
            f"v/c/{chunk}", f"{prefix}source.bin", offset=8 * chunk, length=8
        )
    expected = np.where(np.arange(64) < 60, data, 0)
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(array[30:50], expected[30:50])
    (tmp_path / "source.bin").write_bytes(data.tobytes()[:40])
    with pytest.raises(icefloe.StorageError, match=r"source\.bin"):
        array[...]


@large_and_small
def test_a_missing_chunk_is_reported_where_zarr_is_asked_to() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(8,), chunks=(2,), dtype="i4")
    array[:4] = [1, 2, 3, 4]
    if not hasattr(array.config, "read_missing_chunks"):
        pytest.skip("this Zarr has no read_missing_chunks")
    strict = zarr.open_array(session.store, path="a", config={"read_missing_chunks": False})
    np.testing.assert_array_equal(strict[:4], [1, 2, 3, 4])
    with pytest.raises(Exception, match="c/2"):
        strict[...]


@large_and_small
def test_arrays_that_were_changed_behind_an_open_one_read_as_with_zarrs_pipeline() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(8,), chunks=(2,), dtype="i4")
    array[...] = np.arange(8)
    plain_path = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": plain_path}):
        plain = zarr.open_array(session.store, path="a")
    zarr.open_array(session.store, path="a").resize((4,))
    np.testing.assert_array_equal(array[...], plain[...])
    del zarr.open_group(session.store)["a"]
    np.testing.assert_array_equal(array[...], plain[...])


@pytest.mark.usefixtures("only_bulk")
@pytest.mark.parametrize("bulk", [4], indirect=True)
def test_one_small_chunk_needs_no_task_of_zarr(storage: Storage) -> None:
    session = Repository.create(storage).writable_session("main")
    array: Any = zarr.create_array(
        session.store, name="a", shape=(64, 64), chunks=(8, 8), dtype="f4", fill_value=0
    )
    array[:8, :8] = 1
    array[3, 5] = 2
    array[8:16, 8:16] = 0
    assert array[0, 0] == 1
    np.testing.assert_array_equal(array[3, :8], [1, 1, 1, 1, 1, 2, 1, 1])
    np.testing.assert_array_equal(array[60, 56:], np.zeros(8))
    assert array.nchunks_initialized == 1


@large_and_small
def test_read_only_stores_refuse() -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(2,), dtype="i4")
    session.commit("array")
    array = zarr.open_array(repo.readonly_session("main").store, path="a")
    with pytest.raises(icefloe.ReadOnlyError):
        array[...] = 1


def test_arrays_travel_in_pickles(tmp_path: Path) -> None:
    repo = Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(8,), chunks=(2,), dtype="i4")
    array[...] = np.arange(8)
    session.commit("array")
    array = zarr.open_array(repo.readonly_session("main").store, path="a")
    twin = pickle.loads(pickle.dumps(array))
    assert isinstance(twin.async_array.codec_pipeline, BulkCodecPipeline)
    np.testing.assert_array_equal(twin[...], np.arange(8))


def test_other_stores_work_as_before() -> None:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=(8,), chunks=(3,), dtype="i4")
    array[...] = np.arange(8)
    np.testing.assert_array_equal(array[2:7], np.arange(2, 7))
    icefloe.use_bulk_pipeline(False)
    again = zarr.create_array(zarr.storage.MemoryStore(), shape=(8,), chunks=(3,), dtype="i4")
    assert type(again.async_array.codec_pipeline) is BatchedCodecPipeline


def test_stores_choose_the_pipeline_for_their_own_arrays_only() -> None:
    default = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    zarr.config.set({"codec_pipeline.path": default})
    session = Repository.create(in_memory_storage()).writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(8,), chunks=(3,), dtype="i4")
    assert type(array.async_array.codec_pipeline) is BulkCodecPipeline
    other = zarr.create_array(
        zarr.storage.MemoryStore(), shape=(8,), chunks=(2,), shards=(4,), dtype="i4"
    )
    other[...] = np.arange(8)
    assert type(other.async_array.codec_pipeline) is BatchedCodecPipeline
    sharding: Any = other.async_array.codec_pipeline.array_bytes_codec
    assert type(sharding.codec_pipeline) is BatchedCodecPipeline
    old = zarr.create_array(
        zarr.storage.MemoryStore(), shape=(8,), chunks=(2,), dtype="i4", zarr_format=2
    )
    assert type(old.async_array.codec_pipeline) is BatchedCodecPipeline


def test_another_choice_is_respected() -> None:
    if not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
        pytest.skip("this Zarr has one pipeline only")
    fused = "zarr.core.codec_pipeline.FusedCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": fused}):
        session = Repository.create(in_memory_storage()).writable_session("main")
        array = zarr.create_array(session.store, name="a", shape=(8,), chunks=(3,), dtype="i4")
        assert type(array.async_array.codec_pipeline).__name__ == "FusedCodecPipeline"
    icefloe.use_bulk_pipeline(False)
    try:
        store = session.make_store(read_only=True)
        array = zarr.open_array(store, path="a", mode="r")
        assert type(array.async_array.codec_pipeline) is BatchedCodecPipeline
    finally:
        icefloe.use_bulk_pipeline()


def test_arrays_alike_share_a_pipeline() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    group = zarr.create_group(session.store)

    def pipeline(name: str, dtype: str, **options: Any) -> Any:
        array = group.create_array(name, shape=(8,), chunks=(2,), dtype=dtype, **options)
        return array.async_array.codec_pipeline

    first = pipeline("a", "<i4")
    assert pipeline("b", "<i4") is first
    assert pipeline("c", "|u1") is not first
    assert pipeline("d", "<i4", compressors=None) is not first
    assert pipeline("e", "<i4", compressors=zarr.codecs.BloscCodec()) is not first
    with zarr.config.set({"codec_pipeline.batch_size": 7}):
        assert pipeline("f", "<i4").batch_size == 7


def test_a_store_says_where_it_is_now() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    before = str(session.store)
    assert str(session.store) == before == repr(session.store)
    zarr.create_group(session.store)
    snapshot_id = session.commit("group")
    assert snapshot_id in str(session.store)
    assert str(session.store) == repr(session.store)


class _Meeting(BytesBytesCodec):
    """Two chunks are encoded at the same time, or it fails."""

    is_fixed_size = True
    both = threading.Barrier(2, timeout=300)

    def to_dict(self) -> Any:
        return {"name": "icefloe.tests.meeting"}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return input_byte_length

    def _encode_sync(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        self.both.wait()
        return chunk_bytes

    def _decode_sync(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        return chunk_bytes


@pytest.mark.parametrize("rows", [1 << 17, 1 << 19])  # 1 MB and 4 MB
def test_chunks_of_a_directory_are_encoded_side_by_side(tmp_path: Path, rows: int) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one processor encodes one chunk at a time")
    if not hasattr(zarr.codecs.BytesCodec, "_encode_sync"):
        pytest.skip("codecs of this Zarr need an event loop")
    session = Repository.create(icefloe.local_filesystem_storage(tmp_path)).writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=(8 * rows,),
        chunks=(rows,),
        dtype="i8",
        compressors=[_Meeting()],
    )
    array[:] = values = np.arange(8 * rows)
    assert np.array_equal(array[:], values)


@pytest.mark.parametrize("write_empty_chunks", [True, False])
@pytest.mark.parametrize("value", ["numbers", 0, 7])
@pytest.mark.parametrize(
    ("shape", "inner", "shard"),
    [((85,), (5,), (20,)), ((45, 43), (5, 5), (20, 10)), ((40,), (5,), (20,)), ((3,), (1,), (4,))],
)
def test_no_inner_chunk_outside_of_the_array_is_stored(
    shape: tuple[int, ...], inner: Any, shard: Any, value: Any, write_empty_chunks: bool
) -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    stored = []
    for store in (session.store, zarr.storage.MemoryStore()):
        array = zarr.create_array(
            store,
            name="a",
            shape=shape,
            chunks=inner,
            shards=shard,
            dtype="i4",
            compressors=None,
            fill_value=0,
            config={"write_empty_chunks": write_empty_chunks},
        )
        array[...] = np.arange(np.prod(shape)).reshape(shape) if value == "numbers" else value
        stored.append(asyncio.run(shards_of(store)))
    assert stored[0] == stored[1]


async def shards_of(store: Any) -> dict[str, bytes]:
    keys = [key async for key in store.list_prefix("a") if "/c/" in key]
    prototype = zarr.core.buffer.default_buffer_prototype()
    return {key: (await store.get(key, prototype)).to_bytes() for key in keys}
