"""Spark on repositories: arrays as DataFrames, tables of metadata, a stream of changes.

    spark = icefloe.spark.session()
    df = icefloe.spark.read(spark, repo, variables=["t2m"], where={"lat": (40, 60)})
    icefloe.spark.write_dataset(spark, dataset, repo, append_dim="time")
    icefloe.spark.ingest(spark, "s3://bucket/2024/*.nc", repo, concat_dim="time", append=True)

`spark.read.format("icefloe").load(url)` works as well, without registration; it takes credentials
from the environment.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

try:
    import pyspark
except ImportError as error:  # pragma: no cover - an environment without the extra
    raise ImportError('icefloe.spark needs pyspark: pip install "icefloe[spark]"') from error


def _refusal(version: str, has_distutils: bool) -> str | None:
    """Why this Spark cannot be used, and what to do; None if it can."""
    if tuple(map(int, version.split(".")[:2])) < (3, 5):
        return (
            f"icefloe.spark needs Spark 3.5 or newer, and pyspark is {version}: choose a newer "
            "release of the platform, or install a newer pyspark"
        )
    if version.startswith("3.") and not has_distutils:
        return (
            f"pyspark {version} needs distutils, which Python 3.12 no longer has: "
            "pip install setuptools, which brings it, or use Python 3.11"
        )
    return None


if (_reason := _refusal(pyspark.__version__, find_spec("distutils") is not None)) is not None:
    raise ImportError(_reason)

NAMES_OF = {
    "geometry": ("Region",),
    "spark.dataset_writer": ("DatasetReport", "WriteReport", "write_dataset", "write_regions"),
    "spark.datasets": ("BlocksReport", "SparkDataset", "open_dataset"),
    "spark.ingest_engine": ("ingest", "run_recipe"),
    "spark.maintenance.copies": ("migrate_repository",),
    "spark.refreshing": ("RefreshReport", "refresh"),
    "spark.pyramids": ("pyramid",),
    "spark.readers": ("Attached", "attach", "read", "table"),
    "spark.start": ("session",),
    "spark.table_writer": ("TableReport", "write_stream", "write_table"),
    "virtual.ingest.request": ("load_recipe",),
    "virtual.ingest.run_ingest": ("IngestReport",),
}
"""Workers import single modules of this package, and should not wait for all the others."""
_HOME = {name: module for module, names in NAMES_OF.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605 - computed from strings


def __getattr__(name: str) -> Any:
    """Import what a name stands for; from then on it is an ordinary attribute."""
    if name in _HOME:
        value = getattr(import_module(f"icefloe.{_HOME[name]}"), name)
    elif name == "maintenance":
        value = import_module("icefloe.spark.maintenance")
    else:
        raise AttributeError(f"module 'icefloe.spark' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "maintenance"])
