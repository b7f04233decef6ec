"""What the package tells about its work: logs by topic, and spans for OpenTelemetry.

Nothing is formatted or measured while nobody listens. OpenTelemetry is never imported from here:
a program that wants spans has imported it already, and then `sys.modules` has it.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

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
