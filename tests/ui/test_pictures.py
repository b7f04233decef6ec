"""Pictures: the pixels of PNG files are the values of the array, at every snapshot."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import icefloe
from icefloe.scans.variables import Values
from icefloe.ui import PageServer, pictures, planes
from icefloe.ui.pictures import coordinate_labels, encode_png
from tests.ui.asking import Reply, ask, value
from tests.ui.conftest import serving

T2M = "/surface/t2m"


def read_png(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels and palette of a PNG file whose lines are not filtered, every sum checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            name + body
        )
        parts[name] = body
        at += 12 + size
    width, height, depth, kind = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert (depth, kind) == (8, 3)
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    palette = np.frombuffer(parts[b"PLTE"], np.uint8).reshape(-1, 3)
    opacity = np.frombuffer(parts[b"tRNS"], np.uint8)
    return lines[:, 1:], np.column_stack([palette, opacity])


def picture(server: PageServer, address: str = "picture", **given: Any) -> tuple[Any, Any]:
    reply = ask(server, f"/api/{address}", **given)
    assert reply.status == 200, reply.body
    assert reply.headers["Content-Type"] == "image/png"
    return json.loads(reply.headers["X-Icefloe-About"]), read_png(reply.body)[0]


def expected_pixels(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    part = (values.astype("f8") - low) / (high - low) * pictures.NUM_STEPS
    return np.clip(part, 0, pictures.NUM_STEPS - 1).astype(np.uint8)


@pytest.fixture(scope="module")
def tip(weather: icefloe.Repository) -> str:
    return weather.lookup_branch("main")


def test_a_plane_is_the_slice_of_the_array(server: PageServer, tip: str) -> None:
    about, pixels = picture(server, snapshot=tip, path=T2M, axes="1,2", at="0,0,0")
    values = np.arange(48).reshape(6, 8)
    np.testing.assert_array_equal(pixels, expected_pixels(values, 0, 47))
    assert (about["min"], about["max"], about["mean"]) == (0, 47, 23.5)
    assert (about["size"], about["steps"], about["window"]) == ([6, 8], [1, 1], [[0, 6], [0, 8]])
    # The other way round, upside down, and a part of it.
    _, turned = picture(server, snapshot=tip, path=T2M, axes="2,1", at="0,0,0")
    np.testing.assert_array_equal(turned, pixels.T)
    _, flipped = picture(server, snapshot=tip, path=T2M, axes="1,2", at="0,0,0", flip=1)
    np.testing.assert_array_equal(flipped, pixels[::-1])
    given: dict[str, Any] = {"window": "2,4,1,7", "low": 0, "high": 47}
    _, part = picture(server, snapshot=tip, path=T2M, axes="1,2", at="0,0,0", **given)
    np.testing.assert_array_equal(part, pixels[2:4, 1:7])


def test_a_plane_across_time_shows_what_is_missing(server: PageServer, tip: str) -> None:
    about, pixels = picture(server, snapshot=tip, path=T2M, axes="0,2", at="0,0,0")
    assert (pixels[3] == pictures.NOTHING).all()
    assert (about["values"], about["total"]) == (24, 32)
    about, pixels = picture(server, snapshot=tip, path=T2M, axes="1,2", at="3,0,0")
    assert (about["min"], about["values"]) == (None, 0)
    assert (pixels == pictures.NOTHING).all()


def test_every_snapshot_has_its_own_picture(
    server: PageServer, weather: icefloe.Repository
) -> None:
    seen = []
    for info in list(weather.ancestry(branch="main"))[:3]:
        about, _ = picture(server, snapshot=info.id, path=T2M, axes="0,2", at="0,0,0")
        seen.append(about["values"])
    assert seen == [24, 16, 8]


def test_a_difference_shows_changed_and_new_values(
    server: PageServer, weather: icefloe.Repository, tip: str
) -> None:
    first, dev = weather.lookup_tag("v1"), weather.lookup_branch("dev")
    where = {"path": T2M, "axes": "1,2", "at": "0,0,0"}
    about, pixels = picture(server, "difference", **{"from": first}, snapshot=dev, **where)
    before = np.arange(48).reshape(6, 8)
    change = np.zeros((6, 8))
    change[:3, :4] = -5 - before[:3, :4]
    assert (about["changed"], about["largest"]) == (12, 24)
    np.testing.assert_array_equal(pixels, expected_pixels(change, -24, 24))
    where["at"] = "1,0,0"
    about, pixels = picture(server, "difference", **{"from": first}, snapshot=tip, **where)
    assert (about["appeared"], about["vanished"], about["changed"]) == (48, 0, 0)
    assert (pixels == pictures.APPEARED).all()
    about, pixels = picture(server, "difference", **{"from": tip}, snapshot=first, **where)
    assert about["vanished"] == 48
    assert (pixels == pictures.VANISHED).all()


def test_values_along_a_dimension_and_at_a_point(server: PageServer, tip: str) -> None:
    told = value(server, "values", snapshot=tip, path=T2M, axes="0", at="0,1,2")
    assert (told["list"], told["is_number"]) == ([10, 100, 200, None], True)
    kelvin = {"kind": "number", "units": "K"}
    assert value(server, "values", snapshot=tip, path=T2M, at="2,0,0") == {"value": 200, **kelvin}
    assert value(server, "values", snapshot=tip, path=T2M, at="3,0,0") == {"value": "nan", **kelvin}
    assert value(server, "values", snapshot=tip, path="/depth", at="")["value"] == 7
    told = value(server, "values", snapshot=tip, path="/surface/station", axes="0", at="0")
    assert (told["list"], told["is_number"], told["total"]) == (["a", "b", "c"], False, 3)


def test_axes_have_the_coordinates_of_their_dimensions(server: PageServer, tip: str) -> None:
    time, lat, lon = value(server, "axes", snapshot=tip, path=T2M)
    assert (time, lon) == ({"name": "time", "size": 4}, {"name": "lon", "size": 8})
    assert (lat["labels"], lat["units"]) == (["50", "40", "30", "20", "10", "0"], "degrees_north")
    assert "upside_down" not in lat
    assert value(server, "axes", snapshot=tip, path="/depth") == []


def bad(server: PageServer, address: str, tip: str, **given: Any) -> Reply:
    return ask(server, f"/api/{address}", **{"snapshot": tip, "path": T2M, **given})


@pytest.mark.parametrize("address", ["picture", "difference"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"axes": "1,2"},
        {"axes": "1", "at": "0,0,0"},
        {"axes": "1,1", "at": "0,0,0"},
        {"axes": "1,3", "at": "0,0,0"},
        {"axes": "1,2", "at": "0,0"},
        {"axes": "1,2", "at": "4,0,0"},
        {"axes": "1,2", "at": "x"},
        {"axes": "1,2", "at": "-1,0,0"},
        {"axes": "1,2", "at": "0,0,0", "window": "0,7,0,8"},
        {"axes": "1,2", "at": "0,0,0", "window": "3,3,0,8"},
        {"axes": "1,2", "at": "0,0,0", "window": "0,6"},
        {"axes": "1,2", "at": "0,0,0", "most": "0"},
        {"axes": "1,2", "at": "0,0,0", "high": "nan"},
        {"axes": "0,1", "at": "0", "path": "/surface/station"},
        {"axes": "0,1", "at": "0,0", "path": "/surface"},
    ],
)
def test_a_picture_that_cannot_be_made_is_refused(
    server: PageServer, tip: str, address: str, given: dict[str, str]
) -> None:
    reply = bad(server, address, tip, **{"from": tip}, **given)
    assert reply.status == 400
    assert reply.value["error"]


def test_unknown_scales_nodes_and_snapshots(server: PageServer, tip: str) -> None:
    where = {"axes": "1,2", "at": "0,0,0"}
    assert bad(server, "picture", tip, scale="rainbow", **where).status == 400
    assert bad(server, "picture", tip, path="/no", **where).status == 404
    assert bad(server, "picture", "0" * 20, **where).status == 404
    assert ask(server, "/api/scale", scale="rainbow").status == 400
    assert read_png(ask(server, "/api/scale", scale="ember").body)[0].shape == (
        1,
        pictures.NUM_STEPS,
    )


# --- parts


def test_scales_rise_evenly_in_lightness() -> None:
    for scale in pictures.SCALES:
        made = pictures.palette(scale)[: pictures.NUM_STEPS, :3].astype("f8") / 255
        luminance = made**2.2 @ np.array([0.2126, 0.7152, 0.0722])
        assert (np.diff(luminance) > -2e-3).all(), scale
        assert luminance[-1] - luminance[0] > 0.75
    middle = pictures.palette("difference")[pictures.NUM_STEPS // 2]
    assert middle[:3].min() > 225


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (-1e308, 1e308), (5.0, 5.0), (1e-320, 2e-320)]
)
def test_pixels_of_odd_limits(low: float, high: float) -> None:
    values = np.array([[low, high, np.nan, np.inf, -np.inf]])
    found = pictures.coloured_pixels(values, low, high)[0].tolist()
    assert found[2] == pictures.NOTHING
    assert found[3:] == [pictures.NUM_STEPS - 1, 0]
    assert found[0] == 0
    assert found[1] in (0, pictures.NUM_STEPS - 1)


def test_png_of_one_pixel() -> None:
    pixels, palette = read_png(encode_png(np.array([[7]], np.uint8), pictures.palette("ice")))
    assert pixels.tolist() == [[7]]
    assert palette[pictures.NOTHING].tolist() == [0, 0, 0, 0]
    assert palette[7, 3] == 255


@pytest.mark.parametrize(
    ("shape", "chunk", "most", "chunk_bytes", "expected"),
    [
        ((10, 10), (5, 5), 512, 100, [1, 1]),
        ((1000, 10), (5, 5), 100, 100, [10, 1]),
        # 10,000 chunks of 8 MB are too much, so samples are far apart: 4 x 7 chunks, 224 MB.
        ((100_000, 100_000), (1000, 1000), 500, 8_000_000, [32_000, 16_000]),
        ((1, 1), (1, 1), 512, 1 << 40, [1, 1]),
        ((0, 5), (1, 5), 512, 8, [1, 1]),
    ],
)
def test_steps_keep_a_picture_within_its_limits(
    shape: tuple[int, int],
    chunk: tuple[int, int],
    most: int,
    chunk_bytes: int,
    expected: list[int],
) -> None:
    assert planes.choose_steps(shape, chunk, most, chunk_bytes) == expected


def labels(values: Any, kind: str = "number") -> list[str]:
    return coordinate_labels(planes.Decoded(Values(np.array(values)), kind, None))


def test_coordinates_are_told_as_people_read_them() -> None:
    hours = np.array(["2020-01-01", "2020-01-01T06:30"], "M8[us]")
    assert labels(hours, "time") == ["2020-01-01 00:00", "2020-01-01 06:30"]
    assert labels([0.1, 1e-9, np.nan]) == ["0.1", "1e-09", "–"]
    assert labels(["a"], "text") == ["a"]
    assert labels(np.array([90], "m8[m]").astype("m8[us]"), "duration") == ["1:30:00"]


def test_a_large_array_is_sampled_and_stays_small() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="a large grid") as store:
        array = zarr.create_array(
            store, name="a", shape=(40_000, 50_000), chunks=(4000, 5000), dtype="f8", fill_value=1
        )
        array[:10, :10] = 3
    with serving(repo) as server:
        given = {"path": "/a", "axes": "0,1", "at": "0,0", "snapshot": repo.lookup_branch("main")}
        about, pixels = picture(server, **given)
        assert max(about["steps"]) > 1
        assert pixels.size <= 512 * 512
        assert about["max"] == 3
        about, _ = picture(server, **given, window="0,20,0,20")
        assert about["steps"] == [1, 1]
