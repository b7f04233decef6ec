"""Small reads of one object that are asked for at the same moment, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.driver import Driver, Readable, Span
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from tests.proxy import Proxy, misbehaving_proxy
from tests.servers import S3Server

SIZE = 3 << 20
DATA = bytes(range(251)) * (SIZE // 251 + 1)


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with misbehaving_proxy(s3_server) as proxy:
        storage = proxy.storage("shared")
        for key in ("one", "two"):
            run_blocking(storage.driver(blocking=True).put(key, DATA))
        yield proxy


@pytest.fixture
def storage(proxy: Proxy) -> Storage:
    proxy.seen.clear()
    return proxy.storage("shared")


def read_at_once(driver: Driver, wanted: list[tuple[str, Span]]) -> list[Readable | BaseException]:
    async def read() -> list[Readable | BaseException]:
        reads = (driver.get(key, span) for key, span in wanted)
        return await asyncio.gather(*reads, return_exceptions=True)

    return asyncio.run(read())


def right(span: Span) -> bytes:
    return DATA[span.start : span.start + span.length]


def test_neighbours_are_read_with_one_request(storage: Storage, proxy: Proxy) -> None:
    driver = storage.driver(blocking=False)
    spans = [Span(1 + 4000 * number, 3000) for number in range(50)]
    mixed = [spans[number * 7 % 50] for number in range(50)]
    found = read_at_once(driver, [(key, span) for span in mixed for key in ("one", "two")])
    assert found == [right(span) for span in mixed for _ in range(2)]
    assert len(proxy.seen) == 2, "one for each object"


def test_reads_far_apart_and_whole_objects_keep_their_requests(
    storage: Storage, proxy: Proxy
) -> None:
    driver = storage.driver(blocking=False)
    spans = [Span(0, 10), Span(0, 10), Span(5, 10), Span(2 << 20, 10)]
    assert read_at_once(driver, [("one", span) for span in spans]) == list(map(right, spans))
    assert len(proxy.seen) == 4


def test_one_bad_read_does_not_spoil_its_neighbours(storage: Storage) -> None:
    driver = storage.driver(blocking=False)
    spans = [Span(len(DATA) - 3000, 1000), Span(len(DATA) - 10, 20), Span(len(DATA) + 5, 5)]
    good, short, beyond, missing = read_at_once(
        driver, [*(("one", span) for span in spans), ("three", Span(5, 5))]
    )
    assert good == right(spans[0])
    for outcome, kind in [
        (short, ErrorKind.INVALID_OBJECT_SIZE),
        (beyond, ErrorKind.INVALID_OBJECT_SIZE),
        (missing, ErrorKind.OBJECT_NOT_FOUND),
    ]:
        assert isinstance(outcome, StorageError)
        assert outcome.kind == kind


def test_a_reader_that_gives_up_leaves_the_others_alone(storage: Storage) -> None:
    driver = storage.driver(blocking=False)
    spans = [Span(100 * number + 1, 100) for number in range(3)]

    async def read() -> list[Readable | BaseException]:
        tasks = [asyncio.ensure_future(driver.get("one", span)) for span in spans]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(read())
    assert (first, third) == (right(spans[0]), right(spans[2]))
    assert isinstance(second, asyncio.CancelledError)


def test_one_driver_serves_several_event_loops(storage: Storage) -> None:
    driver = storage.driver(blocking=False)
    wanted = [("one", Span(7 * number + 1, 7)) for number in range(20)]
    for _ in range(3):
        assert read_at_once(driver, wanted) == [right(span) for _, span in wanted]


def test_blocking_reads_are_the_same(storage: Storage) -> None:
    driver = storage.driver(blocking=True)
    assert run_blocking(driver.get("one", Span(5, 7))) == right(Span(5, 7))
    with pytest.raises(StorageError) as caught:
        run_blocking(driver.get("one", Span(len(DATA) - 1, 7)))
    assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE
