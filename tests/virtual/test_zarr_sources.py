"""Zarr stores of both versions as sources: every codec and key form, decoded from references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec, TransposeCodec

import icefloe
from icefloe.virtual import ingest_local
from icefloe.virtual.formats.opening import open_native, scan
from icefloe.virtual.model.description import SourceError
from tests.virtual.decoding import decode

GRID = np.arange(7 * 10, dtype="f8").reshape(7, 10)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)

V2_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None},
    "slashes": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "blosc": {"compressors": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.SHUFFLE)},
    "bitshuffle": {"compressors": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.BITSHUFFLE)},
    "zlib": {"compressors": numcodecs.Zlib(3)},
    "gzip": {"compressors": numcodecs.GZip(3)},
    "zstd": {"compressors": numcodecs.Zstd(3)},
    "bz2": {"compressors": numcodecs.BZ2(3)},
    "lzma": {"compressors": numcodecs.LZMA(preset=1)},
    "lz4": {"compressors": numcodecs.LZ4()},
    "delta": {"filters": [numcodecs.Delta("f8")]},
    "shuffle": {"filters": [numcodecs.Shuffle(8)], "compressors": numcodecs.Zlib(1)},
    "scaled": {"filters": [numcodecs.FixedScaleOffset(0, 10, "f8", "i4")]},
    "columns first": {"order": "F", "compressors": numcodecs.Zlib(1)},
    "big-endian": {"dtype": ">f8"},
    "integers": {"dtype": "<i2"},
    "bytes": {"dtype": "S3"},
}


@pytest.mark.parametrize("name", V2_OPTIONS)
def test_version_2_codecs_are_translated(tmp_path: Path, name: str) -> None:
    options = {"dtype": "<f8", "chunks": (3, 4), "shape": GRID.shape, **V2_OPTIONS[name]}
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    array = group.create_array("deep/values", **options)
    values = GRID.astype(options["dtype"])
    array[...] = values
    array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    array.attrs["units"] = "m"
    source = scan(tmp_path / "a.zarr", references=True)
    variable = source.variables["deep/values"]
    assert variable.dimensions == ("y", "x")
    assert variable.attributes["units"] == "m"
    assert "_ARRAY_DIMENSIONS" not in variable.attributes
    np.testing.assert_array_equal(decode(source, "deep/values"), values)
    with open_native(tmp_path / "a.zarr") as reader:
        part = reader.read("deep/values", (slice(1, 6), slice(2, 5)))
    np.testing.assert_array_equal(part, values[1:6, 2:5])


def test_version_2_fill_values_keep_both_meanings(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    for name, dtype, fill in [
        ("i", "i4", -5),
        ("f", "f4", np.nan),
        ("z", "f8", 0),
        ("n", "f8", None),
    ]:
        group.create_array(name, shape=(4,), chunks=(2,), dtype=dtype, fill_value=fill)[:2] = 1
    source = scan(tmp_path / "a.zarr", references=True)
    np.testing.assert_array_equal(decode(source, "i"), [1, 1, -5, -5])
    np.testing.assert_array_equal(decode(source, "f"), [1, 1, np.nan, np.nan])
    assert source.variables["i"].attributes["_FillValue"] == -5
    assert "_FillValue" in source.variables["f"].attributes
    assert "_FillValue" not in source.variables["n"].attributes


def test_a_version_2_mark_that_is_only_an_attribute_masks_as_in_xarray(tmp_path: Path) -> None:
    xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    for name, dtype in {"f": "f4", "d": ">f8", "i": "i2"}.items():
        array = group.create_array(name, shape=(3,), chunks=(3,), dtype=dtype, fill_value=None)
        array[:] = [1, -999, 3]
        array.attrs.update({"_ARRAY_DIMENSIONS": ["x"], "_FillValue": -999})
    zarr.consolidate_metadata(tmp_path / "a.zarr")
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    ingest_local(tmp_path / "a.zarr", repository)
    store = repository.readonly_session("main").store
    found = xr.open_zarr(store, consolidated=False, chunks=None).load()
    wanted = xr.open_zarr(tmp_path / "a.zarr", chunks=None).load()
    assert wanted["f"].isnull().values.tolist() == [False, True, False]
    xr.testing.assert_identical(found, wanted)


V3_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "v2 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "v2 slashes": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "sharded": {"shards": (6, 8)},
    "gzip": {"compressors": GzipCodec(level=2)},
    "plain": {"compressors": None},
    "transposed": {"filters": TransposeCodec(order=(1, 0))},
}


@pytest.mark.parametrize("name", V3_OPTIONS)
@pytest.mark.parametrize("consolidated", [False, True])
def test_version_3_arrays_come_with_their_codecs(
    tmp_path: Path, name: str, consolidated: bool
) -> None:
    group = zarr.create_group(tmp_path / "a.zarr", attributes={"title": "three"})
    options = {"chunks": (3, 4), "shape": GRID.shape, "dtype": "f8", **V3_OPTIONS[name]}
    array = group.create_array("deep/values", dimension_names=["y", "x"], **options)
    array[...] = GRID
    group.create_array("deep/value", shape=(2,), dtype="i2", chunks=(1,))[:] = [1, 2]
    group.create_array("scalar", shape=(), dtype="i4")[...] = 7
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "a.zarr")
    source = scan(tmp_path / "a.zarr", references=True)
    assert source.groups[""].attributes == {"title": "three"}
    np.testing.assert_array_equal(decode(source, "deep/values"), GRID)
    np.testing.assert_array_equal(decode(source, "deep/value"), [1, 2])
    assert decode(source, "scalar") == 7
    assert source.references is not None
    expected = 4 if name == "sharded" else 9
    assert source.references["deep/values"].num_rows == expected
    assert "last_modified" in source.references["deep/values"].column_names


def test_text_of_any_length_can_be_referred_to_in_zarr(tmp_path: Path) -> None:
    for version in (2, 3):
        place = tmp_path / f"{version}.zarr"
        group = zarr.create_group(place, zarr_format=version)
        group.create_array("text", shape=(3,), chunks=(2,), dtype="string")[:] = ["a", "", "ccc"]
        source = scan(place, references=True)
        assert source.variables["text"].dtype == "string"
        assert decode(source, "text").tolist() == ["a", "", "ccc"]
        with open_native(place) as reader:
            assert reader.read("text", (slice(None),)).tolist() == ["a", "", "ccc"]


def test_the_version_of_a_store_changes_with_any_object(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    array = group.create_array("values", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
    array[:] = 1
    before = scan(tmp_path / "a.zarr").version
    assert scan(tmp_path / "a.zarr").version == before
    (tmp_path / "a.zarr" / "values" / "c" / "1").unlink()
    assert scan(tmp_path / "a.zarr").version != before


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a Zarr store"):
        scan(tmp_path)
    (tmp_path / "zarr.json").write_text("{]")
    with pytest.raises(SourceError, match="not JSON"):
        scan(tmp_path)
