"""Each extra alone: what it promises works with its own packages and no others."""

from __future__ import annotations

import tomllib

import pytest

from tests.release.conftest import ROOT, Built, Install

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

NUMBERS = """
import icefloe, zarr, numpy as np
repo = icefloe.Repository.create(icefloe.local_filesystem_storage("weather"))
with repo.transaction("main", message="numbers") as store:
    t2m = zarr.create_array(
        store, name="t2m", shape=(4, 6), chunks=(2, 6), dtype="f4", dimension_names=["time", "x"]
    )
    t2m[:] = np.arange(24).reshape(4, 6)
"""
FILE = """
import icefloe, zarr, numpy as np
def check(path, total):
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage("archive"))
    reader = repo.readonly_session("main")
    assert zarr.open_array(reader.store, path=path, mode="r")[:].sum() == total
"""
PROGRAMS = {
    "xarray": NUMBERS
    + """
import xarray as xr
assert float(xr.open_dataset("weather", engine="icefloe")["t2m"].sum()) == 276
session = repo.writable_session("main")
rain = xr.Dataset({"rain": ("x", np.ones(6))})
icefloe.xarray.to_icechunk(rain, session, group="rain")
session.commit("rain")
assert repo.to_xarray(group="rain").equals(rain)
""",
    "dask": NUMBERS
    + """
import dask.array as da
import icefloe.dask
session = repo.writable_session("main")
fork = session.fork()
target = zarr.open_array(fork.store, path="t2m")
session.merge(icefloe.dask.store_dask(sources=[da.ones((4, 6), chunks=(2, 6))], targets=[target]))
session.commit("ones")
reader = repo.readonly_session("main")
assert zarr.open_array(reader.store, path="t2m", mode="r")[:].sum() == 24
""",
    "hdf5": FILE
    + """
import h5py
with h5py.File("a.nc", "w") as file:
    x = file.create_dataset("x", data=np.arange(6.0))
    x.make_scale("x")
    file.create_dataset("t2m", data=np.arange(6.0), chunks=(3,)).dims[0].attach_scale(x)
icefloe.ingest("a.nc", "archive", mode="native")
check("t2m", 15)
""",
    "grib": FILE
    + """
import eccodes
with open("a.grib2", "wb") as file:
    message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    values = np.full(eccodes.codes_get_size(message, "values"), 2.0)
    eccodes.codes_set_values(message, values)
    eccodes.codes_write(message, file)
    eccodes.codes_release(message)
report = icefloe.ingest("a.grib2", "archive", mode="native")
repo = icefloe.Repository.open(icefloe.local_filesystem_storage("archive"))
group = zarr.open_group(repo.readonly_session("main").store, mode="r")
(name,) = [name for name, array in group.arrays() if array.ndim >= 2]
assert group[name][:].sum() == 2 * len(values), name
""",
    "virtual": """
import icefloe, icefloe.xarray, zarr, os, xarray as xr
from virtualizarr.manifests import ChunkManifest, ManifestArray
array = zarr.create_array(
    "a.zarr", shape=(6,), chunks=(3,), dtype="f8", dimension_names=["x"], compressors=None
)
array[:] = 2
url = f"file://{os.getcwd()}/"
chunks = {str(n): {"path": f"{url}a.zarr/c/{n}", "offset": 0, "length": 24} for n in range(2)}
parts = ManifestArray(metadata=array.metadata, chunkmanifest=ChunkManifest(chunks))
virtual = xr.Dataset({"t2m": ("x", parts)})
container = icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(os.getcwd()))
repo = icefloe.Repository.create(
    icefloe.in_memory_storage(),
    icefloe.RepositoryConfig(virtual_chunk_containers={url: container}),
    authorize_virtual_chunk_access={url: icefloe.credentials.LocalFileSystemAccess},
)
session = repo.writable_session("main")
icefloe.xarray.virtual_to_icechunk(virtual, session)
session.commit("virtual")
assert zarr.open_array(repo.readonly_session("main").store, path="t2m", mode="r")[:].sum() == 12
""",
    "aws": """
import icefloe, os, pathlib, sys
(folder := pathlib.Path(".aws")).mkdir()
program = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "hush"}'
pathlib.Path("keys.py").write_text(f"open('ran', 'w').close(); print('''{program}''')")
text = f"[profile weather]\\ncredential_process = {sys.executable} {os.getcwd()}/keys.py\\n"
(folder / "config").write_text(text)
os.environ["AWS_PROFILE"] = "weather"
storage = icefloe.s3_storage(
    bucket="weather", prefix="a", endpoint_url="http://127.0.0.1:9", allow_http=True, from_env=True,
    region="us-east-1",
)
try:
    icefloe.Repository.open(storage)
except icefloe.StorageError as error:
    assert "icefloe[aws]" not in str(error), error
else:
    raise AssertionError("no server listens there")
assert os.path.exists("ran"), "the credential process of the profile has not run"
""",
    "spark": NUMBERS
    + """
import icefloe.spark
spark = icefloe.spark.session()
df = icefloe.spark.read(spark, "weather", variables=["t2m"])
assert df.where("t2m > 11").count() == 12
mean = icefloe.spark.open_dataset(spark, "weather").mean()
assert float(mean.to_xarray()["t2m"]) == 11.5
spark.stop()
""",
    "connect": """
from pyspark.sql.connect.session import SparkSession  # needs grpc and protobuf
import icefloe.spark
assert icefloe.spark.read and SparkSession.builder.remote("sc://127.0.0.1:9")
""",
}
COMMANDS = {
    "cli": [
        ("icefloe", "init", "weather"),
        ("icefloe", "log", "weather"),
        ("icefloe", "branch", "create", "weather", "dev"),
        ("icefloe", "verify", "weather"),
    ],
}
FOR_DEVELOPERS = {"dev", "docs"}
"""`make test` and `make docs` run with them."""


def test_every_extra_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*PROGRAMS, *COMMANDS, *FOR_DEVELOPERS} == {*project["optional-dependencies"]}


@pytest.mark.parametrize("extra", [*PROGRAMS, *COMMANDS])
def test_an_extra_works_alone(extra: str, built: Built, install: Install) -> None:
    environment = install(built.wheel, extra)
    python = str(environment.python)
    for command in COMMANDS.get(extra) or [(python, "-c", PROGRAMS[extra])]:
        done = environment.run(*command)
        assert done.returncode == 0, f"{command[:2]}: {done.stdout}{done.stderr}"
