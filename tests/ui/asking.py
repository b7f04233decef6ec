"""Requests to a server of the page, without a browser."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from icefloe.ui import PageServer


class Reply(NamedTuple):
    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


def ask(
    server: PageServer,
    address: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    **parameters: Any,
) -> Reply:
    """One request. The address is sent as it is."""
    if parameters:
        address += "?" + urlencode(parameters)
    connection = HTTPConnection("127.0.0.1", urlsplit(server.url).port or 0, timeout=30)
    connection.putrequest(method, address, skip_host=True)
    for name, value in {"Host": urlsplit(server.url).netloc, **(headers or {})}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    reply = Reply(answer.status, answer.headers, answer.read())
    connection.close()
    return reply


def value(server: PageServer, address: str, **parameters: Any) -> Any:
    """The JSON of an address that answers."""
    reply = ask(server, f"/api/{address}", **parameters)
    assert reply.status == 200, reply.body
    return reply.value
