"""The scenario every official release runs: all kinds of nodes, chunks and values.

Two repositories made from it differ only by what the releases do differently. What only
some releases can do is guarded by `VERSION` here; scenarios of 2.x features live elsewhere.
"""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.official import (
    BUCKET,
    VERSION,
    bucket_container,
    create_repository,
    delete,
    icechunk,
    put,
    zarr,
)
from tests.golden.recorder import Checksum, Recorder

# One value of every JSON type, integers on both sides of every width a codec may choose.
METADATA: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "integers": [127, 128, 255, 256, 32767, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**63],
    "negatives": [-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)],
    "largest": 2**64 - 1,
    "smallest": -(2**63),
    "mixed signs": [1, -1, 1.5],
    "pair": [1, 2],
    "triple": [-1, -2, -300],
    "four floats": [0.5, 1.5, -2.5, 0.1],
    "float32": 0.25,
    "float64": 3.141592653589793,
    "huge": 1e300,
    "tiny": 5e-324,
    "text": "plain",
    "empty text": "",
    "unicode": "Grüße, 世界, 🧊",
    "ключ": "ключи тоже",
    "bools": [True, False, True],
    "strings": ["a", "", "ü"],
    "empty list": [],
    "empty object": {},
    "nested": {"list": [1, "two", None, [3.5, {"deep": [[], {}]}]], "object": {"b": 1, "a": 2}},
}

# Longer than one zstd block header can hide, and not compressible to nothing.
LONG_MESSAGE = " ".join(f"line {number}: {number * number}" for number in range(400))

LAST_MODIFIED = dt.datetime(2024, 2, 29, 12, 30, 15, tzinfo=dt.UTC)

# Odd spacing, key order and escapes: readers must give back these very bytes.
HAND_WRITTEN = (
    b'{ "node_type":"array",\n\t"zarr_format": 3, "shape":[5], "data_type":"int8",'
    b'"dimension_names":["\\u0078"], "fill_value":0,'
    b'"chunk_grid":{"configuration":{"chunk_shape":[2]},"name":"regular"},'
    b'"chunk_key_encoding":{"name":"default"},"codecs":[{"name":"bytes"}],"attributes":{} }\n'
)


def write_basics(root: Path, spec: int, record: Recorder) -> None:
    """Write the repository. Manifests of `/split/...` are split, except by 0.2."""
    repo = create_repository(root, spec=spec, config=_config())
    record.labels["nodes"] = _commit_nodes(repo, record)
    record.labels["edits"] = _commit_edits(repo)
    record.labels["resized"] = _commit_resized(repo)
    _make_refs(repo, record)
    # What 2.x makes of these is in the history scenario.
    if (1, 1) <= VERSION < (2,):
        record.labels["rebased"] = _commit_rebased(repo)
        session = repo.writable_session("main")
        put(session.store, "zarr.json", b'{"zarr_format":3,"node_type":"group"}')
        record.labels["flushed"] = session.flush("not on any branch", metadata={"flush": True})


def _config() -> Any:
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(bucket_container())
    if VERSION >= (1,):
        dimension = icechunk.ManifestSplitDimCondition
        rules = (
            (
                icechunk.ManifestSplitCondition.path_matches("^/split/"),
                ((dimension.DimensionName("time"), 2), (dimension.Axis(1), 100)),
            ),
        )
        config.manifest = icechunk.ManifestConfig(splitting=icechunk.ManifestSplittingConfig(rules))
    return config


def create_array(group: Any, path: str, shape: tuple[int, ...], **options: Any) -> Any:
    """Create an array whose chunks are stored as they are, without compression."""
    options = {"dtype": "uint8", "compressors": None, "fill_value": 0} | options
    return group.create_array(path, shape=shape, **options)


def _commit_nodes(repo: Any, record: Recorder) -> str:
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "Grüße", "n": 1})

    # Bytes and path segments sort these differently. 0.2 and 1.0 sorted by segments but
    # searched by bytes, so they (and later readers of their files) do not find them all;
    # no later commit touches them, because those releases could not.
    for name in ("ab", "a-b", "a"):
        root.create_group(name)
    create_array(root, "a/b", (3,), chunks=(2,))

    create_array(root, "scalar", (), dtype="float64")[...] = 2.5
    create_array(root, "empty", (6,), chunks=(2,))
    create_array(root, "zero length", (0, 4), chunks=(1, 2), dimension_names=["none", "four"])
    create_array(root, "native", (1100,), chunks=(600,))[:] = np.arange(1100) % 251 + 1
    cube = create_array(root, "hypercube", (3, 2, 4, 9), chunks=(2, 1, 2, 9), dtype="int16")
    cube[:, 1] = np.arange(1, 109).reshape(3, 4, 9)
    put(session.store, "hand written/zarr.json", HAND_WRITTEN)

    names = ["time", "x", ""]
    split = create_array(root, "split/grid", (3, 4, 1), chunks=(1, 2, 1), dimension_names=names)
    split[:] = np.arange(1, 13).reshape(3, 4, 1)

    create_array(root, "gone", (2,), chunks=(1,))
    create_array(root, "gone group/inner/array", (2,), chunks=(1,))[:] = 1
    create_array(root, "swap", (2,), chunks=(1,))

    deep = root.create_group("größe/深い")
    some = ["zeit ⏱", None]
    named = create_array(deep, "naïve array", (2, 3), chunks=(1, 1), dimension_names=some)
    named.attrs["einheit"] = "°C"
    checksums: list[Checksum] = [None, "etag-1", LAST_MODIFIED]
    record.set_virtual_refs(
        session.store,
        "/größe/深い/naïve array",
        [
            ((row, column), f"{BUCKET}dir/größe {row}.nc", 100 * column, 1, checksums[column])
            for row in range(2)
            for column in range(3)
        ],
    )
    create_array(root, "virtual scalar", ())
    record.set_virtual_refs(
        session.store, "/virtual scalar", [((), BUCKET + "one", 2**40, 1, '"quoted-etag"')]
    )
    return str(session.commit("Knoten 🧊 and chunks", metadata=METADATA))


def _commit_edits(repo: Any) -> str:
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="r+")
    root.attrs["n"] = 2
    root["hypercube"].attrs["changed"] = True
    root["native"][0:600] = 3
    delete(session.store, "native/c/1")
    delete(session.store, "größe/深い/naïve array/c/1/2")
    del root["gone"]
    del root["gone group"]
    del root["swap"]
    root.create_group("swap")
    return str(session.commit(LONG_MESSAGE))


def _commit_resized(repo: Any) -> str:
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="r+")
    root["hypercube"].resize((5, 2, 2, 9))
    root["split/grid"].resize((5, 4, 1))
    root["split/grid"][4, 3, 0] = 99
    return str(session.commit("", metadata={"resized": ["hypercube", "split/grid"]}))


def _make_refs(repo: Any, record: Recorder) -> None:
    labels = record.labels
    repo.create_tag("v1", labels["nodes"])
    # On a local folder this name is percent-encoded, and the official migration then fails to
    # delete it and loses the repository. The 1.1 repository is the one that gets migrated.
    if VERSION[:2] != (1, 1):
        repo.create_tag("größe", labels["edits"])
    repo.create_tag("withdrawn", labels["edits"])
    repo.delete_tag("withdrawn")
    record.deleted_tags.append("withdrawn")

    repo.create_branch("dev", labels["nodes"])
    session = repo.writable_session("dev")
    zarr.open_group(session.store, mode="r+").create_group("dev only")
    labels["dev"] = str(session.commit("on dev"))
    repo.create_branch("moved back", labels["resized"])
    repo.reset_branch("moved back", labels["nodes"])
    repo.create_branch("short-lived", labels["edits"])
    repo.delete_branch("short-lived")


def _commit_rebased(repo: Any) -> str:
    """Two sessions from one tip; the second commit carries its count of rebases."""
    ours = repo.writable_session("main")
    theirs = repo.writable_session("main")
    zarr.open_group(theirs.store, mode="r+").create_group("theirs")
    theirs.commit("first to arrive")
    zarr.open_group(ours.store, mode="r+").create_group("ours")
    solver = icechunk.ConflictDetector()
    message = "second to arrive"
    return str(ours.commit(message, metadata={"kept": 1}, rebase_with=solver, rebase_tries=3))
