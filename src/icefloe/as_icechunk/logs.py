"""Logs under the original's switches: ICECHUNK_LOG and `set_logs_filter`.

Programs of the original expect logs on the terminal, filtered by directives such as
`warn,icechunk::storage=debug`. Here those choose among icefloe's loggers, which are ordinary ones
(`icefloe.observe`), so a program can send the same records elsewhere with Python's `logging`.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from icefloe.observe import ROOT, StderrHandler, set_levels

_LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.NOTSET + 1,
}
_DEFAULT = "warn"

_TOPICS = {
    "icechunk::storage": "storage",
    "icechunk_storage": "storage",
    "icechunk_s3": "storage",
    "icechunk_arrow_object_store": "storage",
    "icechunk::virtual_chunks": "storage",
    "icechunk::asset_manager": "cache",
    "icechunk::session": "commit",
    "icechunk::change_set": "commit",
    "icechunk::conflicts": "commit",
    "icechunk::repository": "repository",
    "icechunk::refs": "repository",
    "icechunk::config": "repository",
    "icechunk::ops": "maintenance",
    "icechunk::inspect": "maintenance",
    "icechunk::migrations": "maintenance",
}
"""Modules of the original, and the topic that logs the same here."""


class _Console(StderrHandler):
    """Writes to stderr, or to stdout where ICECHUNK_LOG_TO_STDOUT is set."""

    def stream(self) -> TextIO:
        return sys.stdout if "ICECHUNK_LOG_TO_STDOUT" in os.environ else super().stream()


def initialize_logs() -> None:
    """Send logs to the terminal; the environment variable ICECHUNK_LOG says which.

    They go to stderr, or to stdout where ICECHUNK_LOG_TO_STDOUT is set.
    """
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(_Console())
    set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Choose which logs are written: `level`, or `module=level` several times, with commas between.

    Levels are `off`, `error`, `warn`, `info`, `debug` and `trace`. The module `icechunk` is all of
    icefloe; `icechunk::storage`, `icechunk::session`, `icechunk::repository` and the others are
    the topics of `icefloe.log_to_stderr` that log the same. Modules of other libraries are
    ignored. None takes the directive from ICECHUNK_LOG.
    """
    text = log_filter_directive
    if text is None:
        text = os.environ.get("ICECHUNK_LOG", _DEFAULT)
    levels = {ROOT: _LEVELS["error" if not text.strip() else "off"]}
    for directive in filter(None, map(str.strip, text.split(","))):
        module, _, level = directive.partition("=")
        if not level and module.lower() in _LEVELS:
            levels[ROOT] = _LEVELS[module.lower()]
        elif (name := _logger_name(module)) is not None:
            levels[name] = _LEVELS.get(level.lower(), _LEVELS["trace"])
    set_levels(levels)


def shutdown_telemetry() -> None:
    """Nothing to do: spans go to the OpenTelemetry of the program, which ends it itself."""


def _logger_name(module: str) -> str | None:
    """The logger for a module of the original; None for one of another library."""
    path = module.partition("[")[0].strip()  # what follows chooses spans, which are no logs here
    if path == ROOT or path.startswith(f"{ROOT}."):
        return path
    if not path.startswith("icechunk"):
        return None
    while path:
        if path in _TOPICS:
            return f"{ROOT}.{_TOPICS[path]}"
        path = path.rpartition("::")[0]
    return ROOT
