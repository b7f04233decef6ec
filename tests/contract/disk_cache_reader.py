"""Reads an array again and again through a cache that many processes share.

python -m tests.contract.disk_cache_reader ENDPOINT PREFIX FOLDER MAX_BYTES ROUNDS
"""

from __future__ import annotations

import sys

import numpy as np
import zarr

import icefloe
from tests.servers import S3Server


def main(endpoint: str, prefix: str, folder: str, max_bytes: str, rounds: str) -> None:
    storage = S3Server(endpoint).storage(prefix).cached(folder, int(max_bytes))
    for _ in range(int(rounds)):
        store = icefloe.Repository.open(storage).readonly_session("main").store
        found = zarr.open_array(store, path="a", mode="r")[:]
        assert np.array_equal(found, np.arange(found.size, dtype="i4")), found  # type: ignore[union-attr]


if __name__ == "__main__":
    main(*sys.argv[1:])
