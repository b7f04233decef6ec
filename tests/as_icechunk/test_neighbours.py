"""Packages that import icechunk work on icefloe: VirtualiZarr, xarray, dask, distributed.

Each runs as it is installed, in a process in which `import icechunk` finds icefloe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.as_icechunk.programs import AS_ICECHUNK, run
from tests.servers import S3Server

pytest.importorskip("virtualizarr")


def test_virtualizarr_writes_references(tmp_path: Path) -> None:
    said = run(
        f"""
        import icechunk, numpy, obstore, xarray
        from virtualizarr import open_virtual_dataset
        from virtualizarr.parsers import HDFParser
        try:
            from obspec_utils.registry import ObjectStoreRegistry
        except ImportError:  # before VirtualiZarr 2.4
            from virtualizarr.registry import ObjectStoreRegistry

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
def test_the_backend_tests_of_xarray_pass(tmp_path: Path, s3_server: S3Server) -> None:
    """Those of its Zarr backend, on stores of sessions, as official Icechunk runs them."""
    (tmp_path / "test_backends_on_it.py").write_text(_BACKENDS)
    (tmp_path / "endpoint").write_text(s3_server.endpoint_url)
    _compare(tmp_path, str(tmp_path), at_least=400)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("module", ["test_writers.test_icechunk", "test_integration"])
def test_the_tests_of_virtualizarr_pass(tmp_path: Path, module: str) -> None:
    """Those that come with the installed package. What fails with the original may fail."""
    checkout = os.environ.get("VIRTUALIZARR_CHECKOUT")
    if checkout is None:
        pytest.skip("VIRTUALIZARR_CHECKOUT: its tests need the conftest.py of a checkout")
    (tmp_path / "path").mkdir()
    shutil.copy(Path(checkout, "conftest.py"), tmp_path / "path")
    wanted = ("-p", "conftest", "-k", "icechunk", "--pyargs", f"virtualizarr.tests.{module}")
    _compare(tmp_path, *wanted, at_least=1)


def _compare(folder: Path, *arguments: str, at_least: int) -> None:
    """Run tests with both libraries: what passes with the original has to pass."""
    ours = _outcomes(folder, *arguments)
    original = _outcomes(folder, *arguments, library="original")
    passed = {name for name, outcome in original.items() if outcome == "passed"}
    assert len(passed) >= at_least
    assert {name: ours.get(name) for name in passed if ours.get(name) != "passed"} == {}


def _outcomes(folder: Path, *arguments: str, library: str = "icefloe") -> dict[str, str]:
    """The outcome of each test in a run of pytest by a fresh interpreter."""
    report = folder / f"{library}.xml"
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command = [sys.executable, *(AS_ICECHUNK if library == "icefloe" else ())]
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([str(folder / "path"), *(str(Path(each).resolve()) for each in given)])
    done = subprocess.run(
        [*command, "-m", "pytest", *options, *arguments],
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "ICECHUNK_LOG": "off"},
    )
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        bad = kinds & {"failure", "error"}
        outcome = "failed" if bad else "skipped" if "skipped" in kinds else "passed"
        outcomes[f"{case.get('classname')}.{case.get('name')}"] = outcome
    return outcomes


_BACKENDS = """
import contextlib
import pickle
import tempfile
import uuid
from pathlib import Path

import pytest
import xarray
import zarr
from icechunk import Repository, local_filesystem_storage, s3_storage
from icechunk.xarray import to_icechunk
from xarray.tests.conftest import time_unit, use_dask
from xarray.tests.test_backends import TestZarrRegionAuto as RegionAuto
from xarray.tests.test_backends import ZarrBase, default_zarr_format, tmp_store


@contextlib.contextmanager
def repository(place, spec_version):
    if zarr.config.config["default_zarr_format"] == 2:
        pytest.skip("repositories hold Zarr version 3")
    with tempfile.TemporaryDirectory() as folder:
        storage = local_filesystem_storage(folder)
        if place == "s3":
            storage = s3_storage(
                bucket="testbucket",
                prefix=uuid.uuid4().hex,
                region="us-east-1",
                endpoint_url=Path(__file__).with_name("endpoint").read_text(),
                allow_http=True,
                force_path_style=True,
                access_key_id="test",
                secret_access_key="test-secret",
            )
        yield Repository.create(storage, spec_version=spec_version)


class OnSessions(ZarrBase):
    place, spec_version = "directory", None

    @contextlib.contextmanager
    def create_zarr_target(self):
        with repository(self.place, self.spec_version) as repo:
            yield repo.writable_session("main").store

    @contextlib.contextmanager
    def committed(self, dataset):
        with repository(self.place, self.spec_version) as repo:
            session = repo.writable_session("main")
            to_icechunk(dataset, session)
            session.commit("written")
            yield xarray.open_zarr(session.store)

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
        expected = xarray.Dataset({"t2m": ("x", [42])})
        with self.committed(expected) as found:
            with pickle.loads(pickle.dumps(found)) as again:
                xarray.testing.assert_identical(expected, again)

    def test_pickle_dataarray(self):
        expected = xarray.Dataset({"t2m": ("x", [42])})
        with self.committed(expected) as found:
            again = pickle.loads(pickle.dumps(found["t2m"]))
            xarray.testing.assert_identical(expected["t2m"], again)


class TestDirectory(OnSessions):
    pass


class TestDirectoryOfVersion1(OnSessions):
    spec_version = 1


class TestS3(OnSessions):
    place = "s3"


class TestRegions(RegionAuto):
    @contextlib.contextmanager
    def create_zarr_target(self):
        with repository("directory", None) as repo:
            yield repo.writable_session("main").store

    @contextlib.contextmanager
    def create(self):
        x, y = range(0, 50, 10), range(0, 20, 2)
        field = xarray.DataArray([[1.0] * 10] * 5, dims=("x", "y"), coords={"x": x, "y": y})
        dataset = field.to_dataset(name="test")
        with repository("directory", None) as repo:
            session = repo.writable_session("main")
            self.save(session.store, dataset)
            session.commit("written")
            yield repo.writable_session("main").store, dataset

    def save(self, target, ds, compute=True, **kwargs):
        to_icechunk(ds, target.session, **kwargs)

    def _skip(self, *args, **kwargs):
        pytest.skip("saves several times, also where a session refuses that")

    test_zarr_append_chunk_partial = test_zarr_safe_chunk_region = _skip
    test_zarr_safe_chunk_append_dim = test_zarr_region_chunk_partial_offset = _skip
    test_dataset_to_zarr_align_chunks_true = _skip
"""
