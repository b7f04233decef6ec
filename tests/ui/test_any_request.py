"""Whatever is asked: the server answers or refuses, and never fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.ui import PageServer
from icefloe.ui.routes import ROUTES
from tests.ui.asking import ask, value
from tests.ui.conftest import make_weather, serving

REFUSED = (400, 404)
PATHS = ["/", "/surface", "/surface/t2m", "/surface/lat", "/surface/station", "/depth", "/no"]
ODD = st.one_of(st.text(max_size=20), st.integers(-5, 2**70).map(str), st.just("nan"))


@st.composite
def requests(draw: st.DrawFn, snapshots: list[str]) -> tuple[str, dict[str, Any]]:
    """An address with parameters that are mostly sensible."""
    few = st.lists(st.integers(0, 8), max_size=4).map(lambda found: ",".join(map(str, found)))
    known = {
        "snapshot": st.sampled_from(snapshots),
        "from": st.sampled_from(snapshots),
        "path": st.sampled_from(PATHS),
        "axes": few,
        "at": few,
        "index": few,
        "window": few,
        "offset": st.integers(0, 10).map(str),
        "limit": st.integers(1, 10).map(str),
        "most": st.integers(1, 10).map(str),
        "q": st.text(max_size=5),
        "by": st.sampled_from(["kind", "commit"]),
        "scale": st.sampled_from(["ice", "grey"]),
        "low": st.floats(allow_nan=False, allow_infinity=False).map(str),
        "high": st.floats(allow_nan=False, allow_infinity=False).map(str),
        "flip": st.just("1"),
    }
    names = draw(st.sets(st.sampled_from(sorted(known)))) | {"snapshot", "path", "from"}
    odd = (
        draw(st.sets(st.sampled_from(sorted(known)), max_size=1)) if draw(st.booleans()) else set()
    )
    found = {name: draw(ODD if name in odd else known[name]) for name in sorted(names)}
    return draw(st.sampled_from(ROUTES)), found


@given(data=st.data())
def test_no_request_makes_the_server_fail(
    server: PageServer, weather: icefloe.Repository, data: st.DataObject
) -> None:
    snapshots = [info.id for info in weather.ancestry(branch="main")]
    snapshots.append(weather.lookup_branch("dev"))
    address, parameters = data.draw(requests(snapshots))
    reply = ask(server, address, **parameters)
    assert reply.status == 200 or reply.status in REFUSED, (address, parameters, reply.body)
    if reply.status != 200:
        assert reply.value["error"]


PARAMETERS = [
    "snapshot",
    "from",
    "path",
    "axes",
    "at",
    "index",
    "window",
    "shape",
    "offset",
    "limit",
]
PARAMETERS += ["most", "q", "by", "scale", "low", "high", "flip", "all"]
ODD_VALUES = [
    *(
        "",
        "-",
        "--5",
        "-5",
        "+5",
        "5-",
        "0x5",
        "1_000",
        " 5 ",
        "5.0",
        "1e3",
        "1e999",
        "-1e999",
        "nan",
    ),
    *(
        "inf",
        "-0",
        "9" * 25,
        "9" * 4000,
        "-" + "9" * 4000,
        "٥",
        "²",
        ",",
        "0,",
        ",0",
        "0,,1",
        "--1,2",
    ),
    *(
        "0,1,2,3,4,5",
        "/",
        "//",
        "/..",
        "a\0b",
        "\ud83d",
        "%",
        "/surface/t2m/",
        "surface/t2m",
        "." * 300,
    ),
]


@pytest.mark.parametrize("address", ROUTES)
def test_an_odd_parameter_is_refused_or_answered(
    server: PageServer, weather: icefloe.Repository, address: str
) -> None:
    tip = weather.lookup_branch("main")
    good = {"snapshot": tip, "from": weather.lookup_tag("v1"), "path": "/surface/t2m", "q": "a"}
    good |= {"axes": "1,2", "at": "0,0,0", "index": "0,0,0"}
    for name in PARAMETERS:
        for odd in ODD_VALUES:
            if name == "by" or len(odd) < 1000 or name in ("offset", "at"):
                given: dict[str, Any] = {**good, name: odd.encode(errors="surrogatepass")}
                reply = ask(server, address, **given)
                assert reply.status == 200 or reply.status in REFUSED, (name, odd, reply.body)
                if reply.status != 200:
                    assert reply.value["error"]


@pytest.mark.parametrize("line", ["http://[", "//[/api/refs", "/api/refs?%ff", "/%ff", "*"])
@pytest.mark.parametrize("site", ["none", "same-origin", "cross-site"])
def test_an_address_that_is_none_is_refused(server: PageServer, line: str, site: str) -> None:
    reply = ask(server, line, headers={"Sec-Fetch-Site": site})
    assert reply.status in (400, 403, 404), reply.body
    assert reply.value["error"]


def older(generation: Any) -> Callable[[Path], icefloe.Repository]:
    def make(place: Path) -> icefloe.Repository:
        storage = icefloe.local_filesystem_storage(str(place))
        repo = icefloe.Repository.create(storage, generation=generation)
        session = repo.writable_session("main")
        array = zarr.create_array(
            session.store, name="a", shape=(4, 4), chunks=(2, 2), dtype="i4", fill_value=0
        )
        array[:2] = 5
        session.commit("first")
        return repo

    return make


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda place: make_weather(spec_version=1), id="spec-1"),
        pytest.param(older(icefloe.NumberedRefs()), id="numbered-refs"),
        pytest.param(older(icefloe.StateFileDataset()), id="state-file"),
    ],
)
def test_every_generation_can_be_looked_at(
    make: Callable[[Path], icefloe.Repository], tmp_path: Path
) -> None:
    repo = make(tmp_path / "repository")
    with serving(repo) as server:
        told = value(server, "repository")
        tip = told["main"]
        path = value(server, "snapshot", snapshot=tip)["first_array"]
        node = value(server, "node", snapshot=tip, path=path)
        at = ",".join("0" for _ in node["shape"])
        where = {"snapshot": tip, "path": path, "at": at, "index": at, "from": tip, "q": "a"}
        axes = f"{len(node['shape']) - 2},{len(node['shape']) - 1}"
        assert ask(server, "/api/picture", **where, axes=axes).status == 200
        for address in ROUTES:
            reply = ask(server, address, **where, axes=axes)
            assert reply.status == 200 or reply.status in REFUSED, (address, reply.body)
