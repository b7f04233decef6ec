"""How many requests one event loop has in flight, and connections that serve several."""

from __future__ import annotations

import asyncio
import http.client
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from icefloe.storage.calls import MAX_IN_FLIGHT
from icefloe.storage.spec import http_storage
from tests.servers import S3Server

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n"
    b"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n\r\nok"
)


class SlowServer:
    """Answers every request late, and counts how many it answers at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1
        writer.write(ANSWER)
        await writer.drain()
        writer.close()


@pytest.mark.parametrize("asked_for", [8, 256])
def test_readers_of_one_loop_share_a_limit(asked_for: int) -> None:
    slow = SlowServer()

    async def read() -> list[list[Any]]:
        server = await asyncio.start_server(slow.answer, "127.0.0.1", 0, backlog=512)
        async with server:
            port = server.sockets[0].getsockname()[1]
            storage = http_storage(f"http://127.0.0.1:{port}")
            driver = storage.driver(blocking=False, max_concurrent_requests=asked_for)
            several = ([(f"{reader}-{at}", None) for at in range(100)] for reader in range(3))
            return await asyncio.gather(*map(driver.get_many, several))

    assert asyncio.run(read()) == [[b"ok"] * 100] * 3
    expected = min(asked_for, MAX_IN_FLIGHT)
    assert expected // 2 <= slow.most <= expected


def test_the_server_of_the_tests_keeps_connections_open(s3_server: S3Server) -> None:
    parts = urlsplit(s3_server.endpoint_url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        connection.auto_open = 0
        connection.connect()
        for method, body in [("PUT", b"unsigned"), ("HEAD", None), ("GET", None)]:
            connection.request(method, "/testbucket/key", body)
            response = connection.getresponse()
            response.read()
            assert (response.status, response.will_close) == (403, False)
