"""Putting repositories that were made in a directory onto the S3 server.

Started as `python -m benchmarks.s3_copies FOLDER ROWS KIND DATASET...`, in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from benchmarks.data import Corpus
from benchmarks.places import S3_OPTIONS, Place, endpoint


def s3_store(corpus: Corpus, prefix: str) -> Any:
    """A prefix of the bucket, without either library."""
    return S3Store(
        **S3_OPTIONS,
        prefix=prefix,
        endpoint=endpoint(corpus.folder),
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )


def copy(corpus: Corpus, kind: str, dataset: str) -> None:
    """Every file of a dataset; nothing if the dataset is not a repository in a directory."""
    root = corpus / dataset
    store = s3_store(corpus, Place("official", kind, corpus).address(dataset))
    for path in root.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(root).as_posix(), path)


def main(folder: str, rows: str, kind: str, *datasets: str) -> None:
    """Copy the datasets."""
    for dataset in datasets:
        copy(Corpus(Path(folder), int(rows)), kind, dataset)


if __name__ == "__main__":
    main(*sys.argv[1:])
