"""Virtual chunks set by one library are read by the other: files, web servers, S3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr

import icefloe
from tests.servers import BUCKET, S3Server
from tests.virtual_sources import CHUNK, MODIFIED, at_second, config_of, web_server

icechunk: Any = pytest.importorskip("icechunk", minversion="2")

DATA = bytes(range(250))
NUM_CHUNKS = 25
SIDES = [(icefloe, icechunk), (icechunk, icefloe)]


@dataclass
class Source:
    """Where the data lies, in words that both libraries understand."""

    prefix: str
    checksum: Any

    def container(self, library: Any, endpoint: str) -> Any:
        kind = self.prefix.partition(":")[0]
        if kind == "file":
            store = library.local_filesystem_store(self.prefix.removeprefix("file://"))
        elif kind == "http":
            store = library.http_store()
        else:
            store = library.s3_store(
                region="us-east-1",
                endpoint_url=endpoint,
                allow_http=True,
                force_path_style=True,
                s3_compatible=True,
            )
        return library.VirtualChunkContainer(self.prefix, store, "source")

    def authorize(self, library: Any) -> Any:
        kind = self.prefix.partition(":")[0]
        if kind == "file":
            return {self.prefix: library.credentials.LocalFileSystemAccess}
        if kind == "http":
            return {self.prefix: library.credentials.HttpAccess}
        keys = library.s3_credentials(access_key_id="test", secret_access_key="x")
        return library.containers_credentials({self.prefix: keys})


@contextlib.contextmanager
def source(kind: str, place: Path, server: S3Server) -> Iterator[Source]:
    if kind == "file":
        (place / "data").mkdir()
        (place / "data" / "a b.bin").write_bytes(DATA)
        yield Source(f"file://{place}/data/", at_second(4_000_000_000))
    elif kind == "http":
        with web_server(files={"/data/a%20b.bin": DATA}) as web:
            yield Source(f"{web.url}/data/", at_second(MODIFIED))
    else:
        config: Any = {"endpoint": server.endpoint_url, "region": "us-east-1"}
        config |= {"access_key_id": "test", "secret_access_key": "x"}
        store = obstore.store.S3Store(BUCKET, config=config, client_options={"allow_http": True})
        put = store.put(f"{place.name}/a b.bin", DATA)
        yield Source(f"s3://{BUCKET}/{place.name}/", put["e_tag"])


@pytest.mark.parametrize("kind", ["file", "http", "s3"])
@pytest.mark.parametrize(("writer", "reader"), SIDES)
@pytest.mark.parametrize("spec_version", [1, 2])
def test_one_sets_and_the_other_reads(
    tmp_path: Path, s3_server: S3Server, kind: str, writer: Any, reader: Any, spec_version: int
) -> None:
    with source(kind, tmp_path, s3_server) as data:
        endpoint = s3_server.endpoint_url
        container = data.container(writer, endpoint)
        place = str(tmp_path / "repo")
        repo = writer.Repository.create(
            writer.local_filesystem_storage(place),
            config_of([container], writer),
            data.authorize(writer),
            spec_version,
        )
        session = repo.writable_session("main")
        for name in ("absolute", "relative"):
            array = zarr.create_array(
                session.store,
                name=name,
                shape=(len(DATA),),
                chunks=(CHUNK,),
                dtype="u1",
                compressors=None,
                filters=None,
            )
            assert array.nchunks == NUM_CHUNKS
        offsets = np.arange(NUM_CHUNKS, dtype="u8") * CHUNK
        lengths = np.full(NUM_CHUNKS, CHUNK, "u8")
        location = f"{data.prefix}a%20b.bin"
        failed = session.store.set_virtual_refs_arr(
            "absolute",
            (NUM_CHUNKS,),
            [location] * NUM_CHUNKS,
            offsets,
            lengths,
            checksum=data.checksum,
        )
        specs = [
            writer.VirtualChunkSpec([at], "vcc://source/a%20b.bin", at * CHUNK, CHUNK)
            for at in range(NUM_CHUNKS)
        ]
        assert (failed, session.store.set_virtual_refs("relative", specs)) == (None, None)
        session.commit("refs")

        opened = reader.Repository.open(
            reader.local_filesystem_storage(place), None, data.authorize(reader)
        )
        session = opened.readonly_session("main")
        group = zarr.open_group(session.store, mode="r")
        for name in ("absolute", "relative"):
            assert bytes(group[name][:]) == DATA  # type: ignore[arg-type, index]
        assert session.all_virtual_chunk_locations() == [location] * (2 * NUM_CHUNKS)
        stranger = reader.Repository.open(reader.local_filesystem_storage(place))
        blind = zarr.open_array(stranger.readonly_session("main").store, path="absolute", mode="r")
        with pytest.raises(reader.IcechunkError) as caught:
            blind[:]
        assert caught.value.kind == "unauthorized-virtual-chunk-container"


@pytest.mark.parametrize(("writer", "reader"), SIDES)
def test_many_locations_with_and_without_dictionary(
    tmp_path: Path, writer: Any, reader: Any
) -> None:
    count = 3000
    container = writer.VirtualChunkContainer("s3://bucket/", writer.s3_store(region="us-east-1"))
    place = str(tmp_path / "repo")
    repo = writer.Repository.create(
        writer.local_filesystem_storage(place), config_of([container], writer)
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(count,), chunks=(1,), dtype="u1")
    locations = [f"s3://bucket/some/prefix/file-{at:06}.nc" for at in range(count)]
    ones = np.ones(count, "u8")
    assert session.store.set_virtual_refs_arr("a", (count,), locations, ones, ones) is None
    session.commit("refs")
    opened = reader.Repository.open(reader.local_filesystem_storage(place))
    assert opened.readonly_session("main").all_virtual_chunk_locations() == locations
