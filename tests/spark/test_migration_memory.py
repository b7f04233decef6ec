"""A migration on Spark keeps its driver small: ten times the references take no more memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import NumberedRefs

ARRAYS = 10
PROGRAM = """
import json, re, sys
from pathlib import Path
import icefloe, icefloe.spark

def peak():  # not ru_maxrss, which begins with that of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 1024

folder = sys.argv[1]
spark = icefloe.spark.session("local[2]", "memory", {"spark.driver.memory": "1g"})
spark.range(1).collect()
old = icefloe.Repository.open(icefloe.local_filesystem_storage(folder + "/old"))
new = icefloe.local_filesystem_storage(folder + "/new", durable=False)
before = peak()
report = icefloe.spark.migrate_repository(spark, old, new)
after = peak()
java = spark.sparkContext._jvm.java.lang
java.System.gc()
heap = java.Runtime.getRuntime().totalMemory() - java.Runtime.getRuntime().freeMemory()
print(json.dumps([report.chunk_references, before, after, heap / 2**20]))
spark.stop()
"""


def make(folder: Path, references: int) -> None:
    """One commit with references to foreign files, in `ARRAYS` manifests."""
    storage = icefloe.local_filesystem_storage(str(folder / "old"), durable=False)
    repo = icefloe.Repository.create(storage, generation=NumberedRefs("msgpack"))
    count = references // ARRAYS
    with repo.transaction("main", message="references") as store:
        for number in range(ARRAYS):
            name = f"a{number}"
            zarr.create_array(store, name=name, shape=(count,), chunks=(1,), dtype="i1")
            store.set_virtual_refs_arr(
                name,
                chunk_grid_shape=[count],
                locations=[f"file:///data/{at % 1000}.nc" for at in range(count)],
                offsets=np.arange(count, dtype="u8"),
                lengths=np.ones(count, "u8"),
                validate_containers=False,
            )


@pytest.mark.long
@pytest.mark.timeout(480)
def test_the_driver_does_not_grow_with_references(tmp_path: Path) -> None:
    grown, heaps = [], []
    for references in (100_000, 1_000_000):
        folder = tmp_path / str(references)
        make(folder, references)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)],
            check=True,
            stdout=subprocess.PIPE,
            timeout=400,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        found, before, after, heap = json.loads(done.stdout.splitlines()[-1])
        assert found == references
        sys.stdout.write(
            f"{references:,} references: driver {before:.0f} -> {after:.0f} MB, "
            f"heap of Java {heap:.0f} MB\n"
        )
        grown.append(after - before)
        heaps.append(heap)
    assert grown[1] < grown[0] + 20
    assert heaps[1] < heaps[0] + 20
