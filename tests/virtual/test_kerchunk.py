"""Sets of references as sources: what xarray reads through fsspec is in the repository."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

import icefloe
from icefloe import InvalidInputError, Repository, StorageError
from icefloe.credentials import HttpAccess
from icefloe.virtual import SourceError, ingest_local, open_native, scan
from tests.servers import BUCKET, S3Server
from tests.virtual.datasets import check, dataset, expected, read, to_netcdf4, xr
from tests.virtual.decoding import decode
from tests.virtual.reference_sets import (
    Refs,
    as_texts,
    read_with_fsspec,
    references_to,
    write_json,
    write_parquet,
    write_record,
)
from tests.virtual.test_remote_sources import access_to, upload
from tests.virtual_sources import config_of, web_server

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    to_netcdf4(dataset(0, has_text=False), tmp_path / "a.nc")
    return tmp_path / "a.nc"


def compressed(refs: Refs, path: Path) -> Path:
    data = json.dumps({"version": 1, "refs": as_texts(refs)}).encode()
    packed = gzip.compress(data) if path.suffix == ".gz" else zstandard.compress(data)
    path.write_bytes(packed)
    return path


FORMS: dict[str, Any] = {
    "version 0": lambda refs, folder: write_json(folder / "r.json", refs, version=0),
    "version 1": lambda refs, folder: write_json(folder / "r.json", refs),
    "gzip": lambda refs, folder: compressed(refs, folder / "r.json.gz"),
    "zstd": lambda refs, folder: compressed(refs, folder / "r.json.zst"),
    "parquet": lambda refs, folder: write_parquet(folder / "r.parq", refs),
}


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("form", FORMS)
def test_a_set_of_any_form_becomes_what_xarray_reads(
    tmp_path: Path, file: Path, repository: Repository, form: str, mode: Any
) -> None:
    refs = references_to(file, inline_every=3)
    kinds = [isinstance(value, bytes) for key, value in refs.items() if key.startswith("packed/")]
    assert True in kinds
    assert False in kinds, "an array has chunks of both kinds"
    source = FORMS[form](refs, tmp_path)
    ingest_local(source, repository, mode=mode)
    session = repository.readonly_session("main")
    found = read(session.store)
    if form in ("version 0", "version 1", "parquet"):
        xr.testing.assert_identical(found, read_with_fsspec(source))
    check(found, expected([file]))
    locations = session.all_virtual_chunk_locations()
    assert set(locations) == (set() if mode == "native" else {file.as_uri()})


def array_set(**changes: Any) -> Refs:
    """The smallest set there is: one array of two plain chunks."""
    described = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "order": "C"}
    described |= {"fill_value": None, "filters": None, "compressor": None}
    refs = {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": described,
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
    }
    refs |= {"v/0": ["data", 0, 4], "v/1": ["data", 4, 4]}
    return {key: value for key, value in {**refs, **changes}.items() if value != "gone"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NDArray[Any]:
    """The file that `array_set` refers to, in the working directory."""
    monkeypatch.chdir(tmp_path)
    values = np.array([5, 6, 7, 8], "<i2")
    (tmp_path / "data").write_bytes(values.tobytes())
    return values


def both(path: Path, name: str = "v") -> NDArray[Any]:
    """The values of an array, which have to be the same as references and as a copy."""
    found = decode(scan(path, references=True), name)
    with open_native(path) as reader:
        copied = reader.read(name, tuple(slice(0, size) for size in found.shape))
    np.testing.assert_array_equal(copied, found)
    return copied


def test_a_relative_path_starts_at_the_working_directory_as_in_fsspec(
    tmp_path: Path, data: NDArray[Any]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = write_json(tmp_path / "elsewhere" / "r.json", array_set())
    np.testing.assert_array_equal(both(path), data)
    assert read_with_fsspec(path)["v"].values.tolist() == data.tolist()
    source = scan(path, references=True)
    assert source.references is not None
    assert source.references["v"]["location"][0].as_py() == (tmp_path / "data").as_uri()


def test_names_of_files_are_taken_literally_as_in_fsspec(
    tmp_path: Path, data: NDArray[Any]
) -> None:
    for name in ("50%20 a#b?.bin", "ü.bin"):
        (tmp_path / name).write_bytes(data.tobytes())
        for url in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
            changes = {"v/0": [url, 0, 4], "v/1": [url, 4, 4]}
            path = write_json(tmp_path / "r.json", array_set(**changes))
            np.testing.assert_array_equal(both(path), data)
            assert read_with_fsspec(path)["v"].values.tolist() == data.tolist()


def test_whole_files_texts_and_chunks_that_are_not_there(
    tmp_path: Path, data: NDArray[Any]
) -> None:
    (tmp_path / "two").write_bytes(data[2:].tobytes())
    refs = array_set(**{"v/0": "ab\x01\x02", "v/1": ["two"]})
    for path in (
        write_json(tmp_path / "r.json", refs),
        write_json(tmp_path / "0", refs, version=0),
    ):
        assert both(path).tolist() == [0x6261, 0x0201, 7, 8]
        assert read_with_fsspec(path)["v"].values.tolist() == [0x6261, 0x0201, 7, 8]
    described = array_set()["v/.zarray"] | {"fill_value": 9}
    for number, changes in enumerate([{"v/0": "gone"}, {"v/0": "gone", "v/1": "gone"}]):
        refs = array_set(**{"v/.zarray": described, **changes})
        wanted = [9, 9, 7, 8] if not number else [9] * 4
        assert both(write_json(tmp_path / "r.json", refs)).tolist() == wanted
        assert both(write_parquet(tmp_path / f"{number}.parq", refs, 1)).tolist() == wanted


def test_groups_and_keys_with_slashes(tmp_path: Path, data: NDArray[Any]) -> None:
    described = array_set()["v/.zarray"]
    refs = {
        ".zgroup": {"zarr_format": 2},
        "g/.zgroup": {"zarr_format": 2},
        "g/.zattrs": {"title": "inner"},
        "g/h/v/.zarray": {
            **described,
            "shape": [2, 2],
            "chunks": [1, 2],
            "dimension_separator": "/",
        },
        "g/h/v/0/0": ["data", 0, 4],
        "g/h/v/1/0": ["data", 4, 4],
        "g/s/.zarray": {**described, "shape": [], "chunks": []},
        "g/s/0": ["data", 2, 2],
    }
    path = write_json(tmp_path / "r.json", refs)
    assert scan(path).groups["g"].attributes == {"title": "inner"}
    assert both(path, "g/h/v").tolist() == [[5, 6], [7, 8]]
    assert both(path, "g/s") == 6
    dotted = {key.replace("0/0", "0.0").replace("1/0", "1.0"): refs[key] for key in refs}
    path = write_parquet(tmp_path / "r.parq", dotted)
    assert both(path, "g/h/v").tolist() == [[5, 6], [7, 8]]
    assert both(path, "g/s") == 6


def test_templates_and_generators(tmp_path: Path, data: NDArray[Any]) -> None:
    refs = array_set(**{"v/0": ["{{in}}", 0, 4], "v/1": ["{{f(c='da')}}", 4, 4]})
    more: Any = {"templates": {"in": f"{tmp_path}/data", "f": str(tmp_path) + "/{{c}}ta"}}
    path = write_json(tmp_path / "r.json", refs, **more)
    np.testing.assert_array_equal(both(path), data)
    gen = {
        "key": "v/{{i}}",
        "url": "{{u}}/data",
        "offset": "{{ 4 * (i + 1) - 4 }}",
        "length": "{{4}}",
        "dimensions": {"i": {"start": 0, "stop": 2}},
    }
    more = {"templates": {"u": str(tmp_path)}, "gen": [gen]}
    path = write_json(tmp_path / "r.json", array_set(**{"v/0": "gone", "v/1": "gone"}), **more)
    np.testing.assert_array_equal(both(path), data)
    pytest.importorskip("jinja2", reason="what fsspec evaluates templates with")
    assert read_with_fsspec(path, simple_templates=False)["v"].values.tolist() == data.tolist()


def plain(**changes: Any) -> dict[str, Any]:
    return {**array_set()["v/.zarray"], **changes}


def gen_of(**changes: Any) -> dict[str, Any]:
    whole = {"key": "v/{{i}}", "url": "data", "offset": "0", "length": "4"}
    return {"gen": [{**whole, "dimensions": {"i": {"stop": 2}}, **changes}]}


WRONG: dict[str, tuple[Refs, dict[str, Any], str]] = {
    "outside of the grid": ({"v/2": ["data", 0, 4]}, {}, "'v/2' is outside of the grid"),
    "another rank": ({"v/0.0": ["data", 0, 4]}, {}, "'v/0.0' is no chunk"),
    "two spellings": ({"v/00": ["data", 0, 4]}, {}, "'v/00' is no chunk"),
    "no array": ({"w/0": ["data", 0, 4]}, {}, "'w/0' belongs to no array"),
    "no arrays": ({key: "gone" for key in array_set() if key != ".zgroup"}, {}, "no array in it"),
    "no file": ({"v/0": ["nowhere", 0, 4]}, {}, "nowhere: there is no such file"),
    "beyond the file": ({"v/1": ["data", 6, 4]}, {}, "data, which has 8 bytes"),
    "wrong size": ({"v/1": ["data", 4, 3]}, {}, "4 were expected"),
    "wrong inline size": ({"v/1": "abc"}, {}, "has 3 bytes"),
    "no length": ({"v/1": ["data", 4]}, {}, "expected text"),
    "negative": ({"v/1": ["data", -4, 4]}, {}, "expected text"),
    "huge": ({"v/1": ["data", 2**64, 4]}, {}, "expected text"),
    "no URL": ({"v/1": [None, 0, 4]}, {}, "expected text"),
    "not base64": ({"v/1": "base64:%%"}, {}, "not base64"),
    "not JSON inside": ({"v/.zarray": "{"}, {}, "'v/.zarray' is not JSON"),
    "no shape": ({"v/.zarray": {"zarr_format": 2}}, {}, "metadata of array 'v'"),
    "chunks of nothing": ({"v/.zarray": plain(chunks=[0])}, {}, "chunks of"),
    "chunks of another rank": ({"v/.zarray": plain(chunks=[2, 2])}, {}, "chunks of"),
    "an unknown template": ({"v/0": ["{{u}}", 0, 4]}, {}, "no template 'u'"),
    "an unfinished template": ({"v/0": ["{{u", 0, 4]}, {"templates": {"u": "data"}}, "braces"),
    "code": ({"v/0": ["{{u.x}}", 0, 4]}, {"templates": {"u": "data"}}, "not supported"),
    "templates of numbers": ({}, {"templates": {"u": 3}}, "not texts"),
    "a generator without end": ({}, gen_of(dimensions={"i": {"stop": 10**12}}), "over 10,000,000"),
    "a generator of text": ({}, gen_of(offset="{{'a'}}"), "whole number"),
    "half a generator": ({}, {"gen": [{"key": "a"}]}, "needs 'key'"),
    "a later version": ({}, {"version": 2}, "version 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_set_that_cannot_be_right_is_refused_by_name(
    tmp_path: Path, data: NDArray[Any], repository: Repository, name: str
) -> None:
    changes, more, reason = WRONG[name]
    path = write_json(tmp_path / "wrong.json", array_set(**changes), **more)
    with pytest.raises(SourceError, match=re.escape(reason)) as caught:
        scan(path, references=True)
    assert "wrong.json: " in str(caught.value)
    for mode in ("native", "virtual"):
        report = ingest_local(path, repository, mode=mode, on_error="skip")
        assert [problem.location for problem in report.problems] == [path.as_uri()]
        assert "Traceback" not in report.problems[0].reason
        assert report.snapshot_id is None


WRONG_RECORDS: dict[str, tuple[Any, str]] = {
    "outside of the grid": (
        [["data", 0, 4], ["data", 4, 4], ["data", 4, 4]],
        "outside of the grid",
    ),
    "too few rows": ([["data", 0, 4]], "1 rows, expected 2"),
    "negative": ([["data", -1, 4], ["data", 4, 4]], "offset -1"),
    "no size": ([["data", 2, 0], ["data", 4, 4]], "offset 2 and size 0"),
    "beyond the file": ([["data", 0, 4], ["data", 6, 4]], "which has 8 bytes"),
}


@pytest.mark.parametrize("name", WRONG_RECORDS)
def test_a_record_that_cannot_be_right_is_refused(
    tmp_path: Path, data: NDArray[Any], name: str
) -> None:
    rows, reason = WRONG_RECORDS[name]
    path = write_parquet(tmp_path / "wrong.parq", array_set())
    write_record(path / "v" / "refs.0.parq", rows)
    with pytest.raises(SourceError, match=rf"wrong\.parq: .*{re.escape(reason)}"):
        scan(path, references=True)


def test_folders_and_files_that_are_no_sets_are_refused(tmp_path: Path, data: NDArray[Any]) -> None:
    for text in ("{}", '{"a": 1}', '{"refs": []}', "{", "{" * 100_000):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(SourceError, match=r"wrong\.json"):
            scan(tmp_path / "wrong.json")
    (tmp_path / "wrong.json.gz").write_bytes(gzip.compress(b"{}" * 100)[:-9])
    with pytest.raises(SourceError, match="cannot be decompressed"):
        scan(tmp_path / "wrong.json.gz")
    path = write_parquet(tmp_path / "wrong.parq", array_set())
    (path / "v" / "refs.0.parq").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="not readable"):
        scan(path)
    write_record(path / "w" / "refs.0.parq", [b"abcd"])
    with pytest.raises(SourceError, match=r"no \.zarray"):
        scan(path)
    (path / ".zmetadata").write_text('{"metadata": {}, "record_size": 0}')
    with pytest.raises(SourceError, match="record_size"):
        scan(path)


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_sets_follow_each_other_and_are_appended_once(
    tmp_path: Path, repository: Repository, mode: Any
) -> None:
    files = [tmp_path / f"{part}.nc" for part in range(3)]
    for part, file in enumerate(files):
        to_netcdf4(dataset(part, has_text=False), file)
        refs = references_to(file, inline_every=3 if part == 1 else 0)
        write_json(tmp_path / f"{9 - part}.json", refs)
    options: Any = {"mode": mode, "concat_dim": "time", "append": True}
    ingest_local([tmp_path / "8.json", tmp_path / "9.json"], repository, **options)
    report = ingest_local(str(tmp_path / "*.json"), repository, **options)
    assert (report.files_added, report.files_skipped) == (1, 2)
    check(read(repository.readonly_session("main").store), expected(files))


def test_a_file_that_changed_after_the_ingest_is_not_read(
    tmp_path: Path, file: Path, repository: Repository
) -> None:
    ingest_local(write_json(tmp_path / "r.json", references_to(file)), repository, mode="virtual")
    state = file.stat()
    os.utime(file, (state.st_atime, state.st_mtime + 10))
    with pytest.raises(StorageError) as caught:
        read(repository.readonly_session("main").store)
    assert caught.value.kind == "virtual-chunk-modified"


def test_the_location_that_no_container_covers_is_named(tmp_path: Path, data: NDArray[Any]) -> None:
    large = plain(shape=[400_000], chunks=[200_000], dtype="<f8")
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(bytes(1_600_000))
    urls = {f"v/{n}": [f"{tmp_path}/{name}/data"] for n, name in enumerate(("inside", "outside"))}
    path = write_json(tmp_path / "r.json", array_set(**{"v/.zarray": large, **urls}))
    prefix = f"file://{tmp_path}/inside/"
    store = icefloe.local_filesystem_store(str(tmp_path / "inside"))
    config = config_of([icefloe.VirtualChunkContainer(prefix, store)])
    repository = Repository.create(icefloe.in_memory_storage(), config)
    with pytest.raises(InvalidInputError, match=r"covers file://.*/outside/data"):
        ingest_local(path, repository, mode="virtual")


def test_sets_on_s3_refer_to_files_there_but_not_to_local_ones(
    tmp_path: Path, file: Path, s3_server: S3Server
) -> None:
    prefix = f"s3://{BUCKET}/sets"
    refs = references_to(file, f"{prefix}/a.nc", inline_every=3)
    write_json(tmp_path / "r.json", refs)
    write_parquet(tmp_path / "r.parq", refs)
    write_json(tmp_path / "local.json", references_to(file))
    write_parquet(tmp_path / "local.parq", references_to(file))
    upload(s3_server, tmp_path, "sets")
    access = access_to(s3_server)
    for name in ("r.json", "r.parq"):
        source = scan(f"{prefix}/{name}", references=True, access=access)
        assert source.references is not None
        table = source.references["packed"]
        assert table["etag"].null_count == table["location"].null_count > 0
        repository = Repository.create(icefloe.in_memory_storage())
        ingest_local(f"{prefix}/{name}", repository, access=access)
        check(read(repository.readonly_session("main").store), expected([file]))
        for path in ("packed", "plain"):
            here = decode(scan(file, references=True), path)
            np.testing.assert_array_equal(decode(source, path, access), here)
    for name in ("local.json", "local.parq"):
        for references in (True, False):
            with pytest.raises(SourceError, match=rf"{name}: it refers to the local file"):
                scan(f"{prefix}/{name}", references=references, access=access)
        with (
            open_native(f"{prefix}/{name}", access) as reader,
            pytest.raises(SourceError, match="refers to the local file"),
        ):
            reader.read("packed", (slice(0, 1), slice(0, 4), slice(0, 6)))


def test_a_set_on_a_web_server(tmp_path: Path, file: Path) -> None:
    with web_server(files={"/data/a.nc": file.read_bytes()}) as server:
        path = write_json(tmp_path / "r.json", references_to(file, f"{server.url}/data/a.nc"))
        server.files["/r.json"] = path.read_bytes()
        prefix = f"{server.url}/data/"
        for mode in ("native", "virtual"):
            repository = Repository.create(
                icefloe.in_memory_storage(),
                config_of([icefloe.VirtualChunkContainer(prefix, icefloe.http_store())]),
                {prefix: HttpAccess},
            )
            ingest_local(f"{server.url}/r.json", repository, mode=mode)
            check(read(repository.readonly_session("main").store), expected([file]))
        server.etag = '"v2"'
        with pytest.raises(StorageError) as caught:
            read(repository.readonly_session("main").store)
        assert caught.value.kind == "virtual-chunk-modified"
