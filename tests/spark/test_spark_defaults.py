"""Settings that are made outside of Python are found, and a new session keeps them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from icefloe.spark.start import properties, settled
from tests.spark.clusters import ROOT, environment

FILE = r"""
# of the cluster
spark.master            local[1]
spark.log.level=FATAL
  spark.app.name : nightly
! spark.no  1
spark.driver.extraJavaOptions  -Da=1 \
    -Db=c\:d
spark.empty
other.thing  5
spark.sql.execution.arrow.maxRecordsPerBatch  77
"""


def test_a_file_of_properties_is_read_as_java_reads_it() -> None:
    assert properties(FILE) == {
        "spark.master": "local[1]",
        "spark.log.level": "FATAL",
        "spark.app.name": "nightly",
        "spark.driver.extraJavaOptions": "-Da=1 -Db=c:d",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "77",
    }


def test_files_and_arguments_are_found(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(FILE)
    other = tmp_path / "other.conf"
    other.write_text("spark.master yarn\nspark.a 1")
    place = {"SPARK_CONF_DIR": str(tmp_path)}
    assert settled(place) == properties(FILE)
    arguments = "--master spark://h:1 --conf 'spark.a=b c' --conf=spark.d=e=f pyspark-shell"
    assert settled({**place, "PYSPARK_SUBMIT_ARGS": arguments}) == {
        **properties(FILE),
        "spark.master": "spark://h:1",
        "spark.a": "b c",
        "spark.d": "e=f",
    }
    arguments = f"--properties-file {other} pyspark-shell"
    assert settled({**place, "PYSPARK_SUBMIT_ARGS": arguments}) == {
        "spark.master": "yarn",
        "spark.a": "1",
    }
    assert settled({"SPARK_CONF_DIR": str(tmp_path / "nowhere")}) == {}


PROGRAM = """
import json
import icefloe.spark
spark = icefloe.spark.session(config={"spark.sql.shuffle.partitions": 3})
names = ["spark.master", "spark.app.name", "spark.ui.enabled", "spark.log.level"]
names += ["spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.shuffle.partitions"]
print("found", json.dumps([spark.conf.get(name) for name in names]))
spark.stop()
"""


@pytest.mark.timeout(400)
def test_a_new_session_keeps_the_defaults_of_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(FILE + "\nspark.sql.shuffle.partitions 9\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment(SPARK_CONF_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=380,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found == ["local[1]", "nightly", "false", "FATAL", "77", "3"]
