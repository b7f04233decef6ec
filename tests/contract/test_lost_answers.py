"""A network that loses requests and answers: what happened is found out, or said to be unknown."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from icefloe.config.repository import ResolvedRetries, ResolvedTimeouts
from icefloe.errors import ErrorKind, StorageError, UnknownOutcomeError
from icefloe.storage.driver import (
    PROBE_DIRECTORY,
    ConditionFailed,
    Driver,
    Span,
    check_conditions_are_honoured,
)
from icefloe.storage.locations import S3Location
from icefloe.storage.run import run_blocking
from icefloe.virtual.sources import Place, SourceAccess
from tests.proxy import LATE_SECONDS, Proxy, Seen, misbehaving_proxy
from tests.servers import S3Server

QUICK = ResolvedRetries(max_tries=4, initial_backoff_ms=1, max_backoff_ms=5)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with misbehaving_proxy(s3_server) as running:
        yield running


@pytest.fixture(params=["blocking", "eventloop"])
def is_blocking(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "blocking")


def driver_through(
    proxy: Proxy, prefix: str | None = None, /, *, blocking: bool = True, **settings: Any
) -> Driver:
    storage = proxy.storage(prefix)
    resolved = storage.default_settings().resolved()
    return storage.driver(
        dataclasses.replace(resolved, retries=QUICK, **settings), blocking=blocking
    )


def faults(*planned: str) -> Callable[[Seen], str]:
    """These faults for the first conditional writes, in order; none from then on."""
    todo = list(planned)

    def fault(seen: Seen) -> str:
        return todo.pop(0) if seen.method == "PUT" and todo else ""

    return fault


def writes(proxy: Proxy) -> list[Seen]:
    return [seen for seen in proxy.seen if seen.method == "PUT"]


METADATA = pytest.mark.parametrize("unsafe_use_metadata", [True, False])


@METADATA
def test_a_write_whose_answer_was_lost_is_recognised(
    proxy: Proxy, is_blocking: bool, unsafe_use_metadata: bool
) -> None:
    run: Run = run_blocking if is_blocking else asyncio.run
    driver = driver_through(proxy, blocking=is_blocking, unsafe_use_metadata=unsafe_use_metadata)

    async def scenario() -> None:
        proxy.fault = faults("lose answer")
        first = await driver.put_if("repo", b"one", previous=None)
        assert len(writes(proxy)) == 1
        proxy.fault = faults("lose answer")
        second = await driver.put_if("repo", b"two", previous=first)
        assert len(writes(proxy)) == 2
        assert await driver.get_versioned("repo") == (b"two", second)
        await driver.put_if("repo", b"three", previous=second)

    run(scenario())


@METADATA
@pytest.mark.parametrize("fault", ["lose request", "busy"])
def test_a_write_that_did_not_happen_is_tried_again(
    proxy: Proxy, fault: str, unsafe_use_metadata: bool
) -> None:
    driver = driver_through(proxy, unsafe_use_metadata=unsafe_use_metadata)
    proxy.fault = faults(fault, fault)
    first = run_blocking(driver.put_if("repo", b"one", previous=None))
    assert len(writes(proxy)) == 3
    proxy.fault = faults(fault)
    second = run_blocking(driver.put_if("repo", b"two", previous=first))
    assert run_blocking(driver.get_versioned("repo")) == (b"two", second)


def test_all_tries_of_a_write_carry_one_id(proxy: Proxy) -> None:
    driver = driver_through(proxy)
    proxy.fault = faults("lose request", "busy")
    run_blocking(driver.put_if("repo", b"one", previous=None, metadata={"icspecver": "2"}))
    [write_id] = {seen.headers["X-Amz-Meta-Icechunkwriteid"] for seen in writes(proxy)}
    assert len(write_id) == 36
    assert {seen.headers["X-Amz-Meta-Icspecver"] for seen in writes(proxy)} == {"2"}
    run_blocking(driver.put_if("other", b"one", previous=None))
    assert writes(proxy)[-1].headers["X-Amz-Meta-Icechunkwriteid"] != write_id


@METADATA
def test_a_write_that_was_overwritten_before_it_could_be_seen_is_unknown(
    proxy: Proxy, unsafe_use_metadata: bool
) -> None:
    """Ours landed, the answer got lost, and someone went on from there: nobody can tell."""
    driver = driver_through(proxy, unsafe_use_metadata=unsafe_use_metadata)
    version = run_blocking(driver.put_if("repo", b"one", previous=None))
    has_struck = False

    def fault(seen: Seen) -> str:
        nonlocal has_struck
        if seen.method == "PUT" and not has_struck:
            has_struck = True
            return "lose answer"
        if seen.method in ("GET", "HEAD") and has_struck and not others:
            others.append(seen)
            run_blocking(driver.put("repo", b"three"))
        return ""

    others: list[Seen] = []
    proxy.fault = fault
    with pytest.raises(UnknownOutcomeError, match=r"'repo' in s3://.*someone else") as caught:
        run_blocking(driver.put_if("repo", b"two", previous=version))
    assert caught.value.kind == ErrorKind.UNKNOWN_OUTCOME
    assert bytes(run_blocking(driver.get("repo"))) == b"three"


def test_a_write_that_cannot_be_read_back_is_unknown(proxy: Proxy) -> None:
    driver = driver_through(proxy)
    proxy.fault = lambda seen: "lose answer"
    with pytest.raises(UnknownOutcomeError, match="reading it back failed"):
        run_blocking(driver.put_if("repo", b"one", previous=None))
    assert len(writes(proxy)) == 1


def test_a_write_that_never_gets_through_is_unknown_in_the_end(proxy: Proxy) -> None:
    """The last request may still be on its way when we give up."""
    driver = driver_through(proxy)
    proxy.fault = lambda seen: "lose request" if seen.method == "PUT" else ""
    with pytest.raises(UnknownOutcomeError, match="as before"):
        run_blocking(driver.put_if("repo", b"one", previous=None))
    assert len(writes(proxy)) == QUICK.max_tries


def test_a_server_that_is_not_there_has_certainly_not_written(s3_server: S3Server) -> None:
    with misbehaving_proxy(s3_server) as gone:
        driver = driver_through(gone)
    with pytest.raises(StorageError, match="cannot write 'repo'") as caught:
        run_blocking(driver.put_if("repo", b"one", previous=None))
    assert caught.value.kind == ErrorKind.OBJECT_STORE


@METADATA
def test_a_refusal_is_a_refusal(proxy: Proxy, unsafe_use_metadata: bool) -> None:
    driver = driver_through(proxy, unsafe_use_metadata=unsafe_use_metadata)
    run_blocking(driver.put_if("repo", b"one", previous=None))
    proxy.seen.clear()
    with pytest.raises(ConditionFailed):
        run_blocking(driver.put_if("repo", b"one", previous=None))
    assert len(writes(proxy)) == 1


def test_our_own_write_is_recognised_behind_a_refusal(proxy: Proxy) -> None:
    """Something on the way sent our request twice: the second one was refused, and answered."""
    driver = driver_through(proxy)
    proxy.fault = faults("repeat", "repeat")
    first = run_blocking(driver.put_if("repo", b"one", previous=None))
    second = run_blocking(driver.put_if("repo", b"two", previous=first))
    assert run_blocking(driver.get_versioned("repo")) == (b"two", second)
    assert len(writes(proxy)) == 2


def test_an_answer_that_comes_too_late_counts_as_lost(proxy: Proxy) -> None:
    storage = proxy.storage()
    settings = dataclasses.replace(
        storage.default_settings().resolved(),
        retries=dataclasses.replace(QUICK, max_tries=2),
        timeouts=ResolvedTimeouts(operation_attempt_timeout_ms=300),
    )
    driver = storage.driver(settings, blocking=True)
    proxy.fault = faults("late answer")
    started = time.monotonic()
    version = run_blocking(driver.put_if("repo", b"one", previous=None))
    assert run_blocking(driver.get_versioned("repo")) == (b"one", version)
    proxy.fault = lambda seen: "late answer"
    with pytest.raises(StorageError, match="cannot read 'repo'"):
        run_blocking(driver.get("repo"))
    assert time.monotonic() - started < 2 * LATE_SECONDS


def test_a_body_that_breaks_off_is_read_again(proxy: Proxy, is_blocking: bool) -> None:
    run: Run = run_blocking if is_blocking else asyncio.run
    driver = driver_through(proxy, blocking=is_blocking)
    data = bytes(range(256)) * 5000
    num_cuts = 0

    def fault(seen: Seen) -> str:
        nonlocal num_cuts
        if seen.method == "GET" and num_cuts < 2:
            num_cuts += 1
            return "cut answer"
        return ""

    async def scenario() -> None:
        nonlocal num_cuts
        await driver.put("chunks/A", data)
        proxy.fault = fault
        assert bytes(await driver.get("chunks/A")) == data
        for before in (0, -QUICK.max_tries):  # so few that the client itself tries again, and more
            num_cuts = before
            assert bytes(await driver.get("chunks/A", Span(10, 900_000))) == data[10 : 10 + 900_000]

    run(scenario())


def cut(method: str, *numbers: int) -> Callable[[Seen], str]:
    """Cut the answers to these requests of a method off in the middle."""
    seen_before = itertools.count()

    def fault(seen: Seen) -> str:
        is_cut = seen.method == method and next(seen_before) in numbers
        return "cut answer" if is_cut else ""

    return fault


NAMES = [f"{number:020d}" for number in range(2200)]
"""Three pages of a listing."""


@pytest.fixture(scope="module")
def many_keys(s3_server: S3Server) -> str:
    """A prefix with many chunks."""
    prefix = "many-keys"
    driver = s3_server.storage(prefix).driver(blocking=True)
    run_blocking(driver.put_many([(f"chunks/{name}", b"x") for name in NAMES]))
    return prefix


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_a_listing_that_breaks_off_is_read_again(
    proxy: Proxy, many_keys: str, is_blocking: bool, at: int
) -> None:
    run: Run = run_blocking if is_blocking else asyncio.run
    driver = driver_through(proxy, many_keys, blocking=is_blocking)

    async def scenario() -> None:
        proxy.fault = cut("GET", at)
        found = await driver.list("chunks/")
        assert [one.key for one in found] == [f"chunks/{name}" for name in NAMES]
        for at_once in (1, 8):
            proxy.fault = cut("GET", at)
            pages = await driver.list_pages("chunks/", at_once)
            listed = [name.decode() for page in pages for name in page.name.tolist()]
            assert sorted(listed) == NAMES, "every key once"
        proxy.fault = cut("GET", 0)
        assert not await driver.is_empty()
        proxy.fault = cut("GET", 0)
        assert list(await driver.list_top()) == ["chunks/"]

    run(scenario())


def test_a_long_listing_on_a_bad_network_comes_to_its_end(proxy: Proxy, many_keys: str) -> None:
    """Every page is cut twice: more often in all than one request is tried."""
    driver = driver_through(proxy, many_keys)
    proxy.fault = cut("GET", 0, 1, 3, 4, 6, 7)
    assert len(run_blocking(driver.list("chunks/"))) == len(NAMES)
    proxy.fault = lambda seen: "cut answer"
    proxy.seen.clear()
    with pytest.raises(StorageError, match="cannot list 'chunks'"):
        run_blocking(driver.list("chunks/"))
    assert len(proxy.seen) == QUICK.max_tries


@pytest.mark.parametrize("number", [0, 1])
def test_answers_to_deletions_and_uploads_that_break_off_are_tried_again(
    proxy: Proxy, is_blocking: bool, number: int
) -> None:
    run: Run = run_blocking if is_blocking else asyncio.run
    driver = driver_through(
        proxy, blocking=is_blocking, minimum_size_for_multipart_upload=6_000_000
    )
    keys = [f"chunks/{number}" for number in range(5)]

    async def scenario() -> None:
        await driver.put_many([(key, b"x") for key in keys])
        proxy.fault = cut("POST", number)
        await driver.delete_many(keys[:3])
        assert await driver.delete_batches([keys[3:]]) == [None]
        assert await driver.list("chunks/") == []
        # The beginning and the end of an upload in parts are POST requests.
        proxy.fault = cut("POST", number)
        data = bytes(range(256)) * 50_000
        await driver.put("chunks/large", data)
        proxy.fault = lambda _: ""
        assert bytes(await driver.get("chunks/large")) == data

    run(scenario())


def test_sources_are_listed_and_read_again_when_an_answer_breaks_off(proxy: Proxy) -> None:
    storage = proxy.storage()
    location = storage.location
    assert isinstance(location, S3Location)
    root = f"s3://{location.bucket}/{location.prefix}"
    options = {"endpoint_url": proxy.endpoint_url, "allow_http": True, "force_path_style": True}
    keys = {"access_key_id": "test", "secret_access_key": "test-secret", "region": "us-east-1"}
    place = Place(root, SourceAccess({**options, **keys}))
    run_blocking(storage.driver(blocking=True).put_many([("a/0", b"x" * 999), ("b", b"1")]))
    for look, expected in (
        (lambda: place.list_all().keys, ["a/0", "b"]),
        (lambda: place.list_folder(""), (["a"], ["b"])),
        (lambda: place.find("a/0"), b"x" * 999),
    ):
        proxy.fault = cut("GET", 0, 1)
        assert look() == expected


WHOLE_OR_PART = pytest.mark.parametrize("span", [None, Span(10, 50_000)])


@WHOLE_OR_PART
def test_reading_ends_with_an_error_when_the_body_always_breaks_off(
    proxy: Proxy, span: Span | None
) -> None:
    driver = driver_through(proxy)
    run_blocking(driver.put("chunks/A", b"x" * 100_000))
    proxy.fault = lambda seen: "cut answer"
    proxy.seen.clear()
    with pytest.raises(StorageError, match="chunks/A"):
        run_blocking(driver.get("chunks/A", span))
    assert len(proxy.seen) <= QUICK.max_tries * (QUICK.max_tries + (span is not None))


@WHOLE_OR_PART
def test_a_busy_server_is_named_so_when_it_stays_busy(proxy: Proxy, span: Span | None) -> None:
    driver = driver_through(proxy)
    proxy.fault = lambda seen: "busy"
    with pytest.raises(StorageError, match="SlowDown") as caught:
        run_blocking(driver.get("chunks/A", span))
    assert caught.value.kind == ErrorKind.THROTTLED
    assert len(proxy.seen) == QUICK.max_tries


@WHOLE_OR_PART
def test_an_object_that_is_missing_is_asked_for_once(proxy: Proxy, span: Span | None) -> None:
    with pytest.raises(StorageError) as caught:
        run_blocking(driver_through(proxy).get("chunks/A", span))
    assert caught.value.kind == ErrorKind.OBJECT_NOT_FOUND
    assert len(proxy.seen) == 1


# --- servers that ignore conditions ------------------------------------------------------------


def test_a_server_that_honours_conditions_passes_the_probe(proxy: Proxy, is_blocking: bool) -> None:
    run: Run = run_blocking if is_blocking else asyncio.run
    storage = proxy.storage("probed")
    run(check_conditions_are_honoured(storage.driver(blocking=is_blocking)))
    assert {seen.method for seen in proxy.seen} >= {"PUT", "HEAD", "POST"}
    assert proxy.storage(f"probed/{PROBE_DIRECTORY}").list_objects() == []


@pytest.mark.parametrize(
    ("ignored", "switch"),
    [
        ("If-None-Match", "unsafe_use_conditional_create"),
        ("If-Match", "unsafe_use_conditional_update"),
    ],
)
def test_a_server_that_ignores_conditions_is_found_out(
    proxy: Proxy, ignored: str, switch: str
) -> None:
    def fault(seen: Seen) -> str:
        return "ignore conditions" if seen.method == "PUT" and ignored in seen.headers else ""

    proxy.fault = fault
    driver = driver_through(proxy)
    with pytest.raises(StorageError, match=switch) as caught:
        run_blocking(check_conditions_are_honoured(driver))
    assert caught.value.kind == ErrorKind.STORAGE_CONFIG
    assert run_blocking(driver.is_empty())
    # Who has switched the condition off is not asked about it.
    run_blocking(check_conditions_are_honoured(driver_through(proxy, **{switch: False})))


def test_conditions_that_are_switched_off_are_compared_instead(proxy: Proxy) -> None:
    proxy.fault = lambda seen: "ignore conditions"
    driver = driver_through(
        proxy, unsafe_use_conditional_create=False, unsafe_use_conditional_update=False
    )
    first = run_blocking(driver.put_if("repo", b"one", previous=None))
    with pytest.raises(ConditionFailed):
        run_blocking(driver.put_if("repo", b"two", previous=None))
    second = run_blocking(driver.put_if("repo", b"two", previous=first))
    with pytest.raises(ConditionFailed):
        run_blocking(driver.put_if("repo", b"three", previous=first))
    assert run_blocking(driver.get_versioned("repo")) == (b"two", second)
    assert not any(seen.is_conditional for seen in writes(proxy))


def test_a_probe_that_was_left_behind_does_not_count(proxy: Proxy) -> None:
    storage = proxy.storage()
    driver = storage.driver(blocking=True)
    run_blocking(driver.put(".icefloe-probe/left-by-a-crash", b"first"))
    assert run_blocking(driver.is_empty())
    assert run_blocking(driver.list("")) == []
