"""Sources on S3 and on a web server: the same descriptions, few requests, checksums that hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

import icefloe
from icefloe import InvalidInputError, Repository, StorageError, VirtualChunkContainer
from icefloe.credentials import HttpAccess
from icefloe.storage.client import connect
from icefloe.storage.locations import S3Location
from icefloe.virtual import SourceAccess, ingest_local, list_sources, open_native, scan
from tests.servers import BUCKET, S3Server
from tests.virtual.datasets import dataset, expected, read, to_netcdf3, to_netcdf4, to_zarr
from tests.virtual_sources import config_of, web_server

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)


def access_to(server: S3Server) -> SourceAccess:
    return SourceAccess(
        {
            "region": "us-east-1",
            "endpoint_url": server.endpoint_url,
            "allow_http": True,
            "force_path_style": True,
            "access_key_id": "test",
            "secret_access_key": "test-secret",
        }
    )


def upload(server: S3Server, folder: Path, prefix: str) -> None:
    location = server.storage(prefix).location
    assert isinstance(location, S3Location)
    store = connect(location, location.default_settings().resolved()).writer()
    for path in folder.rglob("*"):
        if path.is_file():
            obstore.put(store, str(path.relative_to(folder)), path.read_bytes())


def gets(server: S3Server) -> int:
    return sum(server.requests()["methods"].get(method, 0) for method in ("GET", "HEAD"))


def test_files_and_stores_on_s3_are_described_as_on_disk(
    tmp_path: Path, s3_server: S3Server
) -> None:
    to_netcdf4(dataset(0), tmp_path / "a.nc")
    to_netcdf3(dataset(1), tmp_path / "b b.nc")
    to_zarr(3)(dataset(2), tmp_path / "c.zarr")
    upload(s3_server, tmp_path, "described")
    access = access_to(s3_server)
    found = list_sources(f"s3://{BUCKET}/described/*", access)
    assert [location.rpartition("/")[2] for location in found] == ["a.nc", "b b.nc", "c.zarr"]
    for location, name in zip(found, ("a.nc", "b b.nc", "c.zarr"), strict=True):
        before = gets(s3_server)
        there = scan(location, references=True, access=access)
        if name != "c.zarr":
            assert gets(s3_server) - before == 1, "a small file is one request"
        here = scan(tmp_path / name, references=True)
        assert there.version.etag
        assert there.groups == here.groups
        assert there.references is not None
        assert here.references is not None
        for path, variable in here.variables.items():
            twin = there.variables[path]
            assert (twin.shape, twin.codecs, twin.digest) == (
                variable.shape,
                variable.codecs,
                variable.digest,
            )
            if path in here.references:
                for column in ("index", "offset", "length"):
                    if column in here.references[path].column_names:
                        assert there.references[path][column] == here.references[path][column]
        with open_native(location, access) as remote, open_native(tmp_path / name) as local:
            region = (slice(1, 3), slice(0, 4), slice(2, 5))
            np.testing.assert_array_equal(
                remote.read("packed", region), local.read("packed", region)
            )


def test_a_large_file_is_read_in_blocks(tmp_path: Path, s3_server: S3Server) -> None:
    h5py: Any = pytest.importorskip("h5py", reason="h5py is an optional dependency")
    with h5py.File(tmp_path / "large.h5", "w") as file:
        for number in range(6):
            data = np.full((4, 100_000), number, "f8")
            file.create_dataset(f"v{number}", data=data, chunks=(1, 100_000))
    upload(s3_server, tmp_path, "large")
    access, location = access_to(s3_server), f"s3://{BUCKET}/large/large.h5"
    before = gets(s3_server)
    source = scan(location, references=True, access=access)
    assert gets(s3_server) - before <= 12  # of 19 MB; its metadata is scattered
    assert source.references is not None
    assert source.references["v5"].num_rows == 4
    with open_native(location, access) as reader:
        assert (reader.read("v3", (slice(1, 2), slice(0, 100_000))) == 3).all()


def test_a_virtual_ingest_from_s3_is_read_back_until_a_file_changes(
    tmp_path: Path, s3_server: S3Server
) -> None:
    paths = [tmp_path / "b.nc", tmp_path / "a.nc"]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    upload(s3_server, tmp_path, "ingested")
    prefix = f"s3://{BUCKET}/ingested/"
    store = icefloe.s3_store(
        region="us-east-1",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )
    keys = icefloe.s3_static_credentials(access_key_id="test", secret_access_key="test-secret")
    repository = Repository.create(
        icefloe.in_memory_storage(),
        config_of([VirtualChunkContainer(prefix, store)]),
        icefloe.containers_credentials({prefix: keys}),
    )
    options: dict[str, Any] = {
        "concat_dim": "time",
        "mode": "virtual",
        "access": access_to(s3_server),
    }
    ingest_local(f"{prefix}*.nc", repository, **options)
    again = ingest_local(f"{prefix}*.nc", repository, append=True, **options)
    assert (again.files_added, again.files_skipped) == (0, 2)
    found = read(repository.readonly_session("main").store)
    assert found.identical(expected(paths))
    to_netcdf4(dataset(5), tmp_path / "a.nc")
    upload(s3_server, tmp_path, "ingested")
    with pytest.raises(StorageError) as caught:
        read(repository.readonly_session("main").store)
    assert caught.value.kind == "virtual-chunk-modified"


def test_a_web_server(tmp_path: Path) -> None:
    to_netcdf4(dataset(0), tmp_path / "a.nc")
    with web_server(files={"/data/a.nc": (tmp_path / "a.nc").read_bytes()}) as server:
        location = f"{server.url}/data/a.nc"
        source = scan(location, references=True)
        assert len(server.requests) == 1
        assert source.version.etag == '"v1"'
        repository = Repository.create(
            icefloe.in_memory_storage(),
            config_of([VirtualChunkContainer(f"{server.url}/data/", icefloe.http_store())]),
            {f"{server.url}/data/": HttpAccess},
        )
        ingest_local(location, repository, mode="virtual")
        found = read(repository.readonly_session("main").store)
        assert found.identical(expected([tmp_path / "a.nc"]))
        with pytest.raises(StorageError, match="name the files"):
            list_sources(f"{server.url}/data/*.nc")
        with pytest.raises(StorageError, match=r"b\.nc"):
            scan(f"{server.url}/data/b.nc")


def test_a_location_no_container_covers_is_refused(tmp_path: Path) -> None:
    to_netcdf4(dataset(0), tmp_path / "a.nc")
    repository = Repository.create(icefloe.in_memory_storage())
    with pytest.raises(InvalidInputError, match="no virtual chunk container covers"):
        ingest_local(tmp_path / "a.nc", repository, mode="virtual")
