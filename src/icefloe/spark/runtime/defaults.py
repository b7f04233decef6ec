"""What is settled about a Spark session before it is made: by spark-submit, by files, by variables.

A setting that is made in Python wins over all of these. So whoever makes a session has to know
them, to leave alone what an administrator has set.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_FLAGS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
_PROPERTY = re.compile(r"\s*((?:\\.|[^\s=:\\])+)(?:\s*[=:]\s*|\s+)(.*)\Z")


def settled(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that Spark would start with if none were given."""
    if is_submitted(environment):
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - not in Connect's own package

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    given, file = submit_arguments(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    path = Path(file) if file else _defaults_file(environment)
    stored = properties(path.read_text()) if path.is_file() else {}
    return {**stored, **given}


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Whether spark-submit has started this program: its Java runs, with its own settings."""
    return _SUBMITTED in environment


def submit_arguments(text: str) -> tuple[dict[str, str], str | None]:
    """Settings among the arguments of spark-submit, and the file of properties they name."""
    words = [part for word in shlex.split(text) for part in _split_flag(word)]
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


def _split_flag(word: str) -> list[str]:
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag.startswith("--") else [word]


def _defaults_file(environment: Mapping[str, str]) -> Path:
    folder = environment.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    return Path(folder, "spark-defaults.conf")
