"""Putting repositories that were made in a directory onto the S3 server.

Started as `python -m benchmarks.s3_copies FOLDER ROWS DATASET...`, in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from obstore.store import S3Store

from benchmarks.data import Corpus
from benchmarks.places import S3, S3_OPTIONS, Place, endpoint


def copy(corpus: Corpus, dataset: str) -> None:
    """Every file of a dataset; nothing if the dataset is not a repository in a directory."""
    root = corpus / dataset
    store = S3Store(
        **S3_OPTIONS,
        prefix=Place("official", S3, corpus).address(dataset),
        endpoint=endpoint(corpus.folder),
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )
    for path in root.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(root).as_posix(), path)


def main(folder: str, rows: str, *datasets: str) -> None:
    """Copy the datasets."""
    for dataset in datasets:
        copy(Corpus(Path(folder), int(rows)), dataset)


if __name__ == "__main__":
    main(*sys.argv[1:])
