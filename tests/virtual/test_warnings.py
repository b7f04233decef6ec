"""What a program prints that uses codecs and types Zarr for Python 3.11 warns about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INGEST = """
import sys
import h5py, icefloe, icefloe.credentials, xarray as xr
from icefloe.virtual import ingest_local

with h5py.File(sys.argv[1] + "/a.nc", "w") as file:
    x = file.create_dataset("x", data=range(4))
    x.make_scale("x")
    values = file.create_dataset("v", data=[1, 2, 3, 4], chunks=(2,), compression="gzip")
    values.dims[0].attach_scale(x)
files = "file://" + sys.argv[1] + "/"
container = icefloe.VirtualChunkContainer(files, icefloe.local_filesystem_store(sys.argv[1]))
config = icefloe.RepositoryConfig()
config.set_virtual_chunk_container(container)
access = {files: icefloe.credentials.LocalFileSystemAccess}
repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, access)
ingest_local(sys.argv[1] + "/a.nc", repo, mode="virtual")
store = repo.readonly_session("main").store
print(xr.open_zarr(store, consolidated=False)["v"].values.tolist())
"""

TEXT = """
import icefloe, xarray as xr
from icefloe.xarray import to_icechunk

repo = icefloe.Repository.create(icefloe.in_memory_storage())
session = repo.writable_session("main")
to_icechunk(xr.Dataset({"names": ("x", ["a", "bc"])}), session)
session.commit("text of fixed length")
store = repo.readonly_session("main").store
print(xr.open_zarr(store, consolidated=False)["names"].values.tolist())
"""


def run(program: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", program, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("program", "printed"), [(INGEST, "[1, 2, 3, 4]\n"), (TEXT, "['a', 'bc']\n")]
)
def test_users_are_not_warned_of_what_they_did_not_choose(
    tmp_path: Path, program: str, printed: str
) -> None:
    done = run(program, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_a_filter_of_the_users_own_comes_first() -> None:
    warn = "import icefloe.store.zarr_store, warnings; warnings.warn('Numcodecs codecs are not in"
    warn += " the Zarr version 3 specification')"
    done = run(warn, Path(), "-W", "error::UserWarning")
    assert "UserWarning: Numcodecs" in done.stderr
    assert done.returncode == 1
