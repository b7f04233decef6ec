"""Work on a repository with many small arrays: a program for official Icechunk 1.x.

It runs in an environment with official Icechunk 1.x, zarr and nothing of icefloe. Prints as JSON
what it found, and what it left behind.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import icechunk
import numpy as np
import zarr


def values(session: Any) -> dict[str, list[int]]:
    """The values of every array."""
    root = zarr.open_group(session.store, mode="r")
    members = root.members(max_depth=None)
    return {
        path: np.asarray(node[...]).tolist()
        for path, node in members
        if isinstance(node, zarr.Array)
    }


def extend(session: Any, value: int) -> None:
    """Overwrite, lengthen, delete and add arrays that share manifests."""
    root: Any = zarr.open_group(session.store, mode="r+")
    names = sorted(root["a"].array_keys())
    root["a"][names[0]][...] = value
    root["a"][names[1]][:1] = value
    longer = root["a"][names[2]]
    longer.resize((longer.shape[0] + 2,))
    longer[-2:] = value
    del root["a"][names[3]]
    made = root["b"].create_array(f"new{value}", shape=(3,), chunks=(1,), dtype="i4")
    made[:] = value


def main() -> None:
    """Open the repository in a directory and do what is asked for, in this order."""
    folder, *wishes = sys.argv[1:]
    storage = icechunk.local_filesystem_storage(folder)
    found: dict[str, Any] = {"version": icechunk.__version__}
    for wish in wishes:
        repo = icechunk.Repository.open(storage)
        if wish == "read":
            found["read"] = {
                entry.message: values(repo.readonly_session(snapshot_id=entry.id))
                for entry in list(repo.ancestry(branch="main"))[:-1]
            }
        elif wish.startswith("extend"):
            session = repo.writable_session("main")
            extend(session, int(wish.removeprefix("extend")))
            session.commit(wish)
        elif wish == "expire":
            time.sleep(0.01)
            found["expired"] = len(repo.expire_snapshots(datetime.now(timezone.utc)))  # noqa: UP017
        elif wish == "collect":
            later = datetime.now(timezone.utc) + timedelta(days=1)  # noqa: UP017
            found["chunks deleted"] = repo.garbage_collect(later).chunks_deleted
        elif wish == "rewrite":
            icechunk.Repository.rewrite_manifests(repo, "rewritten", branch="main")
    found["left"] = values(icechunk.Repository.open(storage).readonly_session("main"))
    sys.stdout.write("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
