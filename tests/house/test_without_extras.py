"""A plain install: every public name loads, and files are ingested, without optional packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

OPTIONAL = {
    "pyspark", "xarray", "dask", "distributed", "pandas", "h5py", "h5netcdf", "netCDF4", "cfgrib",
    "eccodes", "virtualizarr", "botocore", "boto3", "click", "matplotlib", "icechunk",
}
sys.meta_path.insert(0, Absent())
import icefloe
"""
EVERY_NAME = """
for name in {name for names in icefloe.NAMES_OF.values() for name in names}:
    getattr(icefloe, name)
"""
INGEST = """
import numpy as np, zarr
source = zarr.create_array(
    f"{sys.argv[1]}/source.zarr/t2m", shape=(4, 4), dtype="f4", dimension_names=("y", "x")
)
source[:] = np.arange(16).reshape(4, 4)
zarr.open_group(f"{sys.argv[1]}/source.zarr", mode="a")
report = icefloe.ingest(f"{sys.argv[1]}/source.zarr", f"{sys.argv[1]}/repo")
repo = icefloe.Repository.open(icefloe.local_filesystem_storage(f"{sys.argv[1]}/repo"))
values = zarr.open_array(repo.readonly_session("main").store, path="t2m", mode="r")[:]
assert values.sum() == 120, values
"""


def run(program: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + program, folder],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_loads(tmp_path: Path) -> None:
    run(EVERY_NAME, tmp_path)


def test_a_zarr_store_is_ingested(tmp_path: Path) -> None:
    run(INGEST, tmp_path)
