"""Builds the virtual environment the Makefile uses, once, and again when its inputs change.

Runs before anything is installed, so: standard library only, and syntax that Python 3.8 reads.
The Python that runs this file is not the one that gets used: every Python found is asked for its
version, and the newest wins. Packages are installed by uv where it is there or can be had, which is
several times faster, and else by pip.

An environment is built for a purpose: `test` (everything), `demo` and `first` (what the demo needs,
or its first step), `docs` (what the site needs), `oldest` (the oldest Python that is supported, and
dependencies in the lowest versions that pyproject.toml allows), `spark-3.5` and `spark-4.0` (an
older Spark). `--extras` installs icefloe with these extras and nothing else, as a user has it;
with `--package`, from a wheel or an sdist instead of this folder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
EXTRAS = "dev,docs,xarray,dask,hdf5,grib,virtual,spark,connect,aws,cli"
OLDEST_EXTRAS = "dev,xarray,dask,hdf5,grib,virtual,spark,aws,cli"

REQUIREMENTS = {
    "test": [f"-e.[{EXTRAS}]"],
    "oldest": [f"-e.[{OLDEST_EXTRAS}]", "setuptools"],
    "spark-3.5": [f"-e.[{OLDEST_EXTRAS}]", "setuptools"],
    "spark-4.0": [f"-e.[{OLDEST_EXTRAS}]"],
    "demo": ["-e.[spark,xarray,hdf5,cli]", "matplotlib"],
    "first": ["-e.[xarray,hdf5,cli]", "matplotlib"],
    "docs": ["-e.[docs]"],
}
"""What is installed for each purpose; Spark 3.5 needs the distutils that setuptools has."""
ALSO_FOR = {"test": {"demo", "first", "docs"}, "demo": {"first"}}
"""Purposes that an environment made for another one serves as well."""


FIRST_IMPORTS = {
    "first": "import h5netcdf, icefloe.ingests, icefloe.xarray, matplotlib.pyplot",
    "demo": "import icefloe.spark, pandas, pyspark.sql.connect",
}
"""What a set-up imports once, because Python then compiles it: up to twenty silent seconds."""


def requirements(purpose: str) -> list[str]:
    """What is installed for a purpose, which may be a list of requirements itself."""
    return REQUIREMENTS[purpose] if purpose in REQUIREMENTS else purpose.split()


# Lies in every environment made here from its first moment; a folder without it is not ours.
MARK = ".made-by-icefloe"
# Lies in an environment whose installation came to its end.
STAMP = ".installed.json"

# Any Python must be able to run this, even one that is far too old. The last item is the Python
# behind a virtual environment: building on the environment itself would tie the two together.
PROBE = """
import json, sys, sysconfig
try:
    import ensurepip, venv
    has_pip = True
except ImportError:
    has_pip = False
print(json.dumps([
    list(sys.version_info),
    sys.implementation.name + ("-nogil" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    has_pip,
    getattr(sys, "_base_executable", None) or sys.executable,
]))
"""


class SetupError(Exception):
    """Something only the user can put right; the message says what."""


class Interpreter(NamedTuple):
    """A Python that was run and answered."""

    version: tuple[int, int, int]
    is_final: bool
    implementation: str
    has_pip: bool
    path: str

    @property
    def text(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))

    @property
    def is_supported(self) -> bool:
        """Whether icefloe's dependencies publish packages for it: released, ordinary CPython."""
        return self.version >= OLDEST and self.is_final and self.implementation == "cpython"


def ask(command: str) -> Interpreter | None:
    """Run `command` to learn what it is; None when it cannot be run or gives no answer."""
    try:
        answer = subprocess.run(
            [command, "-I", "-c", PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=True,
        ).stdout
        version, implementation, has_pip, path = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    major, minor, micro, level, _ = version
    return Interpreter((major, minor, micro), level == "final", implementation, has_pip, path)


def candidates() -> Iterator[str]:
    """Paths that may be a Python, those on PATH first."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if folder and Path(folder).is_dir():
            for path in sorted(Path(folder).iterdir()):
                if re.fullmatch(r"python(3(\.\d+)?)?", path.name):
                    yield str(path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob("versions/*/bin/python")))


def choose_named(command: str) -> Interpreter:
    """The Python the user asked for with PYTHON=..., if it will do."""
    found = ask(command)
    if found is None:
        raise SetupError(f"PYTHON={command!r} cannot be run, or is not a Python 3")
    if not found.is_supported:
        raise SetupError(
            f"PYTHON={command!r} is {found.implementation} {found.text}; "
            "icefloe needs a released CPython 3.11 or newer"
        )
    if not found.has_pip:
        raise SetupError(no_pip_message(found))
    return found


def choose_found(oldest: bool = False, minor: str | None = None) -> Interpreter:
    """The newest Python on this machine that will do, or the last release of the oldest one.

    Of equals, the first on PATH. With `minor`, such as 3.12, only releases of that version.
    """
    seen: dict[tuple[int, int, int], list[Interpreter]] = {}
    for command in candidates():
        found = ask(command)
        if found is not None and found.is_supported and found.text.startswith(f"{minor or 3}."):
            seen.setdefault(found.version, []).append(found)
    versions = sorted(seen, reverse=True)
    if oldest:
        versions.sort(key=lambda version: version[:2])
    for version in versions:
        for found in seen[version]:
            if found.has_pip:
                return found
    if seen:
        raise SetupError(no_pip_message(seen[versions[0]][0]))
    if minor is not None:
        raise SetupError(f"no Python {minor} was found on PATH or in pyenv: install it")
    raise SetupError(
        "icefloe needs Python 3.11 or newer (3.12 or newer to run every test) and found none on "
        "PATH or in pyenv: install it (from your system's packages, pyenv or python.org), or name "
        "it with PYTHON=..."
    )


def no_pip_message(found: Interpreter) -> str:
    """What to do about a Python that was packaged without ensurepip."""
    major, minor, _ = found.version
    return (
        f"{found.path} (Python {found.text}) cannot make virtual environments with pip: its "
        f"ensurepip module is missing. On Debian and Ubuntu: apt install python{major}.{minor}-venv"
    )


def place_of(venv: Path) -> str:
    """Where environment and repository are; installed scripts hold both, so neither can move."""
    return f"{venv} for {ROOT}"


def pins_of(purpose: str) -> str:
    """The exact versions to install, as a constraints file.

    Those of constraints.txt; for `oldest`, the lines of constraints-oldest.txt replace theirs, and
    so for each purpose that has such a file.
    """
    pins = (ROOT / "constraints.txt").read_text()
    other = ROOT / f"constraints-{purpose}.txt"
    if not other.exists():
        return pins
    low = other.read_text()
    names = {name_in(line) for line in low.splitlines()}
    kept = [line for line in pins.splitlines() if name_in(line) not in names]
    return "\n".join([*kept, low])


def name_in(pin: str) -> str:
    """The package a line of a constraints file is about; empty for a comment."""
    return re.sub(r"[-_.]+", "-", re.split("#|==", pin)[0].strip()).lower()


def key_of(venv: Path, version: str, purpose: str) -> str:
    """Changes whenever an environment has to be installed again."""
    digest = hashlib.sha256()
    for part in (version, *requirements(purpose), place_of(venv), pins_of(purpose)):
        digest.update(part.encode() + b"\0")
    digest.update((ROOT / "pyproject.toml").read_bytes() + b"\0")
    return digest.hexdigest()


def read_stamp(venv: Path) -> dict[str, str]:
    """Version, place and key of the last finished installation; empty when there was none."""
    try:
        stamp: dict[str, str] = json.loads((venv / STAMP).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return stamp


def write_stamp(venv: Path, version: str, purpose: str) -> None:
    """Record that the installation is complete; whole or not at all."""
    partial = venv / (STAMP + ".partial")
    key = key_of(venv, version, purpose)
    stamp = {"version": version, "place": place_of(venv), "purpose": purpose, "key": key}
    partial.write_text(json.dumps(stamp))
    partial.replace(venv / STAMP)


def remove(venv: Path) -> None:
    """Delete an environment made here. Refuses any other folder: a typo must not cost data."""
    if not venv.exists():
        return
    if not (venv / MARK).exists() and any(venv.iterdir()):
        raise SetupError(
            f"{venv} exists and was not made by this set-up, so it is left alone: "
            "remove it yourself, or choose another folder with ICEFLOE_VENV=..."
        )
    # The mark goes last, so that a removal cut short can be finished.
    for path in venv.iterdir():
        if path.name != MARK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(venv)


def run_quietly(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run `command`; its output is shown only when it fails."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=str(ROOT),
        env={**os.environ, **(environment or {})},
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        raise SetupError(f"this command failed, its output is above: {' '.join(command)}")


def prepare(venv: Path, purpose: str = "test", minor: str | None = None) -> None:
    """Make `venv` complete and current; does nothing when it already is."""
    stamp = read_stamp(venv)
    if purpose in ALSO_FOR.get(stamp.get("purpose", ""), ()):
        purpose = stamp["purpose"]
    wanted = choose_named(os.environ["PYTHON"]) if os.environ.get("PYTHON") else None
    wanted = wanted if minor is None else choose_found(minor=minor)
    in_place = stamp.get("place") == place_of(venv)
    present = ask(str(venv / "bin" / "python")) if in_place else None
    # Without PYTHON=... an environment keeps the Python it was made with.
    same_python = (
        present is not None
        and present.text == stamp["version"]
        and (wanted is None or wanted.version == present.version)
    )
    if present and same_python and stamp["key"] == key_of(venv, present.text, purpose):
        return

    started = time.monotonic()
    if present and same_python:
        chosen = present
        (venv / STAMP).unlink()
    else:
        oldest = purpose == "oldest"
        chosen = wanted or choose_found(oldest)
        if oldest and chosen.version[:2] != OLDEST:
            say("no Python 3.11 was found on PATH or in pyenv, so this is the oldest that will do:")
        say(f"Python {chosen.text} ({chosen.path}), environment in {shown(venv)}")
        remove(venv)
        venv.mkdir(parents=True)
        (venv / MARK).write_text("Made by tools/setup_env.py, which may delete this folder.\n")
    install(venv, chosen, purpose)
    if purpose in FIRST_IMPORTS:
        say("compiling what is imported first")
        with heartbeat(venv):
            run_quietly([str(venv / "bin" / "python"), "-c", FIRST_IMPORTS[purpose]])
    write_stamp(venv, chosen.text, purpose)
    count, size = contents(venv)
    say(f"ready after {time.monotonic() - started:.0f} s: {count} packages, {size >> 20} MB")


def install(venv: Path, python: Interpreter, purpose: str) -> None:
    """Make the environment, if it is not there, and install what the purpose needs."""
    what = {
        "first": "icefloe, xarray, h5py and matplotlib: 28 packages, 400 MB",
        "demo": "Spark and Java: 7 packages, 600 MB (a minute or two)",
        "docs": "what the documentation site needs",
    }
    usual = "what icefloe and its tests need (a minute or two)"
    say(f"installing {what.get(purpose, usual if purpose in REQUIREMENTS else purpose)}")
    pins = venv / "constraints.txt"
    pins.write_text(pins_of(purpose))
    wanted = ["-c", str(pins), *requirements(purpose)]
    inside = str(venv / "bin" / "python")
    with heartbeat(venv):
        uv = find_uv(venv, python)
        if uv is not None:
            try:
                if not Path(inside).exists():
                    # Tests install other packages with the environment's pip.
                    seed = [] if purpose in ("demo", "first", "docs") else ["--seed"]
                    make = [uv, "venv", "--quiet", "--allow-existing", *seed]
                    run_quietly([*make, "--python", python.path, str(venv)], uv_settings(python))
                place = [uv, "pip", "install", "--quiet", "--python", inside]
                run_quietly([*place, *wanted], uv_settings(python))
                return
            except SetupError as error:
                say(f"uv could not do it, so pip tries: {error}")
        if not Path(inside).exists() or not has_pip(inside):
            run_quietly([python.path, "-m", "venv", str(venv)])
        pip = [inside, "-m", "pip", "install", "--quiet", "--no-input"]
        run_quietly([*pip, "--disable-pip-version-check", *wanted])


def contents(venv: Path) -> tuple[int, int]:
    """How many packages an environment has, and their bytes."""
    folders = list(venv.glob("lib/python*/site-packages"))
    files = [path for folder in folders for path in folder.rglob("*")]
    count = sum(path.name.endswith(".dist-info") for path in files)
    return count, sum(path.stat().st_size for path in files if path.is_file())


def has_pip(python: str) -> bool:
    """Whether an environment has pip."""
    tried = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
    return tried.returncode == 0


def find_uv(venv: Path, python: Interpreter) -> str | None:
    """The uv on PATH, or one that pip gets for this environment; None if it cannot be had."""
    if os.environ.get("ICEFLOE_INSTALLER") == "pip":
        return None
    on_path = shutil.which("uv")
    if on_path is not None:
        return on_path
    folder = venv / ".uv"
    found = folder / "bin" / "uv"
    if not found.exists():
        get = [python.path, "-m", "pip", "install", "--quiet", "--no-input", "--target"]
        get += [str(folder), "--disable-pip-version-check", "uv"]
        subprocess.run(get, capture_output=True, check=False)
    return str(found) if found.exists() else None


def uv_settings(python: Interpreter) -> dict[str, str]:
    """Where pip finds packages, in uv's words: uv does not read pip's configuration."""
    listed = subprocess.run(
        [python.path, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    rows = re.findall(r"^[^=]*?\.([a-z-]+)='(.*)'$", listed.stdout, re.MULTILINE)
    pip = dict(rows)
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
        "cert": "SSL_CERT_FILE",
    }
    found = {uv: pip[name] for name, uv in names.items() if pip.get(name)}
    # pip takes the best version of all indexes, uv would take the first index that has any.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_LINK_MODE": "copy", **found}


@contextmanager
def heartbeat(venv: Path) -> Iterator[None]:
    """Say every few seconds how far it is, so that nobody takes it for dead."""
    done = threading.Event()
    started = time.monotonic()

    def beat() -> None:
        while not done.wait(10):
            count = len(list(venv.glob("lib/python*/site-packages/*.dist-info")))
            # uv downloads all packages before it installs any, and itself is one.
            far = f"{count} packages so far" if count > 1 else "downloading"
            say(f"... {time.monotonic() - started:.0f} s, {far}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def shown(venv: Path) -> str:
    """The path as short as it can be said from the repository."""
    return str(venv.relative_to(ROOT)) if ROOT in venv.parents else str(venv)


def say(line: str) -> None:
    """One line of progress, at once."""
    print(f"set-up: {line}", flush=True)


def main() -> int:
    """Read the command line, and let only one set-up of this repository run at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path, help="folder of the environment")
    parser.add_argument("--remove", action="store_true", help="delete it instead")
    parser.add_argument(
        "--for", dest="purpose", choices=REQUIREMENTS, default="test", help="what it is for"
    )
    parser.add_argument("--python", help="the Python to make it with, such as 3.11")
    parser.add_argument("--extras", help="icefloe with these extras and nothing else")
    parser.add_argument("--package", default="-e.", help="... from this wheel or sdist")
    parser.add_argument("--also", nargs="*", default=[], help="... and these packages")
    arguments = parser.parse_args()
    purpose = arguments.purpose
    if arguments.extras is not None:
        purpose = " ".join([f"{arguments.package}[{arguments.extras}]", *arguments.also])
    venv = ROOT / arguments.venv
    with (ROOT / "pyproject.toml").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this repository to finish")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if arguments.remove:
                remove(venv)
            else:
                prepare(venv, purpose, arguments.python)
        except SetupError as error:
            print(f"set-up: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
