"""Reading parts of objects that are not ours and may change under us.

Each kind of source has a reader: object stores (`remote.py`), web servers (`web.py`) and
files (`files.py`). A server may ignore the condition it is sent, so what came back is
compared as well.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, Protocol

from icefloe.storage.driver import ConditionFailed, Readable, Span
from icefloe.storage.keys import moment

ANY_ETAG = "*"


class Unchanged(NamedTuple):
    """The state an object has to be in still; at most one of the two is looked at."""

    etag: str | None = None
    last_modified: int | None = None
    """Whole seconds since 1970; an object that was modified later has changed."""

    @property
    def is_any(self) -> bool:
        return self.etag in (None, ANY_ETAG) and self.last_modified is None

    def check(self, what: str, etag: str | None, last_modified: datetime | None) -> None:
        """Compare with what a source says about itself; what it does not say has changed.

        Raises:
            ConditionFailed: it is not as it was.
        """
        if self.etag is not None:
            if self.etag == ANY_ETAG:
                return
            found = None if etag is None else bare_etag(etag)
            if found != bare_etag(self.etag):
                raise ConditionFailed(f"{what} has ETag {found!r}, expected {self.etag!r}")
        elif self.last_modified is not None:
            if last_modified is None:
                raise ConditionFailed(f"{what} does not say when it was modified")
            # Compared as it is: a change later in the same second is a change, too.
            if last_modified.timestamp() > self.last_modified:
                raise ConditionFailed(
                    f"{what} was modified at {last_modified.isoformat()}, expected no change "
                    f"after {moment(self.last_modified).isoformat()}"
                )


NO_CONDITION = Unchanged()


def bare_etag(etag: str) -> str:
    """An ETag without its quotes and without the mark of a weak one.

    >>> bare_etag('"abc"'), bare_etag('W/"abc"'), bare_etag("abc")
    ('abc', 'abc', 'abc')
    """
    return etag.strip().removeprefix("W/").strip('"')


class ForeignReader(Protocol):
    """One bucket, web server or directory tree."""

    async def get_if_unchanged(self, key: str, span: Span, condition: Unchanged) -> Readable:
        """Part of an object.

        Raises:
            ConditionFailed: it has changed.
            StorageError: anything else; `invalid-object-size` when the object ends too early.
        """
        ...
