"""A first repository, in seconds and without Spark: write, commit, change, look back.

Run it with `python examples/first_repository.py`; `make demo` begins with it.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np
import zarr

import icefloe


def main() -> None:
    """Two commits, the history, and the first version again."""
    with tempfile.TemporaryDirectory(prefix="icefloe-first-") as folder:
        repo = icefloe.Repository.create(icefloe.local_filesystem_storage(folder))
        session = repo.writable_session("main")
        t2m: Any = zarr.create_array(
            session.store, name="t2m", shape=(3, 4), chunks=(1, 4), dtype="f4"
        )
        t2m[:] = 273.15
        first = session.commit("all of it at freezing point")
        with repo.transaction("main", message="a warm first row") as store:
            zarr.open_array(store, path="t2m")[0] = 290
        repo.create_tag("warm", repo.lookup_branch("main"))

        print("\nA repository in a folder, with its history:\n")
        print(repo.ancestry_graph(branch="main", plain=not sys.stdout.isatty()))
        print("What the last commit changed:\n")
        print(repo.diff(from_snapshot_id=first, to_tag="warm"))
        for label, ref in {"then": {"snapshot_id": first}, "now": {"tag": "warm"}}.items():
            reader = repo.readonly_session(**ref)  # type: ignore[arg-type]
            values: Any = zarr.open_array(reader.store, path="t2m", mode="r")
            print(f"{label:>5}: {np.asarray(values[0])}")
        print("\nEvery version stays readable, and a commit is there as a whole or not at all.")


if __name__ == "__main__":
    main()
