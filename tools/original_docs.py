"""Runs the Python blocks of official Icechunk's documentation under `icefloe.as_icechunk`.

    python tools/original_docs.py CHECKOUT [--page NAME] [--verbose]

CHECKOUT is a copy of the repository earth-mover/icechunk. The blocks of a page run one after the
other in one namespace, twice: with icefloe and with the installed original. It starts with the
names that pages take as given (`STARTED_WITH`), and placeholders in the code are filled in
(`PLACEHOLDERS`). A block that fails after those before it is tried on its own. One that fails
leaves the namespace as it was. For each block the tool prints one of:

    ran         it ran with icefloe
    both fail   it fails with the original as well: it is not Python, or names what is nowhere
    left out    it is one of `LEFT_OUT`, for the reason given there
    ONLY OURS   it fails with icefloe and not with the original, or with another error

Exits with 1 if there is one of the last kind. Nothing of the documentation is kept.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

BLOCK = re.compile(
    r"^([ \t]*)```+[ \t]*python[^\n]*\n(.*?)^\1```+[ \t]*$", re.MULTILINE | re.DOTALL
)
"""Indentation and code."""

DOCUMENTS = ("icechunk-python/docs/docs", "icechunk-python/README.md", "README.md")
SECONDS = 400
"""For all blocks of one page with one library."""

NETWORK = "asks a server on the internet"
LEFT_OUT = {
    r"(s3|gcs|azure)_storage\([^.)].*Repository\.(create|open)\(": NETWORK,
    r"earthmover-sample-data|data\.icechunk\.cloud|public-weather|s3://": NETWORK,
    r"arraylake": "needs the service Arraylake",
    r"serve_forever\(\)": "a server that never returns",
    r"redirect_storage\(.*Repository\.open": "asks the server of the block before",
    r"/path/to/my/dataset": "writes outside of its folder",
    r"allow_pickling\(\)": "shows a call that the original has not had since 1.0",
    r"return \[new\] if new": "gives chunks of a two-dimensional array one index, which is refused",
}
"""Blocks that are not run, by a pattern of their code (`.` matches across lines), and why."""

NO_REQUEST = r"set_virtual_ref\(|VirtualChunkContainer\(|REPOS = |S3_OBJECTS"
"""Blocks that name a bucket without asking for it: they run."""

ORIGINAL_HANGS = "ProcessPoolExecutor"
"""Blocks that are not run with the original: it does not survive a fork."""

PLACEHOLDERS = {
    r'"(198273178639187|abc123)"': "snapshot_id",
    r"Repository\.open\(\.\.\.": "Repository.open(storage",
    r"\.create_dataset\(": ".create_array(",  # the name it had in older releases of Zarr
}

PAGE = "page"
STARTED_WITH = """
import asyncio, logging as log, os, tempfile
from datetime import UTC, datetime, timedelta
import numpy as np
import xarray as xr
import zarr
import icechunk
import icechunk as ic
from icechunk import GcsBearerCredential, S3StaticCredentials

storage = icechunk.in_memory_storage()
repo = icechunk.Repository.create(storage)
session = repo.writable_session("main")
root = zarr.open_group(session.store)
paths = "my_array group/array my-group/array old/path temperature pressure humidity data"
for path in paths.split():
    root.create_array(path, shape=(20, 20), chunks=(2, 2), dtype="i4")[:] = 1
for path in ("arr", "sensors/temperature"):
    root.create_array(path, shape=(48,), chunks=(24,), dtype="i4")[:] = 1
root.create_group("group/subgroup")
root.create_group("new")
snapshot_id = snap = session.commit("what pages start from")
for name in ("branch_name", "dev", "my-new-branch"):
    repo.create_branch(name, snapshot_id)
for name in ("my-new-tag", "v1.0.0"):
    repo.create_tag(name, snapshot_id)
session = repo.writable_session("main")
store = session.store
group = zarr.open_group(store, path="group")
arr = array = zarr.open_array(store, path="my_array")
array[0, 0] = 2
forecast = zarr.open_group(store)
config = icechunk.RepositoryConfig(storage=icechunk.StorageSettings())
ds = xr.Dataset({"t2m": (("time", "x"), np.arange(12.0).reshape(3, 4))})
def write_timestamp(*, itime, session):
    zarr.open_array(session.store, path="my_array")[itime] = 3
    return session

solver = icechunk.ConflictDetector()
expiry_time = datetime.now(UTC) - timedelta(days=10)
n, t, i, n_chunks, new_time, name, today, reading = 4, 3, 1, 10, 0, "nope", "monday", 1.0
new_data = new_temp_data = new_pressure_data = corrupted_data = todays_readings = 2
temp_data = press_data = humid_data = temp_forecast = pressure_forecast = humidity_forecast = 3
new_humidity_data = wind_forecast = 4
shift_array = session.shift_array
ingest = analyze = print

def small_dataset(name, **options):
    "In place of one that is downloaded."
    shape = (36, 20, 30)
    values = np.arange(36 * 600.0).reshape(shape)
    times = np.datetime64("1980-09-16", "ns") + np.arange(36) * np.timedelta64(30, "D")
    if name == "rasm":
        return xr.Dataset({"Tair": (("time", "y", "x"), values)}, {"time": times})
    coordinates = {"time": times, "lat": np.arange(20.0), "lon": np.arange(30.0)}
    return xr.Dataset({"air": (("time", "lat", "lon"), values)}, coordinates)

xr.tutorial.open_dataset = small_dataset
"""
OR_WITH = """
storage = icechunk.in_memory_storage()
repo = icechunk.Repository.create(icechunk.in_memory_storage())
session = repo.writable_session("main")
store = session.store
snapshot_id = session.snapshot_id
"""
"""Nothing in the storage, and an empty repository: for blocks that create what they use."""


class Outcome(NamedTuple):
    """What became of a block: its line, its first words, and its error if there was one."""

    line: int
    start: str
    error: str
    kinds: list[str]
    """The classes of the error."""


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Line and code of each block."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        code = textwrap.dedent(found[2])
        if code.lstrip().startswith(">>>"):
            code = "".join(each.source for each in doctest.DocTestParser().get_examples(code))
        for pattern, value in PLACEHOLDERS.items():
            code = re.sub(pattern, value, code)
        yield text[: found.start(2)].count("\n") + 1, code


def reason_to_leave_out(code: str) -> str | None:
    """Why a block is not run; None if it is."""
    if re.search(NO_REQUEST, code) and "serve_forever" not in code and "to_icechunk" not in code:
        return None
    found = (why for pattern, why in LEFT_OUT.items() if re.search(pattern, code, re.DOTALL))
    return next(found, None)


def run_page(page: Path) -> list[Outcome]:
    """Run the blocks of a page in this process, with the icechunk it imports."""
    namespace = _start()
    page_module = sys.modules[PAGE]
    outcomes = []
    for line, code in blocks(page):
        start = next((row for row in code.splitlines() if row.strip()), "").strip()
        hangs = ORIGINAL_HANGS in code and not hasattr(namespace["ic"], "install")
        if reason_to_leave_out(code) is not None or hangs:
            outcomes.append(Outcome(line, start, "left out", []))
            continue
        before = dict(namespace)
        problem = _attempt(code, namespace)
        if problem is not None:
            for more in ("", OR_WITH):
                alone = _start(more)
                problem = _attempt(code, alone)
                if problem is None:
                    # What it defines is there for the next block.
                    before |= {name: alone[name] for name in alone if name not in before}
                    break
            sys.modules[PAGE] = page_module
            namespace.clear()
            namespace.update(before)
        error = "" if problem is None else f"{type(problem).__name__}: {problem}".splitlines()[0]
        kinds = [] if problem is None else [each.__name__ for each in type(problem).__mro__]
        outcomes.append(Outcome(line, start, error, kinds))
    return outcomes


def _start(more: str = "") -> dict[str, Any]:
    """A namespace. It is that of a module, so that worker processes find functions in it."""
    module = sys.modules[PAGE] = ModuleType(PAGE)
    exec(STARTED_WITH + more, vars(module))
    return vars(module)


def _attempt(code: str, namespace: dict[str, Any]) -> BaseException | None:
    """Run a block; `await` outside of functions is allowed, as in a notebook."""
    try:
        compiled = compile(code, "<block>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()):
            result = eval(compiled, namespace)
            if inspect.iscoroutine(result):
                asyncio.run(result)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - the original panics outside of Exception
        return problem
    return None


def outcomes_in_a_process(page: Path, library: str) -> list[Outcome]:
    """Run a page with one of the libraries, in an empty folder."""
    by = ["-m", "icefloe.as_icechunk"] if library == "icefloe" else []
    here = str(Path(__file__).resolve())
    settings = {"ICECHUNK_LOG": "off", "AWS_EC2_METADATA_DISABLED": "true", "MPLBACKEND": "agg"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *by, here, "--run", str(page.resolve())],
            env=os.environ | settings,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{page} with {library}: {done.stderr[-4000:]}")
    return [Outcome(*each) for each in json.loads(done.stdout.splitlines()[-1])]


def judge(ours: Outcome, original: Outcome) -> str:
    """The word for a block."""
    if ours.error == "left out":
        return "left out"
    if not ours.error:
        return "ran"
    is_same = bool(original.kinds) and original.kinds[0] in (*ours.kinds, "PanicException")
    return "both fail" if is_same else "ONLY OURS"


def pages(checkout: Path, name: str | None) -> Iterator[Path]:
    """The pages that have blocks."""
    for place in DOCUMENTS:
        found = checkout / place
        for page in sorted(found.rglob("*.md")) if found.is_dir() else [found]:
            if page.is_file() and name in (None, page.name) and any(blocks(page)):
                yield page


def main() -> int:
    """Run all pages and print what became of their blocks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--page", help="only pages of this file name")
    parser.add_argument("--verbose", action="store_true", help="name the blocks that ran, too")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        print(json.dumps(run_page(chosen.checkout)))
        return 0
    count: Counter[str] = Counter()
    for page in pages(chosen.checkout, chosen.page):
        codes = dict(blocks(page))
        ours, original = (outcomes_in_a_process(page, each) for each in ("icefloe", "icechunk"))
        for mine, theirs in zip(ours, original, strict=True):
            word = judge(mine, theirs)
            count[word] += 1
            if word != "ran" or chosen.verbose:
                why = reason_to_leave_out(codes[mine.line]) or mine.error
                print(
                    f"{word:9}  {page.name}:{mine.line}  {mine.start[:60]}\n           {why[:300]}"
                )
            if word == "ONLY OURS":
                print(f"           original: {theirs.error[:300] or 'runs'}")
    print(", ".join(f"{number} {word}" for word, number in sorted(count.items())))
    return 1 if count["ONLY OURS"] else 0


if __name__ == "__main__":
    sys.exit(main())
