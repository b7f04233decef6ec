"""Switching the logs on, with one line.

    icefloe.log_to_stderr("debug")

or, without touching the program, the environment variable ICEFLOE_LOG.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from icefloe.errors import InvalidInputError

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
VARIABLE = "ICEFLOE_LOG"
ROOT = "icefloe"

_set_here: set[str] = set()


class StderrHandler(logging.Handler):
    """Writes to the `sys.stderr` of the moment, which a notebook or a test may have exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def stream(self) -> TextIO:
        """Where to write."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream = self.stream()
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:  # noqa: BLE001 - logging's own rule: a log never ends a program
            self.handleError(record)


def log_to_stderr(levels: str = "info") -> None:
    """Show the logs of icefloe on the terminal.

    `icefloe.storage` logs requests and retries, `icefloe.cache` what was found in memory,
    `icefloe.commit` commits and rebases, `icefloe.repository` repositories, branches and tags,
    `icefloe.maintenance` the long calls. A program that configures `logging` itself does not need
    this function: these are ordinary loggers.

    Args:
        levels: `debug`, `info`, `warning`, `error` or `off`. A topic can have a level of its own:
            `"info,storage=debug"`. Each call replaces the levels of the one before.
    """
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())
    set_levels(_parsed(levels))


def log_as_environment_says() -> None:
    """`log_to_stderr` with what ICEFLOE_LOG says, if it says something."""
    levels = os.environ.get(VARIABLE, "").strip()
    if levels:
        log_to_stderr(levels)


def set_levels(levels: Mapping[str, int]) -> None:
    """Give loggers their levels, and take back those that were given here before."""
    for name in _set_here - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    _set_here.clear()
    _set_here.update(levels)


def _parsed(levels: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in levels.split(","))):
        topic, equals, level = part.rpartition("=")
        number = LEVELS.get(level.strip().lower())
        if number is None:
            raise InvalidInputError(
                f"{level.strip()!r} is no level of the logs (in {levels!r}); expected one of "
                f"{', '.join(LEVELS)}, or topic=level with commas between"
            )
        topic = topic.strip().removeprefix(f"{ROOT}.")
        found[f"{ROOT}.{topic}" if equals and topic != ROOT else ROOT] = number
    return found
