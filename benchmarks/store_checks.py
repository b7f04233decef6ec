"""Each library must find what the other one wrote, and list the same, before either is measured.

Chunks and commits are checked on the small scale of the warm-up; on the full one, every measured
run looks at its own result. Started as `python -m benchmarks.store_checks FOLDER ROWS
FUNCTION:DATASET:PLACE...`, in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import committers, stores, virtual_refs
from benchmarks.arrays import chunk_values, num_commits
from benchmarks.data import Corpus
from benchmarks.measure import SMALL_ROWS
from benchmarks.places import LOCAL, MEMORY, UNSYNCED, Place

LOOKUPS = 200


def check_chunks(corpus: Corpus, dataset: str, kind: str) -> None:
    """Either reads the array that the other wrote."""
    values = chunk_values(dataset, SMALL_ROWS)
    for writer, reader in _both_ways(corpus, kind):
        with writer.fresh_address() as address:
            array = stores.create_array(writer, writer.storage(address), dataset, values.shape)
            array[:] = values
            array.store.session.commit("chunks")
            found = stores.open_array(reader, reader.storage(address))[:]
            assert np.array_equal(found, values), f"{reader.side} reads other {dataset} chunks"


def check_commits(corpus: Corpus, _dataset: str, kind: str) -> None:
    """Either sees the history that the other wrote; memory is not shared, so there is none."""
    count = num_commits(SMALL_ROWS)
    for writer, reader in [] if kind == MEMORY else _both_ways(corpus, kind):
        with writer.fresh_address() as address:
            repository = stores.create_repository(writer, writer.storage(address), count)
            stores.commit_chunks(repository, count)
            stores.require_commits(reader, reader.storage(address), count)


def check_virtual(corpus: Corpus, dataset: str, kind: str, way: str) -> None:
    """Either finds every location that the other set."""
    refs = Corpus(corpus.folder, SMALL_ROWS).references(dataset)
    for writer, reader in _both_ways(corpus, kind):
        with writer.fresh_address() as address:
            session = virtual_refs.start(writer, writer.storage(address), refs)
            chosen = way if writer.side == "ours" else "lists"
            assert virtual_refs.hand_in(chosen, writer, refs)(session.store) is None
            session.commit("references")
            found = stores.open_session(reader, reader.storage(address))
            assert found.all_virtual_chunk_locations() == refs.locations, "locations differ"


def check_crowd(corpus: Corpus, _dataset: str, kind: str) -> None:
    """Either sees what a crowd of the other's committers did."""
    for writer, reader in _both_ways(corpus, kind):
        with writer.fresh_address() as address:
            stores.create_crowded(writer, writer.storage(address), 4)
            with committers.crowd(writer, address, processes=2, commits=2) as started:
                committers.let_go(started)
            kept = stores.kept_commits(reader, reader.storage(address), 4)
            # Official loses commits that processes make to a directory at the same time.
            assert kept == 4 or (writer.side, kind) == ("official", LOCAL), kept


def check_look_up(corpus: Corpus, dataset: str, kind: str) -> None:
    """Both find the same kind of chunk everywhere."""
    found = []
    for place in _sides(corpus, kind):
        session = stores.open_session(place, place.storage(place.address(dataset)))
        found.append([str(session.chunk_type("/a", at)) for at in corpus.coordinates(LOOKUPS)])
    official, ours = found
    assert official == ours, f"{dataset}: kinds of chunks differ"


def check_keys(corpus: Corpus, dataset: str, kind: str) -> None:
    """Both list the same keys, each of them once."""
    official, ours = (
        sorted(stores.list_keys(place, place.storage(place.address(dataset))))
        for place in _sides(corpus, kind)
    )
    assert official == ours, "keys differ"
    assert len(set(ours)) == len(ours), "a key is listed twice"


def check_members(corpus: Corpus, dataset: str, kind: str) -> None:
    """Both find the same arrays."""
    official, ours = (
        {
            name: node.metadata.to_dict()
            for name, node in stores.list_members(place, place.storage(place.address(dataset)))
        }
        for place in _sides(corpus, kind)
    )
    assert official == ours, "members differ"


def check_documents(corpus: Corpus, dataset: str, kind: str) -> None:
    """Both get the same documents, byte for byte."""
    official, ours = (
        stores.list_documents(place, place.storage(place.address(dataset)))
        for place in _sides(corpus, kind)
    )
    assert official == ours, "documents differ"


def _sides(corpus: Corpus, kind: str) -> tuple[Place, Place]:
    # Official never waits for the disk, so it has no such choice.
    official = Place("official", LOCAL if kind == UNSYNCED else kind, corpus)
    return official, Place("ours", kind, corpus)


def _both_ways(corpus: Corpus, kind: str) -> list[tuple[Place, Place]]:
    official, ours = _sides(corpus, kind)
    return [(official, ours), (ours, official)]


CHECKS: dict[str, Callable[[Corpus, str, str], None]] = {
    "write_chunks": check_chunks,
    "commits": check_commits,
    "virtual_lists": partial(check_virtual, way="lists"),
    "virtual_objects": partial(check_virtual, way="objects"),
    "virtual_table": partial(check_virtual, way="table"),
    "crowd": check_crowd,
    "look_up": check_look_up,
    "keys": check_keys,
    "documents": check_documents,
    "members": check_members,
}


def main(folder: str, rows: str, *wanted: str) -> None:
    """Run the checks of these scenarios."""
    corpus = Corpus(Path(folder), int(rows))
    for item in wanted:
        function, dataset, kind = item.split(":")
        CHECKS[function](corpus, dataset, kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
