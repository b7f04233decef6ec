"""Repositories written by official Icechunk, and what official Icechunk says about them.

This module only finds and loads the committed files; it needs nothing but the standard
library. The modules beside it regenerate the data (see README.md) and must never be
imported by tests, because they need several official wheels.
"""

import gzip
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"


def names() -> list[str]:
    """Names of all golden repositories, sorted."""
    return sorted(entry.name for entry in DATA.iterdir() if entry.is_dir())


def repository_path(name: str) -> Path:
    """Root folder of repository `name`; copy it before writing to it."""
    root = DATA / name
    if not root.is_dir():
        raise FileNotFoundError(f"no golden repository {name!r}; there are {', '.join(names())}")
    return root


def expectation_path(name: str) -> Path:
    """The file with the expectations of repository `name`; large ones are compressed."""
    for suffix in (".json", ".json.gz"):
        path = DATA / f"{name}{suffix}"
        if path.is_file():
            return path
    raise FileNotFoundError(f"no {name}.json or {name}.json.gz in the golden data folder")


def load_expectation(name: str) -> dict[str, Any]:
    """What official Icechunk reports about repository `name`; README.md lists the keys."""
    path = expectation_path(name)
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    expectation: dict[str, Any] = json.loads(text)
    return expectation


def object_paths(name: str, folder: str) -> list[Path]:
    """Files directly below `folder` ("manifests", "snapshots", ...), sorted by name.

    A repository without that folder has an empty list: Git keeps no empty folders.
    """
    parent = repository_path(name) / folder
    return sorted(path for path in parent.glob("*") if path.is_file())
