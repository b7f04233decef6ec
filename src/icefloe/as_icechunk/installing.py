"""`import icechunk` means icefloe: in this process and in those it starts.

In this process a finder at the front of `sys.meta_path` answers for `icechunk` and everything below
it with the modules of this package: the same objects under both names. Processes that start later
find a folder with a package `icechunk` that does the same: on `sys.path`, which `multiprocessing`
hands to the interpreters it spawns, on PYTHONPATH (dask workers, other programs), and through
`spark.executorEnv.PYTHONPATH` in the Python workers of Spark. Objects are pickled under the names
of icefloe, so a worker that only receives them needs no folder.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ORIGINAL = "icechunk"
STAND_IN = "icefloe.as_icechunk"
FOLDER = str(Path(__file__).parents[1] / "on_path")
"""The folder for PYTHONPATH."""

_EXECUTOR_PATH = "spark.executorEnv.PYTHONPATH"


def install() -> None:
    """Let `import icechunk` and `from icechunk.x import y` find icefloe from now on.

    Call it before the first import of icechunk. Calling it again changes nothing. Spark sessions
    that are started later pass the setting on to their executors, unless they set
    `spark.executorEnv.PYTHONPATH` themselves: then add `icefloe.as_icechunk.FOLDER` to it. Where
    icefloe is installed in another place on the executors, it is the folder of that place.

    Raises:
        RuntimeError: the original is imported already, and its objects may be in use.
    """
    stand_in = import_module(STAND_IN)
    imported = sys.modules.get(ORIGINAL)
    if imported is not None and imported is not stand_in and not is_on_path(imported):
        raise RuntimeError(
            f"icechunk {getattr(imported, '__version__', '')} is imported already, from "
            f"{getattr(imported, '__file__', None)}: call icefloe.as_icechunk.install() before "
            "anything imports icechunk, or run the program with python -m icefloe.as_icechunk"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    sys.modules[ORIGINAL] = stand_in
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    os.environ["PYTHONPATH"] = _with_folder(os.environ.get("PYTHONPATH"))
    os.environ["PYSPARK_SUBMIT_ARGS"] = _submit_args(os.environ.get("PYSPARK_SUBMIT_ARGS"))


def is_on_path(module: ModuleType) -> bool:
    """Whether a module is the package in `FOLDER`, which is being replaced by this one."""
    return Path(module.__file__ or "").parent == Path(FOLDER, ORIGINAL)


class _Finder(MetaPathFinder, Loader):
    """Answers for `icechunk.x` with `icefloe.as_icechunk.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ORIGINAL and not fullname.startswith(f"{ORIGINAL}."):
            return None
        if find_spec(_ours(fullname)) is None:
            return None  # the import fails, and says so with the name that was given
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        # An empty module was made for this name. The import returns what it finds in its place.
        sys.modules[module.__name__] = import_module(_ours(module.__name__))


def _ours(name: str) -> str:
    return STAND_IN + name.removeprefix(ORIGINAL)


def _with_folder(search_path: str | None) -> str:
    others = [entry for entry in (search_path or "").split(os.pathsep) if entry not in ("", FOLDER)]
    return os.pathsep.join([FOLDER, *others])


def _submit_args(arguments: str | None) -> str:
    """What pyspark gives to the JVM it starts, with the folder for executors."""
    words = shlex.split(arguments or "pyspark-shell")
    for at, word in enumerate(words):
        if word.startswith(f"{_EXECUTOR_PATH}="):
            words[at] = f"{_EXECUTOR_PATH}={_with_folder(word.partition('=')[2])}"
            return shlex.join(words)
    return shlex.join(["--conf", f"{_EXECUTOR_PATH}={FOLDER}", *words])
