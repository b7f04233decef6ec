"""The examples in the docstrings of `icefloe.spark` run, as those of the rest in tests/docs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import icefloe.spark
from tests.docs.docstrings import make_world, modules, run_examples

MODULES = [name for name in modules() if name.startswith(("icefloe.spark", "icefloe.blocks"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world := tmp_path / "world").mkdir()
    make_world(world)
    dataset = icefloe.spark.open_dataset(spark, str(world / "weather"))
    names = {"spark": spark, "dataset": dataset}
    assert run_examples(name, world, tmp_path / "runs", monkeypatch, **names)
