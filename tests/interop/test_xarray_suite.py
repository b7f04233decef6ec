"""xarray's own tests of its Zarr backend, on repositories.

Three ways in and out: a session's store, as Zarr sees it; the engine `icefloe`; `to_icechunk`. The
tests are xarray's, by subclassing. Those that cannot apply are named below with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.interop.xarray_engine import IcefloeBackendEntrypoint
from icefloe.xarray import to_icechunk

xarray_tests: Any = pytest.importorskip("xarray.tests.test_backends", reason="newer xarray")
# xarray's tests switch it on for the whole process.
xr.set_options(warn_for_unclosed_files=False)  # type: ignore[no-untyped-call]

pytestmark = [
    pytest.mark.long,
    # xarray's tests and Zarr warn of what is theirs.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def default_zarr_format() -> Iterator[None]:
    """xarray's fixture of this name tries both formats; repositories have one of them."""
    with zarr.config.set({"default_zarr_format": 3}):
        yield


@pytest.fixture(params=[False, True])
def use_dask(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["s", "ms", "us", "ns"])
def time_unit(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _left_out(reason: str) -> Any:
    @pytest.mark.skip(reason=reason)
    def test(self: Any) -> None:
        raise AssertionError("it is skipped")

    return test


class StoreSuite(xarray_tests.ZarrBase):  # type: ignore[misc]
    """Through the store of a writable session."""

    @contextlib.contextmanager
    def create_zarr_target(self) -> Iterator[Any]:
        repo = icefloe.Repository.create(icefloe.in_memory_storage())
        yield repo.writable_session("main").store

    test_pickle = _left_out("a writable session is not pickled; read-only ones are, in tests/store")
    test_pickle_dataarray = test_pickle
    test_load_async = _left_out("needs pytest-asyncio")
    test_hidden_zarr_keys = _left_out("is about Zarr format 2")


class TestSessionStore(StoreSuite):
    pass


class TestEngine(StoreSuite):
    """Written by xarray's Zarr backend, read by the engine."""

    @contextlib.contextmanager
    def open(self, path: Any, **kwargs: Any) -> Iterator[xr.Dataset]:
        for name in ("consolidated", "mode"):
            kwargs.pop(name, None)
            kwargs.get("backend_kwargs", {}).pop(name, None)
        with xr.open_dataset(path, engine=IcefloeBackendEntrypoint, **kwargs) as found:
            yield found

    test_append_overwrite_values = _left_out("writes to a folder that is no repository")
    test_append_write = test_append_overwrite_values


class TestToIcechunk(TestEngine):
    """Written by `to_icechunk`, read by the engine."""

    def save(self, dataset: Any, store_target: Any, **kwargs: Any) -> Any:
        known = {
            *("group", "mode", "safe_chunks", "align_chunks", "append_dim", "region", "encoding"),
            *("chunkmanager_store_kwargs",),
        }
        if not kwargs.get("compute", True) or kwargs.keys() - known - {"consolidated", "compute"}:
            return super().save(dataset, store_target, **kwargs)
        chosen = {name: value for name, value in kwargs.items() if name in known}
        return to_icechunk(dataset, store_target.session, **chosen)
