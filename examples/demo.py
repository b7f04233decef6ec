"""From a folder of NetCDF files to a versioned dataset: ingest, xarray, a correction, diff, undo.

Run it with `make demo`. `python examples/demo.py [FOLDER]` needs no Spark. With `--spark` it then
goes on: executors ingest the same files, append new ones, and answer questions in SQL. The results
stay in the folder, `build/demo` by default, until the next run replaces them.
"""

from __future__ import annotations

import argparse
import html
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import icefloe
from icefloe.xarray import to_icechunk

DAYS, STEPS, ROWS, COLUMNS = 10, 8, 60, 120
BAD_DAY = 6
MARK = ".icefloe-demo"


def heading(text: str) -> None:
    """Print the title of a step."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


@contextmanager
def timed(label: str) -> Iterator[None]:
    """Print the start of a step, a dot for every two seconds, and how long it took."""
    print(f"{label} ...", end="", flush=True)
    start, done = time.perf_counter(), threading.Event()

    def tick() -> None:
        while not done.wait(2):
            print(".", end="", flush=True)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
    print(f" {time.perf_counter() - start:.1f} s", flush=True)


def command() -> str:
    """The command line of the environment that runs the demo, as typed in this folder."""
    path = Path(sys.executable).with_name("icefloe")
    return os.path.relpath(path) if Path.cwd() in path.parents else str(path)


def prepare(folder: Path) -> Path:
    """Replace the results of the previous run by an empty folder."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise SystemExit(f"{folder} has files that no demo has written; name an empty folder")
    shutil.rmtree(folder, ignore_errors=True)
    files = folder / "files"
    files.mkdir(parents=True)
    (folder / MARK).touch()
    return files


def make_file(files: Path, day: int) -> Path:
    """Write the temperatures of one day, packed into 16 bits and compressed, as archives do."""
    random = np.random.default_rng(day)
    lat, lon = np.linspace(-88.5, 88.5, ROWS), np.arange(0, 360, 360 / COLUMNS)
    hour = day * 24 + np.arange(STEPS) * 3
    sun = 6 * np.cos(np.deg2rad(lon[None, :] + hour[:, None] * 15))[:, None, :]
    weather = 5 * np.sin(np.deg2rad(3 * lon[None, :] - 10 * hour[:, None]))[:, None, :]
    climate = 303 + 2 * np.sin(day) - 50 * np.sin(np.deg2rad(lat))[:, None] ** 2
    t2m = climate + (sun + weather) * np.cos(np.deg2rad(lat))[:, None]
    t2m = t2m + random.normal(0, 0.5, t2m.shape)
    if day == BAD_DAY:
        t2m[:, : ROWS // 2] -= 20  # half of the stations lost 20 degrees
    times = np.datetime64("2024-01-01", "ns") + hour.astype("m8[h]")
    dataset = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), t2m, {"units": "K", "long_name": "2 m temperature"})},
        {
            "time": times,
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": ("lon", lon, {"units": "degrees_east"}),
        },
        {"title": "made-up weather"},
    )
    path = files / f"t2m_{np.datetime_as_string(times[0], 'D')}.nc"
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    encoding: dict[str, Any] = {
        "t2m": {**packed, "zlib": True},
        "time": {"units": "hours since 2024-01-01", "dtype": "i4"},
    }
    dataset.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"], encoding=encoding)
    return path


def correct(repo: icefloe.Repository) -> str:
    """Add the missing 20 degrees to one day, in one commit."""
    steps = slice(BAD_DAY * STEPS, (BAD_DAY + 1) * STEPS)
    day = repo.to_xarray().isel(time=steps, lat=slice(0, ROWS // 2)).load()
    session = repo.writable_session("main")
    fixed = (day[["t2m"]] + 20).drop_vars(["time", "lat", "lon"])
    to_icechunk(
        fixed, session, region={"time": steps, "lat": slice(0, ROWS // 2), "lon": slice(None)}
    )
    return session.commit("Correct 7 January: the southern stations read 20 K too low")


def mean_of_day(repo: icefloe.Repository, snapshot: str) -> str:
    """The mean of the bad day in one version."""
    day = repo.to_xarray(snapshot).t2m.isel(time=slice(BAD_DAY * STEPS, (BAD_DAY + 1) * STEPS))
    return f"{float(day.mean()):.1f} K"


def draw(before: Any, after: Any, path: Path) -> None:
    """Draw one step of the bad day as two maps."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 3.4), sharey=True, layout="constrained")
    for axis, title, dataset in zip(
        axes, ("as ingested", "corrected"), (before, after), strict=True
    ):
        step = dataset.t2m.isel(time=BAD_DAY * STEPS + 3)
        drawn = axis.pcolormesh(dataset.lon, dataset.lat, step, vmin=235, vmax=312, cmap="turbo")
        axis.set_title(f"{np.datetime_as_string(step.time.values, 'h')}, {title}")
        axis.set_xlabel("longitude")
    axes[0].set_ylabel("latitude")
    figure.colorbar(drawn, ax=axes, label="temperature in K")
    figure.savefig(path, dpi=110)


def write_page(repo: icefloe.Repository, diff: str, path: Path) -> None:
    """Write a page with the maps, the difference and the history; it opens without a server."""
    history = repo.ancestry_graph().to_html()
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'><title>icefloe demo</title>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem}img{max-width:100%}pre,table{overflow-x:auto;display:block}</style>"
        "<h1>Ten days of weather, versioned</h1>"
        "<p>Ten NetCDF files became one dataset. One day was wrong, was corrected, and the "
        "correction was undone. Every version can still be read.</p>"
        "<img src='maps.png' alt='Maps of one step, as ingested and corrected'>"
        f"<h2>What the correction changed</h2><pre>{html.escape(diff)}</pre>"
        f"<h2>History</h2>{history}</html>\n"
    )


def run_here(folder: Path) -> None:
    """Run the steps that need nothing but this process."""
    start = time.perf_counter()
    files, place = prepare(folder), str(folder / "weather")
    heading("1. Ten NetCDF files, one for each day")
    with timed("writing them"):
        paths = [make_file(files, day) for day in range(DAYS)]
    print(
        f"{len(paths)} files, {sum(path.stat().st_size for path in paths) / 1e6:.1f} MB in {files}"
    )

    heading("2. One call makes them one dataset")
    with timed(f"icefloe.ingest('{files}/*.nc', '{place}', concat_dim='time')"):
        report = icefloe.ingest(f"{files}/*.nc", place, concat_dim="time", chunks={"time": STEPS})
    print(f"{report.files_added} files, {report.chunks_written} chunks, 1 commit")

    heading("3. xarray opens it")
    dataset = xr.open_dataset(place, engine="icefloe", chunks=None)
    print(dataset)
    means = dataset.t2m.mean(("lat", "lon")).groupby("time.day").mean().round(1).values
    print("\ndaily means in K:", *means)

    heading("4. Day 7 is wrong: correct it in one commit")
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    ingested = repo.lookup_branch("main")
    with timed("correcting"):
        corrected = correct(repo)
    diff = str(repo.diff(from_snapshot_id=ingested, to_snapshot_id=corrected))
    print(diff)

    heading("5. Undo the correction: every version can still be read")
    repo.undo(corrected, message="Undo the correction: wait for the archive to confirm it")
    *versions, _empty = repo.ancestry(branch="main")
    for snapshot in versions:
        print(f"  {snapshot.id}  day 7: {mean_of_day(repo, snapshot.id):>7}  {snapshot.message}")

    heading("6. A picture and a page")
    with timed("drawing"):
        before, after = map(repo.to_xarray, (ingested, corrected))
        draw(before, after, folder / "maps.png")
        write_page(repo, diff, folder / "index.html")
    print(f"{folder / 'maps.png'}\n{folder / 'index.html'}")
    print(f"\nDone in {time.perf_counter() - start:.1f} s. Try next:\n")
    print(f"  {command()} ui {place}")
    print(f"  {command()} log {place}@main")
    print(f"  {command()} diff {place} {ingested} {corrected}\n")


def ingest(spark: Any, label: str, files: Path, place: str, **options: Any) -> None:
    """Ingest the files with Spark, and print what was written."""
    import icefloe.spark

    with timed(label):
        report = icefloe.spark.ingest(spark, f"{files}/*.nc", place, concat_dim="time", **options)
    print(
        f"  {report.files_added} files added, {report.files_skipped} known already, "
        f"{report.chunks_written} chunks written"
    )


def require_same(files: Path, place: str) -> None:
    """Compare every value of the dataset with the files."""
    paths = sorted(files.glob("*.nc"))
    expected = xr.concat([xr.load_dataset(path) for path in paths], dim="time")
    dataset = xr.open_dataset(place, engine="icefloe").load()
    for name, variable in expected.variables.items():
        if not np.array_equal(variable.values, dataset[name].values, equal_nan=True):
            raise SystemExit(f"{name} is not what the files have")
    print(f"  all {expected.t2m.size:,} values are those of the {len(paths)} files")


def run_on_spark(folder: Path) -> None:
    """Run the steps on Spark, with the files of the first ones."""
    import icefloe.spark

    start = time.perf_counter()
    files, place = folder / "files", str(folder / "weather-spark")
    if not files.is_dir():
        raise SystemExit(f"{files} is missing; run the demo without --spark first")
    heading("7. The same on Spark")
    with timed("starting Spark"):
        spark = icefloe.spark.session("local[2]", progress=False)
    try:
        ingest(spark, "ingest on executors", files, place, chunks={"time": STEPS})

        heading("8. Four more days arrive: the same call adds only those")
        for day in range(DAYS, DAYS + 4):
            make_file(files, day)
        ingest(spark, "ingest with append=True", files, place, append=True)
        require_same(files, place)

        heading("9. Questions in SQL")
        repo = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
        icefloe.spark.read(spark, repo, where="lat > 40").createOrReplaceTempView("cells")
        with timed("the warmest days north of 40 degrees"):
            warmest = spark.sql(
                "SELECT date(time) AS day, round(avg(t2m), 2) AS mean, round(max(t2m), 2) AS max, "
                "count(*) AS cells FROM cells GROUP BY 1 ORDER BY mean DESC LIMIT 3"
            ).collect()
        for row in warmest:
            print(f"  {row.day}  mean {row.mean} K, max {row.max} K, {row.cells:,} cells")
        icefloe.spark.table(spark, repo, "snapshots").createOrReplaceTempView("snapshots")
        with timed("the history, as a table"):
            history = spark.sql(
                "SELECT snapshot_id, committed_at, message FROM snapshots ORDER BY committed_at"
            ).collect()
        for row in history:
            print(f"  {row.snapshot_id}  {row.committed_at:%Y-%m-%d %H:%M:%S}  {row.message}")
        heading("10. A climatology: the mean of every hour at 0 degrees east, with its lineage")
        with timed("mean by hour of the day"):
            weather = icefloe.spark.open_dataset(spark, repo)
            report = weather[["t2m"]].groupby("time.hour").mean().write(repo, group="by-hour")
        means = repo.to_xarray(report.snapshot_id, group="by-hour").t2m.isel(lon=0).mean("lat")
        for hour, mean in zip(means.hour.values, means.values, strict=True):
            print(f"  {hour:02}:00  {mean:.2f} K")
        commit = repo.lookup_snapshot(report.snapshot_id)
        [source] = commit.metadata["icefloe.derived"]["sources"]
        print(f"  computed from snapshot {source['snapshot_id']}")
    finally:
        spark.stop()
    print(f"\nDone in {time.perf_counter() - start:.0f} s. Everything is in {folder}. Try next:\n")
    print(f"  {command()} ui {folder / 'weather'}")
    print(f"  {command()} log {place}@main")
    print(f"  {Path(command()).with_name('python')} -m webbrowser {folder / 'index.html'}\n")


def main() -> None:
    """Read the command line and run one of the two parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/demo"))
    parser.add_argument("--spark", action="store_true", help="run the second part, on Spark")
    arguments = parser.parse_args()
    (run_on_spark if arguments.spark else run_here)(arguments.folder)


if __name__ == "__main__":
    main()
