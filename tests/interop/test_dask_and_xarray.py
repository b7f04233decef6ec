"""dask and xarray write in parallel through forks: threads, processes, a cluster."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.distributed import extract_session, merge_sessions
from icefloe.storage.spec import Storage
from tests.api.outcomes import keys
from tests.servers import S3Server

dask = pytest.importorskip("dask", reason="an extra")
xarray = pytest.importorskip("xarray", reason="an extra")
distributed = pytest.importorskip("distributed", reason="an extra")

import dask.array as da  # noqa: E402 - after it is known to be there

from icefloe.dask import store_dask  # noqa: E402
from icefloe.xarray import to_icechunk  # noqa: E402

from_array: Any = da.from_array


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes; the test runs side by side, so no port is asked for by number."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address="127.0.0.1:0"
        ) as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return icefloe.local_filesystem_storage(tmp_path / "repository")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.storage()


def numbers(length: int = 24) -> Any:
    values = np.arange(length * 8, dtype="f8").reshape(length, 8)
    return xarray.Dataset(
        {
            "t": (("time", "x"), values, {"units": "K"}),
            "flag": (("time",), np.arange(length) % 3, {}),
        },
        coords={"time": np.arange(length), "x": np.arange(8) * 10},
        attrs={"title": "numbers"},
    )


# -- worker processes


def _fill(job: tuple[Any, int]) -> Any:
    """What a worker does: write its rows and send the fork back."""
    fork, row = job
    array: Any = zarr.open_array(fork.store, path="a")
    array[row] = row + 1
    zarr.open_group(fork.store, mode="a").create_group(f"by-{row}")
    return fork


def test_worker_processes_write_through_forks(storage: Storage) -> None:
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    top = zarr.open_group(session.store, mode="a")
    top.create_array("a", shape=(6, 300), chunks=(1, 100), dtype="f8")
    fork = session.fork()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        forks = list(pool.map(_fill, [(fork, row) for row in range(6)]))
    assert not fork.has_uncommitted_changes
    session.merge(*forks)
    session.commit("together")
    found: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert np.array_equal(found["a"][:], np.repeat(np.arange(1.0, 7.0)[:, None], 300, axis=1))
    assert {f"by-{row}" for row in range(6)} <= set(found.group_keys())


def test_stores_of_forks_pickle() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("a", shape=(4,), chunks=(2,), dtype="i4")
    array: Any = zarr.open_array(session.fork().store, path="a")
    twin = pickle.loads(pickle.dumps(array))
    twin[:2] = 5
    back = pickle.loads(pickle.dumps(twin))
    assert back[:].tolist() == [5, 5, 0, 0]
    session.merge(extract_session(back))
    assert session.status().updated_chunks == {"/a": [[0]]}


# -- dask


def _stored(session: Any, source: Any, **options: Any) -> Any:
    target = zarr.open_group(session.store, mode="a").create_array(
        "a", shape=source.shape, chunks=source.chunksize, dtype=source.dtype
    )
    fork = session.fork()
    goal = zarr.open_array(fork.store, path=target.path)
    return store_dask(sources=[source], targets=[goal], **options)


@pytest.mark.parametrize("split_every", [None, 2])
def test_dask_arrays_are_stored_by_threads(split_every: int | None) -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    values = np.arange(200).reshape(20, 10)
    session.merge(_stored(session, from_array(values, chunks=(3, 4)), split_every=split_every))
    session.commit("stored")
    found: Any = zarr.open_array(repository.readonly_session("main").store, path="a")
    assert np.array_equal(found[:], values)


def test_dask_arrays_are_stored_by_a_cluster(cluster: Any, storage: Storage) -> None:
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    values = np.arange(2000).reshape(20, 100)
    with cluster.as_current():
        source = from_array(values, chunks=(3, 100)).map_blocks(_signed)
        fork = _stored(session, source, split_every=3)
    assert isinstance(fork, icefloe.ForkSession)
    session.merge(fork)
    session.commit("stored")
    found: Any = zarr.open_array(repository.readonly_session("main").store, path="a")
    assert np.array_equal(found[:] % 10_000, values)
    assert os.getpid() not in found[:] // 10_000


def _signed(block: Any) -> Any:
    """Numbers, and the process that has written them."""
    return block + os.getpid() * 10_000


def test_regions_and_several_targets() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    top = zarr.open_group(session.store, mode="a")
    for name in ("a", "b"):
        top.create_array(name, shape=(8,), chunks=(2,), dtype="i8")
    fork = session.fork()
    ones = da.ones(4, chunks=2, dtype="i8")
    merged = store_dask(
        sources=[ones, ones * 2],
        targets=[zarr.open_array(fork.store, path=name) for name in ("a", "b")],
        regions=[(slice(0, 4),), (slice(4, 8),)],
    )
    session.merge(merged)
    written: Any = zarr.open_group(session.store, mode="r")
    assert written["a"][:].tolist() == [1] * 4 + [0] * 4
    assert written["b"][:].tolist() == [0] * 4 + [2] * 4


def test_only_forks_are_merged() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    fork = session.fork()
    assert merge_sessions(fork, [fork, [fork]]) is fork
    for wrong in ((session,), (fork, session), ()):
        with pytest.raises(TypeError, match="fork"):
            merge_sessions(*wrong)
    with pytest.raises(TypeError, match="expected an IcechunkStore"):
        extract_session(zarr.create_array({}, shape=(1,), dtype="i4"))


# -- xarray


def test_a_dataset_is_written_by_a_cluster(cluster: Any, storage: Storage) -> None:
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    with cluster.as_current():
        to_icechunk(numbers().chunk(time=4), session)
    session.commit("written")
    session = repository.writable_session("main")
    more = numbers(32).isel(time=slice(24, 32))
    with cluster.as_current():
        to_icechunk(more.chunk(time=4), session, append_dim="time")
        to_icechunk((more * 2).chunk(time=8), session, group="twice/as/much")
    session.commit("appended")
    store = repository.readonly_session("main").store
    with xarray.open_zarr(store, consolidated=False) as found:
        xarray.testing.assert_identical(found.load(), numbers(32))
    with xarray.open_zarr(store, group="twice/as/much", consolidated=False) as found:
        xarray.testing.assert_equal(found.load(), more * 2)


def test_a_region_is_written_in_a_fork() -> None:
    """A fork can be written to like the session itself, and forks again for dask."""
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    to_icechunk(numbers().chunk(time=4), session)
    fork = session.fork()
    part = numbers().isel(time=slice(4, 12))[["t"]].drop_vars(["x", "time"])
    to_icechunk((part * -1).chunk(time=4), fork, region={"time": slice(4, 12)})
    session.merge(fork)
    found: Any = zarr.open_group(session.store, mode="r")
    values = numbers()["t"].values.copy()
    values[4:12] *= -1
    assert np.array_equal(found["t"][:], values)


@pytest.mark.parametrize("name", [None, "t", "x"])
@pytest.mark.parametrize("is_chunked", [True, False])
def test_data_arrays_keep_their_name(name: str | None, is_chunked: bool) -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    array = numbers()["t"].rename(name)
    to_icechunk(array.chunk(time=6) if is_chunked else array, session)
    with xarray.open_dataarray(session.store, engine="zarr", consolidated=False) as found:
        xarray.testing.assert_identical(found.load(), array)


def test_official_writes_the_same_keys() -> None:
    official: Any = pytest.importorskip("icechunk", minversion="2", reason="needs Python 3.12")
    theirs = pytest.importorskip("icechunk.xarray")
    written = []
    for library, write in ((icefloe, to_icechunk), (official, theirs.to_icechunk)):
        repository = library.Repository.create(library.in_memory_storage())
        session = repository.writable_session("main")
        encoding = {"t": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
        write(numbers().chunk(time=6), session, group="g", encoding=encoding)
        write(numbers(), session, mode="w")
        write(numbers().chunk(time=6) + 1, session, mode="a", align_chunks=True)
        session.commit("written")
        written.append(keys(repository.readonly_session("main").store))
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"mode": "r"}, "mode is 'r'"),
        ({"mode": "w", "append_dim": "time"}, "with append_dim expected"),
        ({"mode": "w-", "region": {"time": slice(0, 2)}}, "with region expected"),
    ],
)
def test_modes_that_do_not_fit_are_refused(arguments: dict[str, Any], problem: str) -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    with pytest.raises(ValueError, match=problem):
        to_icechunk(numbers(), session, **arguments)
    store: Any = session.store
    with pytest.raises(TypeError, match="not its store"):
        to_icechunk(numbers(), store)


def test_signatures_are_those_of_official() -> None:
    pytest.importorskip("icechunk", minversion="2", reason="needs Python 3.12")
    for module, name, ours in (
        ("icechunk.xarray", "to_icechunk", to_icechunk),
        ("icechunk.dask", "store_dask", store_dask),
        ("icechunk.distributed", "extract_session", extract_session),
        ("icechunk.distributed", "merge_sessions", merge_sessions),
    ):
        theirs = getattr(pytest.importorskip(module), name)
        mine = inspect.signature(ours).parameters
        for parameter in inspect.signature(theirs).parameters.values():
            assert mine[parameter.name].kind == parameter.kind
            assert mine[parameter.name].default == parameter.default
