"""A long listing in ranges of keys that are read at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from icefloe.storage.client.calls import KEYS_OF_PAGE
from icefloe.storage.keys import microseconds

if TYPE_CHECKING:
    from obstore import ObjectMeta

_BORDERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Names are random ids in this alphabet, so these cut them into parts of one size."""


class PagesOf:
    """The keys of a folder behind `after`, up to and with `until`, as pages of rows."""

    def __init__(
        self, folder: str, after: str | None, until: str | None, most: int | None = None
    ) -> None:
        """`most` pages are read; None for all."""
        self.folder = folder
        self.after = after
        self.until = until
        self.last = after or ""
        self.pages: list[list[tuple[str, int, int]]] = []
        self.is_cut = False
        """Whether there may be more than `most` pages."""
        self.is_unordered = False
        """Whether keys came in an order that makes ranges of them meaningless."""
        self._most = most

    def start_again(self) -> None:
        """Forget pages that came in no order: it is unknown what follows them."""
        self.last, self.pages, self.is_unordered = self.after or "", [], False

    def take(self, page: Sequence[ObjectMeta]) -> bool:
        """Add a page; whether the next one is wanted."""
        rows = [(meta["path"], meta["size"], microseconds(meta["last_modified"])) for meta in page]
        paths = [self.last, *(path for path, _, _ in rows)]
        self.is_unordered |= any(first > second for first, second in pairwise(paths))
        self.last = paths[-1]
        if self.until is not None and self.last > self.until:
            self.pages.append([row for row in rows if row[0] <= self.until])
            return False
        self.pages.append(rows)
        is_full = len(rows) >= KEYS_OF_PAGE
        self.is_cut = is_full and self._most is not None and len(self.pages) >= self._most
        return not self.is_cut


def ranges_after(folder: str, last: str) -> list[PagesOf]:
    """What is behind the key `last` of a folder, in ranges."""
    borders = [last, *(folder + letter for letter in _BORDERS if folder + letter > last)]
    inner = [PagesOf(folder, first, second) for first, second in pairwise(borders)]
    return [*inner, PagesOf(folder, borders[-1], None)]
