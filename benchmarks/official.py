"""What official icechunk does. Imported only in processes that measure or check it."""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.data import Corpus, References, committed_file, location
from benchmarks.steps import PREPARED, Scenario, Step

# Typed as Any: the types are not there on Python 3.11, and the check must pass there too.
icechunk: Any = importlib.import_module("icechunk")
zarr: Any = importlib.import_module("zarr")

LOOKUPS = 2000


# --- repositories -----------------------------------------------------------------------------


def open_repository(root: Path) -> Any:
    """Open the repository below `root`, with nothing cached yet."""
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(root)))


def create(root: Path, grid: tuple[int, ...], spec_version: int = 2) -> Any:
    """A new repository with array `a`, as a session that has not committed it yet."""
    storage = icechunk.local_filesystem_storage(str(root))
    repository = icechunk.Repository.create(storage, spec_version=spec_version)
    session = repository.writable_session("main")
    zarr.create_array(
        session.store,
        name="a",
        shape=grid,
        chunks=(1,) * len(grid),
        dtype="float32",
        dimension_names=["time", "y", "x"],
    )
    return session


def hand_in(session: Any, refs: References) -> None:
    """Give the session the references of array `a`, the fast way."""
    failed = session.store.set_virtual_refs_arr(
        "a", refs.grid, refs.locations, refs.offset, refs.length, validate_containers=False
    )
    assert failed is None, failed


def read_columns(session: Any) -> list[Any]:
    """All references of array `a`, as the batches of columns that official yields."""

    async def batches() -> list[Any]:
        return [batch async for batch in session.store.array_chunk_iterator("a")]

    return asyncio.run(batches())


# --- scenarios --------------------------------------------------------------------------------


def decode(corpus: Corpus, dataset: str) -> Scenario:
    """Load a manifest, look chunks up, then read everything."""
    coordinates = corpus.coordinates(LOOKUPS)
    size = committed_file(corpus / dataset, "manifests").stat().st_size
    yield PREPARED
    session = open_repository(corpus / dataset).readonly_session("main")
    session.chunk_type("/a", coordinates[0])
    yield Step("load", size_bytes=size)
    for at in coordinates:
        session.chunk_type("/a", at)
    yield Step("look up", times=LOOKUPS)
    columns = read_columns(session)
    yield Step("columns", size_bytes=size)
    del columns


def write(corpus: Corpus, dataset: str, spec_version: str) -> Scenario:
    """Hand in references, then commit."""
    refs = corpus.references(dataset)
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        session = create(Path(folder), corpus.grid, int(spec_version))
        yield PREPARED
        hand_in(session, refs)
        yield Step("hand in")
        session.commit("references")
        manifest = committed_file(Path(folder), "manifests")
        yield Step("commit", size_bytes=manifest.stat().st_size)


def hand_in_objects(corpus: Corpus, dataset: str) -> Scenario:
    """Hand in references as one object each."""
    refs = corpus.references(dataset)
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        session = create(Path(folder), corpus.grid)
        yield PREPARED
        specs = _as_objects(refs)
        yield Step("make objects")
        failed = session.store.set_virtual_refs("a", specs, validate_containers=False)
        assert failed is None, failed
        yield Step("hand in")


def _as_objects(refs: References) -> list[Any]:
    _, rows, columns = refs.grid
    return [
        icechunk.VirtualChunkSpec(
            [row // (rows * columns), row // columns % rows, row % columns], *values
        )
        for row, values in enumerate(
            zip(refs.locations, refs.offset.tolist(), refs.length.tolist(), strict=True)
        )
    ]


def snapshot(corpus: Corpus, dataset: str) -> Scenario:
    """Load a snapshot, list its nodes, then commit one more group."""
    root = corpus / dataset
    path = committed_file(root, "snapshots")
    yield PREPARED
    open_repository(root).readonly_session("main").get_node_id("/")
    yield Step("load", size_bytes=path.stat().st_size)
    nodes = open_repository(root).inspect_snapshot(path.name)["nodes"]
    yield Step("list", size_bytes=path.stat().st_size)
    del nodes
    with tempfile.TemporaryDirectory(dir=corpus.folder) as folder:
        session = _large_session(root, Path(folder))
        yield Step("prepare commit")
        identifier = session.commit("one more group")
        size = (Path(folder) / "snapshots" / identifier).stat().st_size
        yield Step("commit", size_bytes=size)


def _large_session(source: Path, target: Path) -> Any:
    """A session on a copy of `source`, with one change to commit and the snapshot loaded."""
    for path in source.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    session = open_repository(target).writable_session("main")
    zarr.create_group(session.store, path="one-more")
    return session


def transaction_log(corpus: Corpus, dataset: str) -> Scenario:
    """What a commit changed. Official has no call that only decodes the log."""
    root = corpus / dataset
    path = committed_file(root, "transactions")
    yield PREPARED
    difference = read_difference(root)
    yield Step("decode", size_bytes=path.stat().st_size)
    del difference


def read_difference(root: Path) -> Any:
    """The difference made by the only commit of a benchmark repository."""
    repository = open_repository(root)
    newest, first = list(repository.ancestry(branch="main"))
    return repository.diff(from_snapshot_id=first.id, to_snapshot_id=newest.id)


def hand_in_one(session: Any, key: str, number: int) -> None:
    """Give one chunk a virtual reference."""
    session.store.set_virtual_ref(
        key, location(number), offset=0, length=1, validate_container=False
    )
