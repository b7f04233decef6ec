"""What the package tells about its work: logs by topic, and spans for OpenTelemetry.

`icefloe.log_to_stderr("debug")` shows the logs; so does the environment variable ICEFLOE_LOG.
Without a listener nothing is formatted or measured. OpenTelemetry is never imported from here: a
program that wants spans has imported it already, and then `sys.modules` has it.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TextIO, TypeVar

from icefloe.errors import InvalidInputError

STORAGE = logging.getLogger("icefloe.storage")
"""Requests and retries."""
CACHE = logging.getLogger("icefloe.cache")
"""What was found in memory instead of being fetched."""
COMMIT = logging.getLogger("icefloe.commit")
"""Commits, rebases, and attempts that lost to another writer."""
REPOSITORY = logging.getLogger("icefloe.repository")
"""Repositories opened and created, sessions, branches, tags, settings."""
MAINTENANCE = logging.getLogger("icefloe.maintenance")
"""Expiration, garbage collection, verification, repair, migration."""

_OPENTELEMETRY = "opentelemetry.trace"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class StorageCall:
    """One request to a storage, as a context manager: a line of the log and a span."""

    __slots__ = ("_action", "_key", "_place", "_span", "_started", "nbytes")

    def __init__(self, action: str, key: str, place: str) -> None:
        self._action, self._key, self._place = action, key, place
        self._started = 0.0
        self._span: Any = None
        self.nbytes: int | None = None
        """How much came or went; set inside the block."""

    def __enter__(self) -> StorageCall:
        tracer = find_tracer()
        if tracer is not None:
            attributes = {"icefloe.key": self._key, "icefloe.storage": self._place}
            self._span = tracer.start_as_current_span(
                f"icefloe.storage.{self._action}", attributes=attributes
            )
            self._span.__enter__()
        if STORAGE.isEnabledFor(logging.DEBUG):
            self._started = time.monotonic()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._started:
            took_ms = (time.monotonic() - self._started) * 1000
            size = "" if self.nbytes is None else f", {self.nbytes} bytes"
            failed = "" if kind is None else f", {getattr(error, 'kind', kind.__name__)}"
            STORAGE.debug(
                "%s %s in %s: %.1f ms%s%s",
                self._action,
                self._key or "everything",
                self._place,
                took_ms,
                size,
                failed,
            )
        if self._span is not None:
            if self.nbytes is not None:
                current_span().set_attribute("icefloe.bytes", self.nbytes)
            self._span.__exit__(kind, error, traceback)


def observed(
    name: str, log: logging.Logger | None = None
) -> Callable[
    [Callable[Arguments, Coroutine[Any, Any, Result]]],
    Callable[Arguments, Coroutine[Any, Any, Result]],
]:
    """Make every call of an operation a span; with `log`, also a line when it starts and ends."""

    def decorate(
        operation: Callable[Arguments, Coroutine[Any, Any, Result]],
    ) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
        @functools.wraps(operation)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Coroutine[Any, Any, Result]:
            running = operation(*args, **kwargs)
            if log is not None and log.isEnabledFor(logging.INFO):
                running = _logged(name, log, running)
            return running if _OPENTELEMETRY not in sys.modules else _in_span(name, running)

        return call

    return decorate


async def _in_span(name: str, operation: Coroutine[Any, Any, Result]) -> Result:
    tracer = find_tracer()
    if tracer is None:
        return await operation
    with tracer.start_as_current_span(f"icefloe.{name}"):
        return await operation


async def _logged(name: str, log: logging.Logger, operation: Coroutine[Any, Any, Result]) -> Result:
    started = time.monotonic()
    log.info("%s: started", name)
    try:
        result = await operation
    except BaseException as error:
        log.info("%s: %s after %.1f s", name, type(error).__name__, time.monotonic() - started)
        raise
    log.info("%s: done after %.1f s", name, time.monotonic() - started)
    return result


def find_tracer() -> Any:
    """OpenTelemetry's tracer, if this program has imported OpenTelemetry; else None."""
    trace = sys.modules.get(_OPENTELEMETRY)
    # A module that another thread is still importing has no names yet.
    provider = getattr(trace, "get_tracer_provider", None)
    return None if provider is None else _tracer_of(provider())


@functools.lru_cache(maxsize=1)
def _tracer_of(provider: Any) -> Any:
    """Making a tracer takes longer than using it."""
    return provider.get_tracer("icefloe")


def is_tracing() -> bool:
    """Whether spans are made."""
    return _OPENTELEMETRY in sys.modules


def current_span() -> Any:
    """The innermost span; only where `find_tracer` has found one."""
    return sys.modules[_OPENTELEMETRY].get_current_span()


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

    >>> icefloe.log_to_stderr("warning,storage=error")
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
