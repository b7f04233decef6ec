"""Ingests on a cluster of separate processes: what files lack, and files that are odd.

One driver runs all of them, because starting a cluster takes longer than what it does here. The
same is tested more thoroughly in one process: `test_missing`, `test_odd_files`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe import Repository
from tests.spark.clusters import ROOT, START_SECONDS, environment, standalone_cluster
from tests.spark.test_ingest import contents, make_repository
from tests.virtual.test_missing import write
from tests.virtual.test_odd_files import damaged_inside

h5py: Any = pytest.importorskip("h5py", reason="h5py is an optional dependency")
netCDF4: Any = pytest.importorskip("netCDF4", reason="makes NetCDF files")  # noqa: N816
xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")

INGEST_SECONDS = 300
pytestmark = [
    pytest.mark.timeout(2 * START_SECONDS + INGEST_SECONDS),
    pytest.mark.filterwarnings(
        "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
        "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
    ),
]
MODES = ["native", "virtual"]


@dataclass(frozen=True)
class Done:
    """All repositories and files, and what the driver said of each ingest."""

    folder: Path
    repositories: dict[str, Repository]
    outcomes: dict[str, dict[str, Any]]
    printed: str

    def contents(self, name: str) -> Any:
        return contents(self.repositories[name])


class Orders:
    """Ingests to be done, each with a name; repositories are made when they are first named."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repositories: dict[str, Repository] = {}
        self.orders: dict[str, dict[str, Any]] = {}

    def add(self, name: str, repository: str, *sources: Path, **options: Any) -> None:
        if repository not in self.repositories:
            self.repositories[repository] = make_repository(self.folder, repository)
        url = self.repositories[repository].storage.url
        given = {"sources": [str(path) for path in sources], "repository": url, **options}
        self.orders[name] = given

    def run(self) -> Done:
        orders = self.folder / "orders.json"
        orders.write_text(json.dumps(list(self.orders.values())))
        program = Path(__file__).with_name("cluster_ingest_program.py")
        with standalone_cluster(self.folder) as url:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", str(program), url, str(orders)],
                capture_output=True,
                text=True,
                timeout=INGEST_SECONDS,
                check=False,
                cwd=ROOT,
                env=environment(),
            )
        assert done.returncode == 0, done.stderr[-3000:]
        outcomes = json.loads(done.stdout.splitlines()[-1])
        found = dict(zip(self.orders, outcomes, strict=True))
        return Done(self.folder, self.repositories, found, done.stdout + done.stderr)


def text_with_fill_value(path: Path) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("n", 3)
        flag = file.createVariable("flag", "S1", ("n",), fill_value=b"-")
        flag[:] = np.array([b"a", b"b", b"c"])
        file.createVariable("value", "f4", ("n",))[:] = [1, 2, 3]


def whole_with_nan_for_missing(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4)
        file["x"].make_scale()
        made = file.create_dataset("whole", data=np.array([1, 2, -999, 0], "i2"))
        made.dims[0].attach_scale(file["x"])
        made.attrs["_FillValue"] = np.nan


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("cluster")
    orders = Orders(folder)
    first = write(folder / "first.nc", [0, 1], sst=("f4", {}), t=("f4", {}))
    second = write(folder / "second.nc", [2], t=("f4", {}))
    tiles = []
    for day, tile in ((0, 0), (0, 1), (1, 1)):
        x = range(4 * tile, 4 * tile + 4)
        variables: dict[str, Any] = {"t": ("f4", {})}
        if (day, tile) == (0, 0):
            variables["sst"] = ("f4", {})
        tiles.append(write(folder / f"tile{day}{tile}.nc", [day], x=x, **variables))
    for mode in MODES:
        options: dict[str, Any] = {"mode": mode, "append": True, "concat_dim": "time"}
        orders.add(f"first, {mode}", f"appended, {mode}", first, **options)
        orders.add(f"second, {mode}", f"appended, {mode}", second, **options)
        orders.add(f"tiles, {mode}", f"tiles, {mode}", *tiles, mode=mode)
    text, whole, damaged = (folder / f"{name}.nc" for name in ("text", "whole", "damaged"))
    truncated = folder / "truncated.nc"
    text_with_fill_value(text)
    whole_with_nan_for_missing(whole)
    damaged_inside(damaged)
    truncated.write_bytes(first.read_bytes()[:3000])
    orders.add("text", "text", text)
    odd = (whole, damaged, truncated)
    orders.add("odd files are left out", "odd", *odd, on_error="skip")
    orders.add("a damaged file", "refused", whole, damaged)
    orders.add("a truncated file", "refused", whole, truncated)
    orders.add("rows", "table", rows=[[0, 1], [1, None]])
    orders.add("rows that are refused", "table", rows=[[2, -128]])
    return orders.run()


@pytest.mark.parametrize("mode", MODES)
def test_an_appended_file_without_a_variable_lengthens_it(done: Done, mode: str) -> None:
    assert done.outcomes[f"second, {mode}"] == {"error": None, "files_added": 1, "problems": []}
    found = done.contents(f"appended, {mode}")
    assert found.sst.shape == found.t.shape == (3, 4)
    assert np.isnan(found.sst.isel(time=2)).all()
    wanted = np.arange(3)[:, None] * 10.0 + np.arange(4)
    np.testing.assert_array_equal(found.t, wanted)
    np.testing.assert_array_equal(found.sst.isel(time=[0, 1]), wanted[:2])


@pytest.mark.parametrize("mode", MODES)
def test_what_no_file_has_is_missing(done: Done, mode: str) -> None:
    assert done.outcomes[f"tiles, {mode}"] == {"error": None, "files_added": 3, "problems": []}
    found = done.contents(f"tiles, {mode}")
    wanted = np.arange(2)[:, None] * 10.0 + np.arange(8)
    wanted[1, :4] = np.nan
    np.testing.assert_array_equal(found.t, wanted)
    wanted[:, 4:] = np.nan
    np.testing.assert_array_equal(found.sst, wanted)


def test_text_with_a_fill_value_is_readable(done: Done) -> None:
    assert done.outcomes["text"]["error"] is None
    found = done.contents("text")
    assert found.flag.values.tolist() == [b"a", b"b", b"c"]
    assert found.value.values.tolist() == [1, 2, 3]


def test_odd_files_are_left_out_with_their_reasons(done: Done) -> None:
    outcome = done.outcomes["odd files are left out"]
    assert outcome["error"] is None
    assert outcome["files_added"] == 1
    reasons = dict(outcome["problems"])
    assert reasons.keys() == {
        (done.folder / name).as_uri() for name in ("damaged.nc", "truncated.nc")
    }
    assert "'odd' cannot be read" in reasons[(done.folder / "damaged.nc").as_uri()]
    assert all(reasons.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that such a fill value does not conform
        wanted = xr.open_dataset(done.folder / "whole.nc", engine="h5netcdf").load()
        found = done.contents("odd")
    xr.testing.assert_equal(found, wanted)
    assert found.whole.dtype == wanted.whole.dtype
    assert found.whole.values.tolist() == [1, 2, -999, 0]


def shows_java(text: str) -> bool:
    traces = ("\tat ", "org.apache", "java.lang", "Traceback", "Py4J", "TaskSetManager")
    return any(trace in text for trace in traces)


def test_data_that_is_refused_prints_no_stack(done: Done) -> None:
    assert done.outcomes["rows"]["error"] is None
    error = done.outcomes["rows that are refused"]["error"]
    assert error.startswith("InvalidInputError: column 'v' has -128, which stands for a missing")
    assert not shows_java(error)
    assert not shows_java(done.printed), done.printed


@pytest.mark.parametrize("name", ["damaged", "truncated"])
def test_an_error_names_the_file_and_shows_no_java(done: Done, name: str) -> None:
    error = done.outcomes[f"a {name} file"]["error"]
    assert error.startswith("InvalidInputError: 1 file cannot be ingested")
    assert (done.folder / f"{name}.nc").as_uri() in error
    assert not shows_java(error)
    history = list(done.repositories["refused"].ancestry(branch="main"))
    assert len(history) == 1
