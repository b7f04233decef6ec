"""Who makes the requests, for the owner of the bucket to see in its access logs."""

from __future__ import annotations

import re
from typing import Any

from icefloe.display.shown import ShownAsCode
from icefloe.errors import InvalidInputError
from icefloe.records import record

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?")
_MOST_BYTES = 128


@record(frozen=True)
class Attribution(ShownAsCode):
    """Labels that go into the User-Agent header of every request of a repository.

    `client` is the program, as `name` or `name/version`; `workload` says what the requests are for,
    `principal` on whose behalf they are made.
    """

    client: str | None = None
    workload: str | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        for name in ("client", "workload", "principal"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"attribution `{name}` must be str or None, found {value!r}")
            if len(value.encode()) > _MOST_BYTES:
                raise InvalidInputError(f"attribution `{name}` is longer than {_MOST_BYTES} bytes")
            _check_characters(name, value)

    def _arguments_(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("client", "workload", "principal")]

    def header(self, agent: str) -> str:
        """The User-Agent with these labels added to it.

        >>> Attribution(client="weatherlib/0.9", workload="ingest").header("icefloe/1")
        'weatherlib/0.9 icefloe/1 (workload=ingest)'

        Args:
            agent: the program, as requests name it.
        """
        labels = [
            f"{name}={value}"
            for name, value in (("workload", self.workload), ("principal", self.principal))
            if value
        ]
        comment = f"({'; '.join(labels)})" if labels else None
        return " ".join(filter(None, (self.client, agent, comment)))


def _check_characters(name: str, value: str) -> None:
    if name == "client":
        if not _TOKEN.fullmatch(value):
            raise InvalidInputError(
                f"attribution `client` must be `name` or `name/version` in token characters, got "
                f'"{value}"'
            )
        return
    for character in value:
        if not " " <= character <= "~" or character in '()\\;="':
            raise InvalidInputError(
                f"attribution `{name}` contains the forbidden character {character!r}; allowed is "
                'printable ASCII but for ( ) \\ ; = "'
            )
