"""Logs under the original's switches: ICECHUNK_LOG and `set_logs_filter`.

icefloe writes its logs with Python's `logging`, to loggers below `icefloe`. Programs of the
original expect them on the terminal, filtered by directives such as `icechunk=debug,warn`.
"""

from __future__ import annotations

import logging
import os
import sys

_LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.NOTSET + 1,
}
_DEFAULT = "warn"
_set_before: set[str] = set()


class _Console(logging.Handler):
    """Writes to the terminal of the moment: `sys.stderr` may be exchanged."""

    def emit(self, record: logging.LogRecord) -> None:
        to_stdout = "ICECHUNK_LOG_TO_STDOUT" in os.environ
        print(self.format(record), file=sys.stdout if to_stdout else sys.stderr)


def initialize_logs() -> None:
    """Send logs to the terminal; the environment variable ICECHUNK_LOG says which.

    They go to stderr, or to stdout where ICECHUNK_LOG_TO_STDOUT is set.
    """
    logger = logging.getLogger("icefloe")
    if not any(isinstance(handler, _Console) for handler in logger.handlers):
        console = _Console()
        console.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(console)
    set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Choose which logs are written: `level`, or `module=level` several times, with commas between.

    Levels are `off`, `error`, `warn`, `info`, `debug` and `trace`; the module `icechunk` is all of
    icefloe. None takes the directive from ICECHUNK_LOG.
    """
    text = log_filter_directive
    if text is None:
        text = os.environ.get("ICECHUNK_LOG", _DEFAULT)
    levels = {"icefloe": _LEVELS["error" if not text.strip() else "off"]}
    for directive in filter(None, map(str.strip, text.split(","))):
        module, _, level = directive.partition("=")
        if not level and module.lower() in _LEVELS:
            levels["icefloe"] = _LEVELS[module.lower()]
        else:
            levels[_logger_name(module)] = _LEVELS.get(level.lower(), _LEVELS["trace"])
    for name in _set_before - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, number in levels.items():
        logging.getLogger(name).setLevel(number)
    _set_before.clear()
    _set_before.update(levels)


def shutdown_telemetry() -> None:
    """Nothing to do: icefloe exports no traces."""


def _logger_name(module: str) -> str:
    dotted = module.replace("::", ".")
    first, dot, rest = dotted.partition(".")
    return ("icefloe" if first.startswith("icechunk") else first) + dot + rest
