"""What every driver does: one suite on memory, a directory, and S3 in both flavours."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.driver import ConditionFailed, Readable, Span, Version, microseconds
from tests.contract.conftest import Place

DATA = bytes(range(256)) * 40


# --- reading and writing -----------------------------------------------------------------------


def test_what_was_put_can_be_read(place: Place) -> None:
    async def scenario() -> None:
        await place.driver.put("chunks/A", DATA)
        assert bytes(await place.driver.get("chunks/A")) == DATA
        await place.driver.put("chunks/A", b"")
        assert bytes(await place.driver.get("chunks/A")) == b""

    place.run(scenario())


def test_new_objects_can_be_read(place: Place) -> None:
    async def scenario() -> None:
        await place.driver.put_new([("chunks/A", DATA), ("chunks/B", memoryview(b"b"))])
        found = await place.driver.get_many([("chunks/A", None), ("chunks/B", None)])
        assert list(map(bytes, found)) == [DATA, b"b"]

    place.run(scenario())


@pytest.mark.parametrize(
    "buffer",
    [bytearray(DATA), memoryview(DATA), np.frombuffer(DATA, "uint8"), np.frombuffer(DATA, "<f4")],
    ids=["bytearray", "memoryview", "uint8", "float32"],
)
def test_any_contiguous_buffer_can_be_put(place: Place, buffer: object) -> None:
    place.run(place.driver.put("chunks/A", buffer))
    assert bytes(place.run(place.driver.get("chunks/A"))) == DATA


def test_what_was_put_does_not_change_with_the_buffer_it_came_from(place: Place) -> None:
    buffer = bytearray(b"before")
    place.run(place.driver.put("chunks/A", buffer))
    buffer[:] = b"behind"
    assert bytes(place.run(place.driver.get("chunks/A"))) == b"before"


@pytest.mark.parametrize("span", [Span(0, 1), Span(100, 300), Span(len(DATA) - 1, 1), Span(7, 0)])
def test_part_of_an_object_can_be_read(place: Place, span: Span) -> None:
    place.run(place.driver.put("chunks/A", DATA))
    expected = DATA[span.start : span.start + span.length]
    assert bytes(place.run(place.driver.get("chunks/A", span))) == expected


@pytest.mark.parametrize(
    "span", [Span(len(DATA) - 1, 2), Span(len(DATA), 1), Span(len(DATA) + 9, 1), Span(-1, 1)]
)
def test_a_span_that_is_not_wholly_inside_is_an_error(place: Place, span: Span) -> None:
    place.run(place.driver.put("chunks/A", DATA))
    with pytest.raises(StorageError, match=r"chunks/A.* 10240 bytes") as caught:
        place.run(place.driver.get("chunks/A", span))
    assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE


def test_a_large_span_is_read_in_parts_and_put_together(place: Place) -> None:
    small = dataclasses.replace(
        place.driver.settings.concurrency,
        ideal_concurrent_request_size=1000,
        max_concurrent_requests_for_object=4,
    )
    settings = dataclasses.replace(place.driver.settings, concurrency=small)
    driver = place.storage.driver(settings, blocking=place.is_blocking)

    async def scenario() -> None:
        await driver.put("chunks/A", DATA)
        assert bytes(await driver.get("chunks/A", Span(3, 9999))) == DATA[3 : 3 + 9999]
        found = await driver.get_many([("chunks/A", Span(at, 2500)) for at in range(5)])
        assert [bytes(part) for part in found] == [DATA[at : at + 2500] for at in range(5)]
        with pytest.raises(StorageError) as caught:
            await driver.get("chunks/A", Span(3, len(DATA)))
        assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE

    place.run(scenario())


def test_many_objects_come_back_in_the_order_they_were_asked_for(place: Place) -> None:
    objects = [(f"chunks/{number:03}", bytes([number]) * (number + 1)) for number in range(100)]
    wanted = [(key, None) for key, _ in reversed(objects)]

    async def scenario() -> None:
        await place.driver.put_many(objects)
        found = await place.driver.get_many(wanted)
        assert [bytes(data) for data in found] == [data for _, data in reversed(objects)]
        assert await place.driver.get_many([]) == []

    place.run(scenario())


def test_what_is_taken_of_many_objects_comes_back_in_their_order(place: Place) -> None:
    objects = [(f"chunks/{number}", bytes([number]) * 1000) for number in range(50)]
    whole = [(key, None) for key, _ in objects]
    # Neighbouring spans of one object may share a request.
    parts = [("chunks/7", Span(10 * number, number + 1)) for number in range(9)]

    async def scenario() -> None:
        await place.driver.put_many(objects)
        for wanted, sizes in ((whole, [1000] * 50), (parts, [*range(1, 10)])):
            found = await place.driver.get_many([*wanted, ("chunks/3", None)], take)
            firsts = [int(key.partition("/")[2]) for key, _ in wanted]
            assert found == [
                *zip(range(len(wanted)), firsts, sizes, strict=True),
                (len(wanted), 3, 1000),
            ]
        assert await place.driver.get_many([], take) == []

    def take(number: int, data: Readable) -> tuple[int, int, int]:
        return number, data[0], len(data)

    place.run(scenario())


def test_an_error_of_taking_is_the_error(place: Place) -> None:
    place.run(place.driver.put_many([("chunks/A", DATA), ("chunks/B", DATA)]))

    def take(number: int, _: Readable) -> None:
        raise ValueError(f"read {number}")

    with pytest.raises(ValueError, match=r"read [01]"):
        place.run(place.driver.get_many([("chunks/A", None), ("chunks/B", None)], take))


def test_large_objects_can_be_put_and_read_together(place: Place) -> None:
    data = np.random.default_rng(1).integers(0, 256, 3_000_000, "uint8")

    async def scenario() -> None:
        await place.driver.put_many([(f"chunks/{number}", data) for number in range(4)])
        spans = [(f"chunks/{number}", Span(0, len(data))) for number in range(4)]
        for found in await place.driver.get_many(spans):
            assert np.array_equal(np.frombuffer(found, "uint8"), data)

    place.run(scenario())


def test_a_missing_object_among_many_is_the_error(place: Place) -> None:
    place.run(place.driver.put("chunks/A", DATA))
    with pytest.raises(StorageError, match="chunks/missing") as caught:
        place.run(place.driver.get_many([("chunks/A", None), ("chunks/missing", None)] * 3))
    assert caught.value.kind == ErrorKind.OBJECT_NOT_FOUND


def test_a_missing_object_is_named(place: Place) -> None:
    async def every_way() -> None:
        for attempt in (
            place.driver.get("a/b"),
            place.driver.get("a/b", Span(0, 1)),
            place.driver.get("a/b", Span(0, 0)),
            place.driver.get_versioned("a/b"),
            place.driver.get_if_changed("a/b", Version('"x"')),
            place.driver.head("a/b"),
        ):
            with pytest.raises(StorageError, match="'a/b'") as caught:
                await attempt
            assert caught.value.kind == ErrorKind.OBJECT_NOT_FOUND
            assert place.storage.url in str(caught.value)

    place.run(every_way())
    place.run(place.driver.put("a/b/c", b"1"))  # a directory, or nothing at all
    place.run(every_way())


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/..", "a/./b", "a/", "a\0b"])
def test_keys_that_lead_astray_are_refused(place: Place, key: str) -> None:
    async def scenario() -> None:
        for attempt in (
            place.driver.get(key),
            place.driver.put(key, b"1"),
            place.driver.put_if(key, b"1", previous=None),
            place.driver.head(key),
        ):
            with pytest.raises(InvalidInputError) as caught:
                await attempt
            assert caught.value.kind == ErrorKind.INVALID_KEY

    place.run(scenario())
    assert place.run(place.driver.is_empty())


ODD_NAMES = ["ä", "日本", "a b", "a%b", "a%20b", "x~y", "a#1", "q?x", "[x]", "a*b", "a+b", "a\\b"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_come_back_as_they_went_in(place: Place, name: str) -> None:
    key = f"refs/tag.{name}/ref.json"

    async def scenario() -> None:
        await place.driver.put(key, b"1")
        assert bytes(await place.driver.get(key)) == b"1"
        assert [info.key for info in await place.driver.list("refs/")] == [key]
        assert [info.key for info in await place.driver.list(f"refs/tag.{name}")] == [key]
        await place.driver.delete_many([key])
        assert await place.driver.list("") == []

    place.run(scenario())


# --- listing and deleting ----------------------------------------------------------------------


def test_listing_is_by_prefix_of_the_text_and_sorted(place: Place) -> None:
    keys = ["b", "a/2", "a/10", "a/1", "a/1x/y", "ab/c", "a.b"]

    async def scenario() -> None:
        assert await place.driver.list("") == []
        await place.driver.put_many([(key, key.encode()) for key in keys])
        for prefix in ["", "a", "a/", "a/1", "a/1x/", "zz", "a/zz/"]:
            found = [info.key for info in await place.driver.list(prefix)]
            assert found == sorted(key for key in keys if key.startswith(prefix)), prefix
        sizes = {info.key: info.size_bytes for info in await place.driver.list("")}
        assert sizes == {key: len(key) for key in keys}

    place.run(scenario())


def test_listing_says_when_objects_were_made(place: Place) -> None:
    place.run(place.driver.put("a", b"1"))
    [info] = place.run(place.driver.list(""))
    assert place.run(place.driver.head("a")) == info
    # S3 has whole seconds.
    assert abs(info.created_at - datetime.now(UTC)) < timedelta(seconds=10)


def test_more_than_one_page_can_be_listed_and_deleted(place: Place) -> None:
    # Azurite hangs up when it gets more than a few batches at once.
    count = 600 if place.storage.url.startswith("az:") else 1100
    keys = [f"chunks/{number:04}" for number in range(count)]

    async def scenario() -> None:
        await place.driver.put_many([(key, b"") for key in keys])
        assert [info.key for info in await place.driver.list("chunks/")] == keys
        await place.driver.delete_many([*keys[1:], "chunks/was-never-there"])
        assert [info.key for info in await place.driver.list("")] == keys[:1]

    place.run(scenario())


def test_a_long_folder_is_listed_as_columns(place: Place) -> None:
    """In ranges where the service has them: more than a page, and in several of its ranges."""
    count = 600 if place.storage.url.startswith("az:") else 1100
    names = [f"{number % 32:X}{number:04}" for number in range(count)] + ["ä~b", "zz", "#"]
    keys = [f"chunks/{name}" for name in names]

    async def scenario() -> None:
        assert sum(len(page.name) for page in await place.driver.list_pages("chunks/", 8)) == 0
        await place.driver.put_many([(key, key.encode()) for key in [*keys, "chunksx/a", "repo"]])
        by_hand = {
            info.key.removeprefix("chunks/").encode(): (
                info.size_bytes,
                int(info.created_at.timestamp()),
            )
            for info in await place.driver.list("chunks/")
        }
        assert len(by_hand) == len(keys)
        for at_once in (1, 8):
            found = {}
            for page in await place.driver.list_pages("chunks/", at_once):
                times = (page.created_at // 1_000_000).tolist()
                rows = zip(page.name.tolist(), page.size_bytes.tolist(), times, strict=True)
                found.update({name: (size, time) for name, size, time in rows})
            assert found == by_hand

    place.run(scenario())


def test_names_alone_are_listed_and_the_rest_is_asked_for(place: Place) -> None:
    names = ["A1", "B2", "ä~b", "100%", "C3#1x"]
    keys = [f"chunks/{name}" for name in names]

    async def scenario() -> None:
        await place.driver.put_many([(key, key.encode()) for key in [*keys, "repo"]])
        pages = await place.driver.list_pages("chunks/", 8, names_only=True)
        assert sorted(name.decode() for page in pages for name in page.name.tolist()) == sorted(
            names
        )
        assert await place.driver.list_pages("nothing/", 8, names_only=True) is not None
        asked = [*keys[2:], "chunks", "chunks/missing", "chunks/A1/below", *keys[:2]]
        found = await place.driver.head_many(asked)
        infos = {info.key: info for info in await place.driver.list("chunks/")}
        expected = [
            (infos[key].size_bytes, microseconds(infos[key].created_at))
            if key in infos
            else (-1, -1)
            for key in asked
        ]
        rows = zip(found.size_bytes.tolist(), found.created_at.tolist(), strict=True)
        assert list(rows) == expected
        assert [name.decode() for name in found.name.tolist()] == asked
        assert len((await place.driver.head_many([])).name) == 0

    place.run(scenario())


def test_batches_are_deleted_and_each_tells_what_went_wrong(place: Place) -> None:
    keys = [f"chunks/{number:02}" for number in range(12)]

    async def scenario() -> None:
        await place.driver.put_many([(key, b"") for key in keys])
        batches = [keys[:4], [*keys[4:8], "chunks/was-never-there"], keys[8:11]]
        assert await place.driver.delete_batches(batches) == [None, None, None]
        assert [info.key for info in await place.driver.list("")] == keys[11:]

    place.run(scenario())


def test_deleting_what_is_missing_does_not_matter(place: Place) -> None:
    async def scenario() -> None:
        await place.driver.delete_many(["a"])
        await place.driver.put("a/b", b"1")
        await place.driver.delete_many(["a/b", "a/b", "a/c", "a/b/c"])
        await place.driver.delete_many([])
        assert await place.driver.is_empty()

    place.run(scenario())


def test_emptiness_is_about_the_repository(place: Place) -> None:
    async def scenario() -> None:
        assert await place.driver.is_empty()
        version = await place.driver.put_if("repo", b"1", previous=None)
        assert not await place.driver.is_empty()
        await place.driver.put_if("repo", b"2", previous=version)
        await place.driver.delete_many(["repo"])
        assert await place.driver.is_empty()

    place.run(scenario())


# --- conditional writes ------------------------------------------------------------------------


def test_an_object_is_created_once(place: Place) -> None:
    async def scenario() -> None:
        version = await place.driver.put_if("repo", b"one", previous=None)
        with pytest.raises(ConditionFailed):
            await place.driver.put_if("repo", b"two", previous=None)
        with pytest.raises(ConditionFailed):  # the same bytes are not the same write
            await place.driver.put_if("repo", b"one", previous=None)
        assert await place.driver.get_versioned("repo") == (b"one", version)

    place.run(scenario())


def test_an_object_is_replaced_only_in_the_state_it_was_seen_in(place: Place) -> None:
    async def scenario() -> None:
        first = await place.driver.put_if("repo", b"one", previous=None)
        second = await place.driver.put_if("repo", b"two", previous=first)
        assert first != second
        with pytest.raises(ConditionFailed):
            await place.driver.put_if("repo", b"three", previous=first)
        assert await place.driver.get_versioned("repo") == (b"two", second)
        await place.driver.put_if("repo", b"three", previous=second)
        assert bytes(await place.driver.get("repo")) == b"three"

    place.run(scenario())


def test_an_object_that_is_gone_is_not_replaced(place: Place) -> None:
    async def scenario() -> None:
        version = await place.driver.put_if("repo", b"one", previous=None)
        await place.driver.delete_many(["repo"])
        with pytest.raises(ConditionFailed):
            await place.driver.put_if("repo", b"two", previous=version)
        assert await place.driver.is_empty()
        await place.driver.put_if("repo", b"three", previous=None)

    place.run(scenario())


def test_a_plain_put_changes_the_version(place: Place) -> None:
    async def scenario() -> None:
        version = await place.driver.put_if("repo", b"one", previous=None)
        await place.driver.put("repo", b"two")
        with pytest.raises(ConditionFailed):
            await place.driver.put_if("repo", b"three", previous=version)

    place.run(scenario())


def test_only_changed_objects_are_read_again(place: Place) -> None:
    async def scenario() -> None:
        first = await place.driver.put_if("repo", b"one", previous=None)
        assert await place.driver.get_if_changed("repo", first) is None
        second = await place.driver.put_if("repo", b"two", previous=first)
        assert await place.driver.get_if_changed("repo", first) == (b"two", second)
        assert await place.driver.get_if_changed("repo", second) is None

    place.run(scenario())


def test_conditional_writes_take_metadata_and_a_content_type(place: Place) -> None:
    async def scenario() -> None:
        version = await place.driver.put_if(
            "config.yaml",
            b"{}",
            previous=None,
            metadata={"icspecver": "2"},
            content_type="application/yaml",
        )
        assert await place.driver.get_versioned("config.yaml") == (b"{}", version)
        await place.driver.put("snapshots/A", b"1", metadata={"icspecver": "2"})

    place.run(scenario())


# --- the rest ----------------------------------------------------------------------------------


def test_sync_and_sleep_return(place: Place) -> None:
    async def scenario() -> None:
        await place.driver.sync()
        await place.driver.put_many([(f"chunks/{number}", DATA) for number in range(20)])
        await place.driver.sync()
        await place.driver.sync()
        await place.driver.sleep(0.001)

    place.run(scenario())


def test_a_driver_is_made_once(place: Place) -> None:
    assert place.storage.driver(blocking=place.is_blocking) is place.driver
    assert place.driver.can_write
    assert place.driver.settings == place.storage.default_settings().resolved()


def test_the_top_level_is_listed_without_what_is_below(place: Place) -> None:
    async def scenario() -> None:
        assert list(await place.driver.list_top()) == []
        keys = ["repo", "chunks/A", "chunks/B", "a/b/c/0", "zarr.json", "ä~b/zarr.json"]
        await place.driver.put_many([(key, b"1") for key in keys])
        found = list(await place.driver.list_top())
        assert found == ["a/", "chunks/", "repo", "zarr.json", "ä~b/"]

    place.run(scenario())
