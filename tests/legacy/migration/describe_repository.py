"""What is in a repository, as JSON: a program for official Icechunk, and a function for tests.

It runs in an environment with official Icechunk 1.x, zarr and nothing of icefloe.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import icechunk
import numpy as np
import zarr


def describe(repo: Any) -> dict[str, Any]:
    """Values, attributes and history at every ref."""
    refs = [("branch", name, repo.lookup_branch(name)) for name in sorted(repo.list_branches())]
    refs += [("tag", name, repo.lookup_tag(name)) for name in sorted(repo.list_tags())]
    return {
        f"{kind} {name}": {
            "tip": tip,
            "nodes": _nodes(repo.readonly_session(snapshot_id=tip)),
            "history": [
                [entry.id, entry.message, entry.written_at.timestamp(), entry.metadata]
                for entry in repo.ancestry(snapshot_id=tip)
            ],
        }
        for kind, name, tip in refs
    }


def _nodes(session: Any) -> dict[str, Any]:
    try:
        root = zarr.open_group(session.store, mode="r")
    except FileNotFoundError:
        return {}
    members = dict(root.members(max_depth=None))
    return {"": dict(root.attrs), **{path: _node(node) for path, node in members.items()}}


def _node(node: Any) -> Any:
    if not isinstance(node, zarr.Array):
        return dict(node.attrs)
    values = np.asarray(node[...])
    raw = repr(values.tolist()).encode() if values.dtype.kind in "OT" else values.tobytes()
    digest = hashlib.sha256(raw).hexdigest()
    return [dict(node.attrs), list(node.shape), str(node.dtype), list(node.chunks), digest]


def main() -> None:
    """Describe the repository in a directory, then commit a group on top of `main`."""
    folder, foreign = sys.argv[1:]
    prefix = f"file://{foreign}/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(foreign)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    repo = icechunk.Repository.open(
        icechunk.local_filesystem_storage(folder),
        config,
        authorize_virtual_chunk_access=icechunk.containers_credentials({prefix: None}),
    )
    found = {"version": icechunk.__version__, "refs": describe(repo)}
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="added", attributes={"by": icechunk.__version__})
    found["added"] = session.commit("added")
    sys.stdout.write("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
