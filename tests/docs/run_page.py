"""Runs the Python blocks of a document, one after the other, in one namespace.

    python tests/docs/run_page.py PAGE FOLDER

Buckets are folders below FOLDER here: `s3://b/weather` is FOLDER/b/weather. What a page takes as
given (a repository, files to ingest) is made first, by the function in `PREPARED`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\n$")
"""In the line before a block that needs a bucket or a cluster; it is checked for names instead."""


def blocks_of(page: Path, *, is_run: bool = True) -> list[tuple[int, str]]:
    """The Python blocks of a page, with the number of the line each begins at."""
    text = page.read_text()
    return [
        (text[: found.start(1)].count("\n") + 1, found[1])
        for found in BLOCK.finditer(text)
        if is_run == (NOT_RUN.search(text[: found.start()]) is None)
    ]


def dataset(first_day: str, days: int = 2) -> Any:
    """Weather of some days: t2m by time, lat and lon."""
    import xarray as xr  # noqa: PLC0415 - pages without data do without

    times = np.datetime64(first_day, "ns") + np.arange(days) * np.timedelta64(1, "D")
    values = np.arange(days * 12, dtype="f4").reshape(days, 3, 4)
    coordinates = {"time": times, "lat": [40.0, 50.0, 60.0], "lon": [0.0, 1.0, 2.0, 3.0]}
    return xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, coordinates)


def prepare_spark(folder: Path) -> None:
    """A repository with weather and a tag, rows that arrive, and files of three archives."""
    import icefloe  # noqa: PLC0415 - as above
    from icefloe.xarray import to_icechunk  # noqa: PLC0415 - as above

    (folder / "b").mkdir()
    storage = icefloe.local_filesystem_storage(folder / "b" / "weather")
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    to_icechunk(dataset("2024-01-01"), session)
    to_icechunk(dataset("2024-01-01"), session, group="era5")
    repository.create_tag("v1", session.commit("weather"))
    incoming = folder / "b" / "incoming"
    incoming.mkdir()
    dataset("2024-01-03").to_dataframe().reset_index().to_parquet(
        incoming / "rows.parquet", coerce_timestamps="us"
    )
    dataset("2024-02-01").to_netcdf(folder / "20240201.nc")
    for year in (2023, 2024):
        (folder / "archive" / str(year)).mkdir(parents=True)
        dataset(f"{year}-05-01").to_netcdf(folder / "archive" / str(year) / f"{year}0501.nc")


PREPARED: dict[str, Callable[[Path], None]] = {"spark.md": prepare_spark}


def as_run(code: str, folder: Path) -> str:
    """A block, with folders in place of buckets, and without waiting for a minute."""
    code = code.replace(
        'icefloe.s3_storage(bucket="b", prefix="weather", from_env=True)',
        f'icefloe.local_filesystem_storage("{folder}/b/weather")',
    )
    return code.replace("s3://", f"{folder}/").replace("1 minute", "1 second")


def finish_streams(namespace: dict[str, Any]) -> None:
    """Let streams that a block started do what there is to do, and end them."""
    spark = namespace.get("spark")
    for query in spark.streams.active if spark is not None else ():
        query.processAllAvailable()
        query.stop()


def main(page: Path, folder: Path) -> None:
    """Run all blocks; one that fails ends the program with its line in the traceback."""
    if (prepare := PREPARED.get(page.name)) is not None:
        prepare(folder)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, code in blocks_of(page):
        print(f"{page.name}:{line}", flush=True)  # noqa: T201 - says how far it came
        padded = "\n" * (line - 1) + as_run(code, folder)
        exec(compile(padded, str(page), "exec"), namespace)
        finish_streams(namespace)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
