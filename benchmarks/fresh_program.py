"""What a short program does with a repository. Run by its path, it imports nothing else of ours.

`python fresh_program.py LIBRARY TASK PATH EXPECTED`; prints the peak of its resident memory.
"""

from __future__ import annotations

import importlib
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any


def import_only(_library: Any, _path: str, _expected: int) -> None:
    """Nothing but the import."""


def first_chunk(library: Any, path: str, _expected: int) -> None:
    """Open the array and read its first row, which is a chunk."""
    assert _array(library, path)[0].any()


def read(library: Any, path: str, expected: int) -> None:
    """Read all of an array."""
    found = _array(library, path)[:]
    assert len(found) == expected, len(found)


def look_up(library: Any, path: str, expected: int) -> None:
    """Find one chunk among many."""
    found = _session(library, path).chunk_type("/a", [expected // 2, 3, 3])
    assert found == library.ChunkType.virtual, found


def commit(library: Any, path: str, _expected: int) -> None:
    """Write one chunk of a new repository and commit it."""
    with tempfile.TemporaryDirectory(dir=path) as folder:
        storage = library.local_filesystem_storage(folder)
        session = library.Repository.create(storage).writable_session("main")
        zarr = importlib.import_module("zarr")
        array = zarr.create_array(session.store, name="a", shape=4, chunks=1, dtype="i4")
        array[0] = 1
        session.commit("one chunk")


def _repository(library: Any, path: str) -> Any:
    return library.Repository.open(library.local_filesystem_storage(path))


def _session(library: Any, path: str) -> Any:
    return _repository(library, path).readonly_session("main")


def _array(library: Any, path: str) -> Any:
    store = _session(library, path).store
    return importlib.import_module("zarr").open_array(store, path="a", mode="r")


def _peak_memory() -> int:
    # Linux hands ru_maxrss down to a program from the process that started it; VmHWM is its own.
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    name, task, path_, expected_ = sys.argv[1:]
    globals()[task](importlib.import_module(name), path_, int(expected_))
    print(_peak_memory())
