"""Packages that import icechunk work on icefloe: VirtualiZarr, xarray, dask, distributed.

Each runs as it is installed, in a process in which `import icechunk` finds icefloe.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.as_icechunk.programs import run

pytest.importorskip("virtualizarr")


def test_virtualizarr_writes_references(tmp_path: Path) -> None:
    said = run(
        f"""
        import icechunk, numpy, obstore, xarray
        from obspec_utils.registry import ObjectStoreRegistry
        from virtualizarr import open_virtual_dataset
        from virtualizarr.parsers import HDFParser

        folder = {str(tmp_path)!r}
        field = numpy.arange(12.0).reshape(3, 4)
        dataset = xarray.Dataset({{"t2m": (("y", "x"), field)}})
        dataset.to_netcdf(folder + "/a.nc", engine="h5netcdf")
        registry = ObjectStoreRegistry({{"file://": obstore.store.LocalStore()}})
        virtual = open_virtual_dataset(
            url="file://" + folder + "/a.nc", parser=HDFParser(), registry=registry
        )
        config = icechunk.RepositoryConfig.default()
        prefix = "file://" + folder + "/"
        store = icechunk.local_filesystem_store(folder)
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
        repo = icechunk.Repository.create(
            icechunk.in_memory_storage(),
            config,
            authorize_virtual_chunk_access=icechunk.containers_credentials({{prefix: None}}),
        )
        session = repo.writable_session("main")
        virtual.vz.to_icechunk(session.store)
        session.commit("references")
        found = xarray.open_zarr(repo.readonly_session("main").store, consolidated=False)
        print((found.t2m.values == field).all(), len(session.all_virtual_chunk_locations()))
        """,
        tmp_path,
    )
    assert said == "True 1\n"


def test_xarray_writes_through_a_cluster_of_dask(tmp_path: Path) -> None:
    said = run(
        f"""
        import dask, icechunk, numpy, xarray
        from distributed import Client, LocalCluster
        from icechunk.xarray import to_icechunk

        def in_worker():
            import icechunk
            return icechunk.__name__

        if __name__ == "__main__":
            storage = icechunk.local_filesystem_storage({str(tmp_path / "repo")!r})
            repo = icechunk.Repository.create(storage)
            cluster = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None)
            with cluster, Client(cluster) as client:
                print(client.submit(in_worker).result())
                session = repo.writable_session("main")
                field = xarray.DataArray(numpy.arange(100.0).reshape(10, 10), dims=("y", "x"))
                to_icechunk(field.to_dataset(name="t2m").chunk(x=5), session)
                session.commit("by workers")
                store = repo.readonly_session("main").store
                found = xarray.open_zarr(store, consolidated=False)
                print(float(found.t2m.sum().compute()))
        """,
        tmp_path,
    )
    assert said == "icefloe.as_icechunk\n4950.0\n"


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_backend_tests_of_xarray_pass(tmp_path: Path) -> None:
    """Those of its Zarr backend, on a store of a session, as official Icechunk runs them."""
    (tmp_path / "test_backends_on_it.py").write_text(_BACKENDS)
    said = run(
        f"""
        import sys
        import pytest
        options = ["-q", "-W", "ignore", "-p", "no:cacheprovider", "-x"]
        sys.exit(pytest.main([*options, {str(tmp_path)!r}]))
        """,
        tmp_path,
        seconds=1400,
    )
    assert " passed" in said


_BACKENDS = """
import contextlib
import pytest
import zarr
from icechunk import Repository, in_memory_storage
from xarray.tests.conftest import time_unit
from xarray.tests.test_backends import ZarrBase, default_zarr_format


class TestSessionStore(ZarrBase):
    @contextlib.contextmanager
    def create_zarr_target(self):
        if zarr.config.config["default_zarr_format"] == 2:
            pytest.skip("repositories hold Zarr version 3")
        yield Repository.create(in_memory_storage()).writable_session("main").store

    @pytest.mark.parametrize("consolidated", [False, True, None])
    @pytest.mark.parametrize("compute", [False, True])
    @pytest.mark.parametrize("use_dask", [False, True])
    @pytest.mark.parametrize("write_empty", [False, True, None])
    def test_write_region(self, consolidated, compute, use_dask, write_empty):
        if consolidated is not False:
            pytest.skip("metadata is not consolidated")
        super().test_write_region(consolidated, compute, use_dask, write_empty)

    @pytest.mark.parametrize("consolidated", [False, True, None])
    def test_roundtrip_consolidated(self, consolidated):
        if consolidated is not False:
            pytest.skip("metadata is not consolidated")
        super().test_roundtrip_consolidated(consolidated)

    def test_pickle(self):
        pytest.skip("a writable session is not pickled")

    def test_pickle_dataarray(self):
        pytest.skip("a writable session is not pickled")
"""
