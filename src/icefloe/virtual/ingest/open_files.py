"""Source files while their values are copied: few are open at once, every error names its file.

Errors of libraries do not say which file they are about. The copy has to know: with
`on_error="skip"` that file is left out, and the others are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from numpy.typing import NDArray

from icefloe.errors import IcefloeError
from icefloe.geometry import Slices
from icefloe.records import record
from icefloe.virtual.formats.opening import NativeReader, open_native
from icefloe.virtual.model.description import SourceError
from icefloe.virtual.places.access import SourceAccess

MAX_OPEN_FILES = 64


class DamagedSourceError(SourceError):
    """A file that could be described cannot be read."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location, self.reason = location, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.reason)


class OpenFiles:
    """Opens files when they are first read; closes them when there are too many, and at the end."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        self._stack = ExitStack()
        self._readers: dict[str, NativeReader] = {}

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def at(self, location: str) -> NativeReader:
        """A reader of the file at a location."""
        return _Reader(self, location)

    def open(self, location: str) -> NativeReader:
        """The file itself, opened."""
        if location not in self._readers:
            if len(self._readers) >= MAX_OPEN_FILES:
                self._stack.close()
                self._readers.clear()
            opened = open_native(location, self._access)
            self._readers[location] = self._stack.enter_context(opened)
        return self._readers[location]


@record(frozen=True)
class _Reader:
    files: OpenFiles
    location: str

    def read(self, path: str, region: Slices) -> NDArray[Any]:
        try:
            return self.files.open(self.location).read(path, region)
        except Exception as error:
            reason = reason_of(error, self.location)
            raise DamagedSourceError(self.location, f"{path!r} cannot be read: {reason}") from error


def reason_of(error: Exception, location: str) -> str:
    """What went wrong, in one line and without the name of the file."""
    text = " ".join(str(error).removeprefix(f"{location}: ").split())
    if isinstance(error, IcefloeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def collecting(damaged: dict[str, str]) -> Iterator[None]:
    """Enter a file that turns out to be damaged, with the reason, rather than fail."""
    try:
        yield
    except DamagedSourceError as error:
        damaged.setdefault(error.location, error.reason)
