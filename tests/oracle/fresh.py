"""Repositories that official code writes for one test, with virtual chunks that can be read.

Import it only after `pytest.importorskip`: it needs official Icechunk 2.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.basics import METADATA, create_array
from tests.golden.official import container, delete, icechunk, put, zarr

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
"""A checksum that holds: files must not have been modified after it."""


def create(root: Path, files: Path, spec: int) -> Any:
    """A repository whose arrays below `/split` are split, and which may read `files`."""
    dimension, array = icechunk.ManifestSplitDimCondition, icechunk.ManifestSplitCondition
    rules = ((array.path_matches("^/split"), ((dimension.Any(), 3),)),)
    splitting = icechunk.ManifestSplittingConfig(rules)
    config = icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(splitting=splitting))
    store = icechunk.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(container(files.as_uri() + "/", store, name="files"))
    return icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(root)),
        config=config,
        authorize_virtual_chunk_access=_access(files),
        spec_version=spec,
    )


def open_with_files(root: Path, files: Path) -> Any:
    """Open a repository with leave to read the virtual chunks in `files`."""
    storage = icechunk.local_filesystem_storage(str(root))
    access = _access(files)
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)


def _access(files: Path) -> dict[str, Any]:
    return {files.as_uri() + "/": icechunk.credentials.LocalFileSystemAccess}


def write_repository(root: Path, files: Path, spec: int) -> dict[str, bytes]:
    """Every kind of chunk, node and commit; returns the bytes of each virtual chunk by key."""
    repo = create(root, files, spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store, attributes={"title": "fresh"})
    _write_chunks(top)
    virtual = _write_virtual(top, session.store, files)
    first = session.commit("first", metadata=METADATA)
    repo.create_tag("first", first)
    repo.create_branch("side", first)

    session = repo.writable_session("main")
    top = zarr.open_group(session.store, mode="r+")
    top["native"][:600] = 9
    delete(session.store, "split/grid/c/0/0")
    top["split/grid"].resize((9, 4))
    top["split/grid"][8, :] = 5
    top["inline"].attrs["changed"] = True
    del top["doomed"]
    session.commit("edits")

    session = repo.writable_session("side")
    zarr.open_group(session.store, mode="r+").create_group("on the side")
    session.commit("side")
    if spec > 1:
        _amend_and_move(repo)
    return virtual


def _write_chunks(top: Any) -> None:
    create_array(top, "native", (1800,), chunks=(600,))[:] = np.arange(1800) % 251 + 1
    create_array(top, "inline", (5, 6), chunks=(2, 3))[:] = np.arange(1, 31).reshape(5, 6)
    create_array(top, "scalar", (), dtype="float64")[...] = 2.5
    grid = create_array(top, "split/grid", (7, 4), chunks=(1, 1), dimension_names=["t", None])
    grid[:] = np.arange(1, 29).reshape(7, 4)
    create_array(top, "empty", (4,), chunks=(2,))
    create_array(top, "doomed", (2,), chunks=(1,))[:] = 1


def _write_virtual(top: Any, store: Any, files: Path) -> dict[str, bytes]:
    contents = {}
    for number in range(40):
        path = files / f"größe {number % 2}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        contents[path] = bytes((number + at) % 256 for at in range(300))
        path.write_bytes(contents[path])
    paths, expected = list(contents), {}
    # 1200 refs: from 1000 on, writers of version 2 compress locations with a dictionary.
    for name, count in (("virtual", 12), ("many", 1200)):
        create_array(top, name, (2, count // 2, 2), chunks=(1, 1, 2))
        specs = []
        for row in range(count):
            path, offset = paths[row % len(paths)], row % 297
            index = [row // (count // 2), row % (count // 2), 0]
            # Only a named container allows locations without a machine's own folder.
            relative = f"vcc://files/{path.relative_to(files).as_posix()}"
            location = relative if row % 3 == 0 else f"{files.as_uri()}/{path.relative_to(files)}"
            modified = LATER if row % 2 else None
            specs.append(
                icechunk.VirtualChunkSpec(
                    index, location, offset, 2, last_updated_at_checksum=modified
                )
            )
            key = "/".join([name, "c", *map(str, index)])
            expected[key] = contents[path][offset : offset + 2]
        refused = store.set_virtual_refs(f"/{name}", specs, validate_containers=True)
        if refused:
            raise RuntimeError(f"no container takes the virtual refs {refused[:3]}")
    put(store, "virtual/c/0/3/0", b"\x07\x08")
    expected["virtual/c/0/3/0"] = b"\x07\x08"
    return expected


def _amend_and_move(repo: Any) -> None:
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+")["inline"][0, 0] = 77
    session.commit("to be amended")
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+").create_group("added by the amendment")
    session.amend("amended", metadata={"amended": True})
    session = repo.rearrange_session("main")
    session.move("/split", "/moved")
    session.move("/native", "/moved/native")
    session.commit("moves")
    repo.set_metadata({"fresh": [1, 2, 3]})
    repo.set_feature_flag("create_tag", False)
