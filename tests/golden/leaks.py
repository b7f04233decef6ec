"""Looks for a text in every file of a repository, also inside compressed payloads.

Used to make sure that no path of the generating machine is committed. Runs in an environment
with an official wheel, whose zarr dependency brings the zstd decoder.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

# Header of snapshots, manifests, transaction logs and repo objects, before the zstd frame.
MAGIC = "ICE🧊CHUNK".encode()
HEADER_SIZE = 39


def files_with(root: Path, text: str) -> list[str]:
    """Files below `root` that hold `text` in their name, their bytes or their payload."""
    zstd: Any = importlib.import_module("numcodecs.zstd")
    wanted = text.encode()
    found = []
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        payload = zstd.decompress(data[HEADER_SIZE:]) if data.startswith(MAGIC) else b""
        name = str(path.relative_to(root))
        if text in name or wanted in data or wanted in payload:
            found.append(name)
    return found


def main() -> None:
    """Fail when TEXT occurs anywhere below ROOT."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    arguments = parser.parse_args()
    for text in arguments.texts:
        found = files_with(arguments.root, text)
        if found:
            sys.exit(f"{text!r} must not be committed, but is in {', '.join(found)}")


if __name__ == "__main__":
    main()
