"""Ingests every file of a folder and compares the result with what xarray reads from the file.

    python tools/corpus.py FOLDER [FOLDER ...] [--seconds 60] [--gigabytes 6] [--json FILE]

For each file and mode (native, virtual) it prints one of: same, refused, different, traceback,
hang. `unreadable` is a file that neither xarray nor h5py can read; there the ingest may refuse it
or not, but must not end in a traceback. Refusals are grouped by their reason at the end. Files are
read by a worker process with a limit of memory: some make readers hang or eat all there is. Exits
with 1 if any file is different, a traceback or a hang.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import selectors
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

MODES = ("native", "virtual")
BAD = ("different", "traceback", "hang")
FILES_A_PROCESS = 60
Row = dict[str, str]
"""`file`, `mode`, `outcome`, `reason`."""

_SIGNATURES = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF", b"GRIB")
_HDF5_STARTS = (0, 512, 1024, 2048, 4096, 8192)
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|-?\b[0-9][0-9,.e+]*\b")


class Worker:
    """A process that compares files, one after the other; a new one follows when it dies."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        self._seconds, self._most_bytes = seconds, most_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._files = 0

    def compare(self, path: Path, mode: str) -> tuple[str, str]:
        """The outcome for one file, and the reason.

        A file that xarray hangs at, or that ends the process in xarray, is compared with h5py.
        """
        outcome, reason = self._ask(path, mode, "xarray")
        if outcome == "lost":
            told = f"xarray: {reason}"
            outcome, reason = self._ask(path, mode, "h5py")
            if outcome in ("lost", "unreadable"):
                return "unreadable", told
        return outcome, reason

    def _ask(self, path: Path, mode: str, reader: str) -> tuple[str, str]:
        """Outcome and reason; `lost` when the ingest was done but the comparison was not."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(path), mode, reader]).encode() + b"\n")
        process.stdin.flush()
        trouble = ("hang", "traceback")
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(self._seconds):
                    self.close()
                    return trouble[0], f"no answer after {self._seconds:g} seconds"
            line = process.stdout.readline()
            if not line:
                code = process.wait()
                self._process = None
                return trouble[1], f"the process ended with {code}"
            outcome, reason = json.loads(line)
            if outcome != "ingested":
                break
            trouble = ("lost", "lost")
        self._files += 1
        if outcome == "traceback" or self._files % FILES_A_PROCESS == 0 or self._is_large():
            self.close()  # libraries keep what they allocated, most of all when something failed
        return str(outcome), str(reason)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            limit = self._most_bytes

            def limited() -> None:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OPENBLAS_NUM_THREADS": "1",
                "MALLOC_ARENA_MAX": "2",
            }
            # Unbuffered: what waits in a buffer of this side is not seen by the selector.
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "corpus_worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                preexec_fn=limited,  # noqa: PLW1509 - there are no threads here
                env=environment,
            )
        return self._process

    def _is_large(self) -> bool:
        """Whether little memory is left for the next file: xarray follows groups in circles."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[0])
        return pages * resource.getpagesize() > self._most_bytes / 2

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def find_files(folders: Sequence[Path]) -> Iterator[Path]:
    """Files that start as NetCDF, HDF5 or GRIB files do, whatever their names."""
    for folder in folders:
        found = [folder] if folder.is_file() else sorted(folder.rglob("*"))
        yield from (path for path in found if path.is_file() and _is_data(path))


def _is_data(path: Path) -> bool:
    with path.open("rb") as stream:
        for start in _HDF5_STARTS:
            stream.seek(start)
            if stream.read(4) in (_SIGNATURES if start == 0 else _SIGNATURES[3:4]):
                return True
    return False


def summarize(rows: Sequence[Row]) -> None:
    """Counts, and refusals by reason without the names and numbers in it."""
    for mode in MODES:
        counts = Counter(row["outcome"] for row in rows if row["mode"] == mode)
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        print(f"{mode}: {told}")
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["outcome"] == "refused":
            reasons[_NAMES.sub("…", row["reason"].partition("\n")[0])[:160]].append(row["file"])
    for reason, files in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"refused {len(files):4d}  {reason}  (such as {Path(files[0]).name})")


def main(arguments: Sequence[str]) -> int:
    """Compare all files; 1 if any came out wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="time limit for a file")
    parser.add_argument("--gigabytes", type=float, default=6, help="memory limit of the process")
    parser.add_argument("--json", type=Path, help="also write all outcomes to this file")
    parser.add_argument("--quiet", action="store_true", help="print only what went wrong")
    chosen = parser.parse_args(arguments)
    worker = Worker(chosen.seconds, int(chosen.gigabytes * 2**30))
    rows: list[Row] = []
    started = time.monotonic()
    try:
        for path in find_files(chosen.folders):
            for mode in MODES:
                outcome, reason = worker.compare(path.absolute(), mode)
                rows.append({"file": str(path), "mode": mode, "outcome": outcome, "reason": reason})
                if outcome in BAD or not chosen.quiet:
                    print(f"{outcome:10s} {mode:7s} {path}  {reason}", flush=True)
    finally:
        worker.close()
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    summarize(rows)
    print(f"{len(rows) // len(MODES)} files in {time.monotonic() - started:.0f} seconds")
    return int(any(row["outcome"] in BAD for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
