"""zarr's own store suite, on every storage.

Keys of an Icechunk store are Zarr keys: a document that describes a node, or a chunk of an
array that exists. The suite also writes other keys; such tests are overridden, and each says
why. Whatever else the suite asks for is inherited.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
    SupportsSyncStore,
)
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator
from zarr.testing.store import StoreTests
from zarr.testing.utils import assert_bytes_equal

from icefloe import (
    IcechunkStore,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    Repository,
    Session,
    Storage,
)
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.store import operations
from icefloe.store.operations import ChunkKey, MetadataKey, metadata_key, parse_key
from tests.store.scripts import GROUP, array

ZARR_KEYS = ["c/0", "foo/c/0/0", "foo/bar/c"]


def buffer(data: bytes) -> Buffer:
    return cpu.Buffer.from_bytes(data)


class TestStore(StoreTests[IcechunkStore, cpu.Buffer]):
    store_cls = IcechunkStore
    buffer_cls = cpu.Buffer

    # -- how the suite makes stores, and looks behind them

    @pytest.fixture
    def session(self, storage: Storage) -> Session:
        return Repository.create(storage).writable_session("main")

    @pytest.fixture
    def store_kwargs(self, session: Session) -> dict[str, Any]:
        handles = session._handles
        return {
            "session": session,
            "state": session._state,
            "blocking": handles.blocking,
            "eventloop": handles.eventloop,
            "read_only": False,
        }

    @pytest.fixture
    def store(self, session: Session) -> Store:
        """Stores are made by sessions, and are open from the start."""
        return session.store

    async def set(self, store: IcechunkStore, key: str, value: Buffer) -> None:
        """Write past the store, together with the array that a chunk needs."""
        parsed, handle, state = parse_key(key), store._blocking, store._state
        assert isinstance(parsed, ChunkKey | MetadataKey), key
        node = state.find_node(parsed.path)
        data = value.to_bytes()
        if isinstance(parsed, ChunkKey) and node is None:
            ndim = len(parsed.coordinates)
            document = array([10] * ndim, [1] * ndim)
            run_blocking(
                operations.set_key(Workspace(handle, state), metadata_key(parsed.path), document)
            )
        if isinstance(parsed, MetadataKey):
            data = node.user_data if node is not None else GROUP
        run_blocking(operations.set_key(Workspace(handle, state), key, data))

    async def get(self, store: IcechunkStore, key: str) -> Buffer:
        found = run_blocking(operations.get(Workspace(store._blocking, store._state), key))
        assert found is not None
        return buffer(bytes(found))

    # -- what a store is

    def test_store_repr(self, store: IcechunkStore) -> None:
        assert repr(store).startswith("<icefloe.IcechunkStore>\nread_only: False\nsnapshot_id: ")
        assert "secret" not in repr(store)

    def test_store_supports_writes(self, store: IcechunkStore) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: IcechunkStore) -> None:
        assert store.supports_listing

    def test_zarr_calls_it_synchronously_only_where_data_is_local(
        self, store: IcechunkStore, request: pytest.FixtureRequest
    ) -> None:
        is_local = request.node.callspec.params["storage"] != "s3"
        assert isinstance(store, SupportsSyncStore) == is_local

    # -- overridden because a store is open from the start

    @pytest.mark.parametrize("read_only", [True, False])
    async def test_store_open_read_only(self, store: IcechunkStore, read_only: bool) -> None:
        view = store.with_read_only(read_only)
        await view._ensure_open()
        assert view._is_open
        assert view.read_only == read_only

    async def test_store_context_manager(self, store: IcechunkStore) -> None:  # type: ignore[override]
        with store as entered:
            assert entered._is_open
            with pytest.raises(ValueError, match="store is already open"):
                await entered._open()
        assert not entered._is_open

    async def test_get_not_open(self, store: IcechunkStore) -> None:
        store.close()
        await super().test_get_not_open(store)

    async def test_set_not_open(self, store: IcechunkStore) -> None:
        await self.set(store, "c/1", buffer(b"the array"))
        store.close()
        await super().test_set_not_open(store)

    # -- overridden because writable sessions do not pickle, and read-only ones do

    async def test_serializable_store(  # type: ignore[override]
        self, store: IcechunkStore, storage: Storage
    ) -> None:
        await self.set(store, "foo/c/0", buffer(b"\x01\x02"))
        with pytest.raises(ValueError, match="cannot be pickled"):
            pickle.dumps(store)
        store.session.commit("written")
        reader = (await Repository.open_async(storage)).readonly_session("main").store
        loaded = pickle.loads(pickle.dumps(reader))
        assert loaded == reader
        assert loaded.read_only
        found = await loaded.get("foo/c/0", prototype=default_buffer_prototype())
        assert_bytes_equal(found, buffer(b"\x01\x02"))

    # -- overridden because the error for writes says more than zarr's

    async def test_read_only_store_raises(self, store: IcechunkStore) -> None:  # type: ignore[override]
        view = store.with_read_only(read_only=True)
        assert view.read_only
        with pytest.raises(ReadOnlyError, match=r"read-only store: write through session\.store"):
            await view.set("zarr.json", buffer(GROUP))
        with pytest.raises(ReadOnlyError, match=r"read-only store: write through session\.store"):
            await view.delete("zarr.json")

    async def test_with_read_only_store(self, store: IcechunkStore) -> None:  # type: ignore[override]
        reader = store.with_read_only(read_only=True)
        writer = reader.with_read_only(read_only=False)
        assert not writer.read_only
        await writer.set("zarr.json", buffer(GROUP))
        await writer.delete("zarr.json")
        for view in (reader, store.with_read_only(read_only=True)):
            with pytest.raises(ReadOnlyError):
                await view.set("zarr.json", buffer(GROUP))
            with pytest.raises(ReadOnlyError):
                await view.delete("zarr.json")

    # -- overridden for their keys: the same tests with keys that are Zarr's, and no empty chunks

    @pytest.mark.parametrize("key", ZARR_KEYS)
    @pytest.mark.parametrize(
        ("data", "byte_range"),
        [
            (b"\x01\x02\x03\x04", None),
            (b"\x01\x02\x03\x04", RangeByteRequest(1, 4)),
            (b"\x01\x02\x03\x04", OffsetByteRequest(1)),
            (b"\x01\x02\x03\x04", SuffixByteRequest(1)),
            (b"\x05" * 1000, RangeByteRequest(1, 4)),
        ],
    )
    async def test_get(
        self, store: IcechunkStore, key: str, data: bytes, byte_range: ByteRequest
    ) -> None:
        await super().test_get(store, key, data, byte_range)

    async def test_get_many(self, store: IcechunkStore) -> None:
        values = {f"foo/c/{index}": f"{index}".encode() for index in range(10)}
        for key, value in values.items():
            await self.set(store, key, buffer(value))
        wanted = [(key, default_buffer_prototype(), None) for key in values]
        found = await _collect_aiterator(store._get_many(wanted))
        assert {key: value.to_bytes() for key, value in found if value is not None} == values

    @pytest.mark.parametrize("key", ZARR_KEYS)
    @pytest.mark.parametrize("data", [b"\x01\x02\x03\x04", b"\x05" * 1000])
    async def test_getsize(self, store: IcechunkStore, key: str, data: bytes) -> None:
        await super().test_getsize(store, key, data)

    async def test_getsize_prefix(self, store: IcechunkStore) -> None:
        for key in ("foo/c/0/0", "foo/c/0/1", "foobar/c/0"):
            await self.set(store, key, buffer(b"\x01\x02\x03\x04"))
        expected = 8 + await store.getsize("foo/zarr.json")
        assert await store.getsize_prefix("foo") == expected

    async def test_getsize_raises(self, store: IcechunkStore) -> None:
        # Official's exception, a KeyError: handlers for FileNotFoundError have no use for it.
        with pytest.raises(NodeNotFoundError):
            await store.getsize("foo/c/1000")

    @pytest.mark.parametrize("key", ["zarr.json", "foo/bar/zarr.json", *ZARR_KEYS])
    @pytest.mark.parametrize("data", [b"\x01\x02\x03\x04", b"\x05" * 1000])
    async def test_set(self, store: IcechunkStore, key: str, data: bytes) -> None:
        if key.endswith("zarr.json"):
            data = GROUP
        else:
            await self.set(store, key, buffer(b"the array"))
        await super().test_set(store, key, data)

    async def test_set_many(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/c/9", buffer(b"the array"))
        values = {"zarr.json": GROUP, "foo/c/0": b"0", "foo/c/1": b"1", "bar/zarr.json": GROUP}
        await store._set_many((key, buffer(value)) for key, value in values.items())
        for key, value in values.items():
            assert (await self.get(store, key)).to_bytes() == value

    async def test_exists(self, store: IcechunkStore) -> None:
        assert not await store.exists("foo/zarr.json")
        await store.set("foo/zarr.json", buffer(GROUP))
        assert await store.exists("foo/zarr.json")
        with pytest.raises(InvalidInputError, match="key 'foo'"):
            await store.exists("foo")

    async def test_delete(self, store: IcechunkStore) -> None:
        await store.set("foo/zarr.json", buffer(GROUP))
        assert await store.exists("foo/zarr.json")
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    async def test_delete_dir(self, store: IcechunkStore) -> None:
        await store.set("zarr.json", buffer(GROUP))
        await store.set("foo-bar/zarr.json", buffer(GROUP))
        await self.set(store, "foo/c/0", buffer(b"chunk"))
        await store.delete_dir("foo")
        assert await store.exists("zarr.json")
        assert await store.exists("foo-bar/zarr.json")
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")

    async def test_delete_nonexistent_key_does_not_raise(self, store: IcechunkStore) -> None:
        await store.delete("nonexistent/zarr.json")
        await store.delete("nonexistent/c/0")

    async def test_is_empty(self, store: IcechunkStore) -> None:
        assert await store.is_empty("")
        await self.set(store, "foo/zarr.json", buffer(GROUP))
        assert not await store.is_empty("")
        assert await store.is_empty("fo")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")

    async def test_clear(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/c/0", buffer(b"chunk"))
        await store.clear()
        assert await store.is_empty("")
        assert await _collect_aiterator(store.list()) == ()

    async def test_list(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list()) == ()
        keys = [f"foo/c/{index}" for index in range(10)]
        for key in keys:
            await self.set(store, key, buffer(b"chunk"))
        assert sorted(await _collect_aiterator(store.list())) == sorted([*keys, "foo/zarr.json"])

    async def test_list_prefix(self, store: IcechunkStore) -> None:
        prefixes = ("", "a/", "a/b/", "a/b/c/")
        keys = [prefix + "zarr.json" for prefix in prefixes]
        await store._set_many((key, buffer(GROUP)) for key in keys)
        for prefix in prefixes:
            found = await _collect_aiterator(store.list_prefix(prefix))
            assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))

    async def test_list_empty_path(self, store: IcechunkStore) -> None:
        for key in ("foo/bar/c/1", "foo/baz/c/0"):
            await self.set(store, key, buffer(b"chunk"))
        keys = ["foo/bar/c/1", "foo/bar/zarr.json", "foo/baz/c/0", "foo/baz/zarr.json"]
        assert sorted(await _collect_aiterator(store.list())) == keys
        assert sorted(await _collect_aiterator(store.list_prefix(""))) == keys
        assert sorted(await _collect_aiterator(store.list_prefix("foo/bar/"))) == keys[:2]

    async def test_list_dir(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list_dir("")) == ()
        for root, keys in {
            "foo": ["foo/zarr.json", "foo/one/zarr.json", "foo/two/zarr.json"],
            "bar": ["bar/c/1"],
        }.items():
            assert await _collect_aiterator(store.list_dir(root)) == ()
            for key in keys:
                await self.set(store, key, buffer(b"chunk"))
        for root, expected in {
            "foo": ["one", "two", "zarr.json"],
            "bar": ["c", "zarr.json"],
        }.items():
            assert sorted(await _collect_aiterator(store.list_dir(root))) == expected
            assert sorted(await _collect_aiterator(store.list_dir(root + "/"))) == expected
        assert await _collect_aiterator(store.list_dir("bar/c")) == ("1",)

    async def test_set_if_not_exists(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/c/0", buffer(b"0000"))
        for key, expected in (("foo/c/0", b"0000"), ("foo/c/1", b"1111")):
            await store.set_if_not_exists(key, buffer(b"1111"))
            found = await store.get(key, default_buffer_prototype())
            assert found is not None
            assert found.to_bytes() == expected

    if hasattr(StoreTests, "test_get_json"):  # the last zarr for Python 3.11 has these

        async def test_get_bytes(self, store: Any) -> None:
            await self.set(store, "zarr.json", buffer(GROUP))
            prototype = default_buffer_prototype()
            assert await store._get_bytes("zarr.json", prototype=prototype) == GROUP
            with pytest.raises(FileNotFoundError):
                await store._get_bytes("foo/zarr.json", prototype=prototype)

        def test_get_bytes_sync(self, store: Any) -> None:
            run_blocking(self.set(store, "zarr.json", buffer(GROUP)))
            found = store._get_bytes_sync("zarr.json", prototype=default_buffer_prototype())
            assert found == GROUP

        async def test_get_json(self, store: Any) -> None:
            await self.set(store, "zarr.json", buffer(GROUP))
            found = await store._get_json("zarr.json", prototype=default_buffer_prototype())
            assert found == {"node_type": "group"}

        def test_get_json_sync(self, store: Any) -> None:
            run_blocking(self.set(store, "zarr.json", buffer(GROUP)))
            found = store._get_json_sync("zarr.json", prototype=default_buffer_prototype())
            assert found == {"node_type": "group"}

    def test_get_sync(self, store: IcechunkStore) -> None:
        getter = self._require_get_sync(store)
        run_blocking(self.set(store, "foo/c/0", buffer(b"\x01\x02")))
        assert_bytes_equal(getter.get_sync("foo/c/0"), buffer(b"\x01\x02"))

    def test_get_sync_missing(self, store: IcechunkStore) -> None:
        assert self._require_get_sync(store).get_sync("foo/c/0") is None

    def test_set_sync(self, store: IcechunkStore) -> None:
        setter = self._require_set_sync(store)
        setter.set_sync("foo/zarr.json", buffer(array([2], [1])))
        setter.set_sync("foo/c/0", buffer(b"\x01\x02"))
        assert_bytes_equal(run_blocking(self.get(store, "foo/c/0")), buffer(b"\x01\x02"))

    def test_delete_sync(self, store: IcechunkStore) -> None:
        deleter, getter = self._require_delete_sync(store), self._require_get_sync(store)
        run_blocking(self.set(store, "foo/c/0", buffer(b"\x01\x02")))
        deleter.delete_sync("foo/c/0")
        assert getter.get_sync("foo/c/0") is None

    def test_delete_sync_missing(self, store: IcechunkStore) -> None:
        self._require_delete_sync(store).delete_sync("foo/c/0")

    @pytest.mark.parametrize("direction", ["set_async_get_sync", "set_sync_get_async"])
    async def test_sync_async_set_get_parity(self, store: IcechunkStore, direction: str) -> None:
        setter, getter = self._require_set_sync(store), self._require_get_sync(store)
        await self.set(store, "foo/c/1", buffer(b"the array"))
        if direction == "set_async_get_sync":
            await store.set("foo/c/0", buffer(b"\x01\x02"))
            found = getter.get_sync("foo/c/0")
        else:
            setter.set_sync("foo/c/0", buffer(b"\x01\x02"))
            found = await store.get("foo/c/0", prototype=default_buffer_prototype())
        assert_bytes_equal(found, buffer(b"\x01\x02"))

    async def test_delete_sync_visible_to_async_get(self, store: IcechunkStore) -> None:
        deleter = self._require_delete_sync(store)
        await self.set(store, "foo/c/0", buffer(b"\x01\x02"))
        deleter.delete_sync("foo/c/0")
        assert await store.get("foo/c/0", prototype=default_buffer_prototype()) is None

    @pytest.mark.parametrize(
        "byte_range",
        [
            None,
            RangeByteRequest(1, 4),
            OffsetByteRequest(1),
            SuffixByteRequest(1),
            RangeByteRequest(10, 20),
        ],
    )
    async def test_get_sync_byte_range_parity(
        self, store: IcechunkStore, byte_range: ByteRequest | None
    ) -> None:
        getter = self._require_get_sync(store)
        for key, size in (("foo/c/0", 4), ("foo/c/1", 600)):
            await self.set(store, key, buffer(bytes(range(200)) * 3)[:size])
            wanted = await store.get(
                key, prototype=default_buffer_prototype(), byte_range=byte_range
            )
            assert wanted is not None
            assert_bytes_equal(getter.get_sync(key, byte_range=byte_range), wanted)
