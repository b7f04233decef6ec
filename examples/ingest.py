"""Weather files become a versioned dataset with Spark, and the dataset answers questions in SQL.

Run it with `make demo`. Everything happens in a temporary folder.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

import icefloe
import icefloe.spark
from icefloe.credentials import LocalFileSystemAccess

FILES, STEPS, ROWS, COLUMNS = 12, 8, 60, 90
MODES: tuple[Literal["native", "virtual"], ...] = ("native", "virtual")
PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}


def heading(text: str) -> None:
    """Print the title of a part."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


@contextmanager
def timed(label: str) -> Iterator[None]:
    """Print how long the block took."""
    start = time.perf_counter()
    yield
    print(f"{label:<58}{time.perf_counter() - start:6.1f} s", flush=True)


def make_file(folder: Path, number: int) -> Path:
    """A day of temperatures: packed, compressed, with gaps, as archives keep them."""
    rng = np.random.default_rng(number)
    hours = np.arange(STEPS) * 3 + number * 24
    steps = (np.datetime64("2024-01-01", "h") + hours).astype("M8[ns]")
    lat, lon = np.linspace(-59, 59, ROWS), np.arange(0, 360, 360 / COLUMNS)
    values = 288 - abs(lat)[:, None] * 0.5 + rng.normal(0, 3, (STEPS, ROWS, COLUMNS))
    values[0, 0, :3] = np.nan
    dataset = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), values, {"units": "K", "long_name": "temperature"})},
        {"time": steps, "lat": lat, "lon": lon},
        {"title": "made-up weather"},
    )
    path = folder / f"t2m_{(number * 5) % FILES:02d}.nc"  # names do not sort like the days in them
    encoding: dict[str, dict[str, Any]] = {
        "t2m": {**PACKED, "zlib": True, "chunksizes": (4, ROWS, COLUMNS)},
        "time": {"units": "hours since 2024-01-01", "dtype": "i4"},
    }
    dataset.to_netcdf(path, unlimited_dims=["time"], encoding=encoding)
    return path


def make_repository(folder: Path, files: Path) -> icefloe.Repository:
    """A repository that may refer to the files."""
    prefix = f"file://{files}/"
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    storage = icefloe.local_filesystem_storage(str(folder))
    return icefloe.Repository.create(storage, config, {prefix: LocalFileSystemAccess})


def checksum(dataset: Any) -> str:
    """Of every value, coordinate and name in a dataset."""
    digest = hashlib.sha256()
    for name in sorted(dataset.variables):
        values = np.ascontiguousarray(dataset[name].values)
        digest.update(f"{name} {dataset[name].dims} {values.shape} {values.dtype}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:16]


def open_group(repository: icefloe.Repository, group: str, **ref: str) -> Any:
    """A group of the repository as xarray reads it, in one process and without Spark."""
    ref = ref or {"branch": "main"}
    store = repository.readonly_session(**ref).store  # type: ignore[arg-type]
    return xr.open_zarr(store, group=group, zarr_format=3, consolidated=False, chunks=None).load()


def show(report: icefloe.spark.IngestReport) -> None:
    """One line about an ingest."""
    print(
        f"  {report.files_added} files added, {report.files_skipped} known already: "
        f"{report.chunks_written} chunks ({report.bytes_written / 1e6:.1f} MB) written, "
        f"{report.refs_written} references set"
    )


def main() -> None:
    """The demonstration."""
    with tempfile.TemporaryDirectory(prefix="icefloe-demo-") as name:
        files = Path(name) / "files"
        files.mkdir()
        repository = make_repository(Path(name) / "repository", files)
        heading("Files from an archive")
        paths = [make_file(files, number) for number in range(FILES - 4)]
        print(f"{len(paths)} NetCDF files, {sum(p.stat().st_size for p in paths) / 1e6:.1f} MB")
        print("starting Spark ...", flush=True)
        with timed("Spark is started"):
            spark = icefloe.spark.session("local[2]", progress=False)
        try:
            run(spark, repository, files, paths)
        finally:
            spark.stop()


def run(spark: Any, repository: icefloe.Repository, files: Path, paths: list[Path]) -> None:
    """What the demonstration shows, once there are files and Spark."""
    pattern = str(files / "*.nc")
    heading("Ingested twice: as copies of the values, and as references to the files")
    for mode in MODES:
        with timed(f"ingest, mode={mode!r}"):
            report = icefloe.spark.ingest(
                spark,
                pattern,
                repository,
                group=mode,
                concat_dim="time",
                mode=mode,
                chunks={"time": 24} if mode == "native" else None,
            )
        show(report)
    before = repository.lookup_branch("main")

    heading("Four more files arrive; the same call brings over only those")
    paths += [make_file(files, number) for number in range(FILES - 4, FILES)]
    for mode in MODES:
        with timed(f"ingest, mode={mode!r}, append=True"):
            report = icefloe.spark.ingest(
                spark, pattern, repository, group=mode, concat_dim="time", mode=mode, append=True
            )
        show(report)
    again = icefloe.spark.ingest(
        spark, pattern, repository, group="native", concat_dim="time", append=True
    )
    print(f"  run once more: {again.files_added} added, commit {again.snapshot_id}")

    heading("Every step is in the history")
    for entry in repository.ancestry(branch="main"):
        print(f"  {entry.id}  {entry.message}")

    heading("Questions in SQL")
    cells = icefloe.spark.read(spark, repository, group="native", where="lat > 40")
    cells.createOrReplaceTempView("cells")
    print("the warmest days north of 40 degrees:")
    spark.sql(
        "SELECT date(time) AS day, round(avg(t2m), 2) AS mean, round(max(t2m), 2) AS max, "
        "count(*) AS cells FROM cells GROUP BY 1 ORDER BY mean DESC LIMIT 3"
    ).show()
    icefloe.spark.table(spark, repository, "chunks").createOrReplaceTempView("chunks")
    print("where the chunks are:")
    spark.sql(
        "SELECT path, kind, count(*) AS chunks, sum(length) AS bytes FROM chunks "
        "WHERE path LIKE '%t2m' GROUP BY path, kind ORDER BY path, kind"
    ).show(truncate=False)

    heading("Time travel")
    for label, ref in {"before": {"snapshot_id": before}, "now": {"branch": "main"}}.items():
        days = open_group(repository, "native", **ref)
        print(f"  {label:>6}: {days.sizes['time']} steps, until {days.time.values[-1]}")

    heading("Is it the same data? Checksums of all values and coordinates")
    source = checksum(xr.concat([xr.load_dataset(path) for path in paths], dim="time"))
    sums = {"source files": source}
    for mode in MODES:
        sums[mode] = checksum(open_group(repository, mode))
    for label, value in sums.items():
        print(f"  {label:>12}  {value}")
    if len(set(sums.values())) != 1:
        raise SystemExit("the data is NOT the same")
    print("  equal: every value came over")


if __name__ == "__main__":
    main()
