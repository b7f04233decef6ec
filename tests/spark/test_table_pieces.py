"""What the data source's writers do, without Spark: rows set aside, put together, once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.datasource", reason="Spark 4.0 brought data sources in Python")

import zarr
from pyspark.sql import Row
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from icefloe import InvalidInputError, Repository
from icefloe.spark import data_source
from icefloe.spark.data_source import (
    IcefloeDataSource,
    Piece,
    assemble,
    commit_pieces,
    record_batches,
    stage,
)
from icefloe.spark.shared_write import BatchId, app_of
from icefloe.spark.table_arrays import table_request
from tests.spark.test_table_grid import DIMS, VARIABLES, assert_same, cube, opened, rows_of
from tests.spark.writing import number_of_objects

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")


def request_of(table: pa.Table, **options: Any) -> Any:
    given: dict[str, Any] = {
        "group": "",
        "dims": DIMS,
        "variables": VARIABLES,
        "chunks": {"time": 3, "lat": 2},
        "mode": "append",
    }
    return table_request(table.schema, **{**given, **options})


@pytest.mark.parametrize("memory", [1, 400, 1 << 30])
@pytest.mark.parametrize("in_message", [0, 1 << 20])
def test_rows_of_a_chunk_may_be_in_many_tasks(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, memory: int, in_message: int
) -> None:
    monkeypatch.setattr(data_source, "OBJECT_BYTES", 400)
    monkeypatch.setattr(data_source, "PIECE_BYTES", 150)
    monkeypatch.setattr(data_source, "_IN_MESSAGE_BYTES", in_message)
    table = rows_of(cube())
    request = request_of(table)
    before = number_of_objects(repository)
    pieces = []
    for start in range(0, table.num_rows, 11):
        batches = table.slice(start, 11).to_batches(max_chunksize=4)
        pieces += pickle.loads(pickle.dumps(stage(repository, request, batches)))
    assert len(pieces) > 3
    keys = {piece.key for piece in pieces if piece.data is None}
    assert number_of_objects(repository) - before == len(keys)
    # How many depends on the types that pandas gives the columns.
    assert not keys if in_message else 1 < len(keys) < len(pieces)
    session = repository.writable_session("main")
    assemble(repository, session, request, pieces, memory)
    session.commit("put together")
    assert_same(opened(repository), cube())


def test_rows_are_read_about_once_however_they_come(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_source, "PIECE_BYTES", 4000)
    monkeypatch.setattr(data_source, "_IN_MESSAGE_BYTES", 0)
    rows = 100 * 100
    order = np.random.default_rng(1).permutation(rows)
    table = pa.table({"t": order // 100, "x": order % 100, "v": order * 0.5})
    request = request_of(table, dims=["t", "x"], variables=["v"], chunks={"t": 2})
    pieces = [
        piece
        for start in range(0, rows, 2500)
        for piece in stage(repository, request, table.slice(start, 2500).to_batches())
    ]
    seen = 0
    honest = Piece.table

    def counted(piece: Piece, data: Any) -> pa.Table:
        nonlocal seen
        found = honest(piece, data)
        seen += found.num_rows
        return found

    monkeypatch.setattr(Piece, "table", counted)
    session = repository.writable_session("main")
    assemble(repository, session, request, pieces, memory=40_000)  # a tenth of them at a time
    session.commit("put together")
    found = zarr.open_array(repository.readonly_session("main").store, path="v", mode="r")
    np.testing.assert_array_equal(np.asarray(found[:]).reshape(-1), np.arange(rows) * 0.5)
    assert seen < 2.5 * rows


def test_a_batch_is_committed_once(repository: Repository) -> None:
    table = rows_of(cube(0, 4))
    request = request_of(table)
    pieces = stage(repository, request, table.to_batches())

    def put(app: str, number: int) -> str | None:
        return commit_pieces(repository, "main", request, pieces, "rows", BatchId(app, number))

    first = put("a", 0)
    assert first is not None
    assert put("a", 0) is None
    assert put("b", 0) is not None
    assert put("a", 1) is not None
    assert put("a", 0) is None
    assert put("b", 0) is None
    found = [info.metadata for info in repository.ancestry(branch="main")][:-1]
    assert found == [
        {"icefloe.stream.app": app, "icefloe.stream.batch": number}
        for app, number in (("a", 1), ("b", 0), ("a", 0))
    ]
    assert_same(opened(repository), cube(0, 4))


def test_others_may_commit_meanwhile(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = rows_of(cube(0, 2)), rows_of(cube(2, 2))
    request = request_of(first)
    pieces = [stage(repository, request, table.to_batches()) for table in (first, second)]
    honest = data_source.assemble

    def overtaken(*arguments: Any) -> None:
        honest(*arguments)
        monkeypatch.setattr(data_source, "assemble", honest)
        commit_pieces(repository, "main", request, pieces[0], "the other one")

    monkeypatch.setattr(data_source, "assemble", overtaken)
    commit_pieces(repository, "main", request, pieces[1], "overtaken")
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert messages[:2] == ["overtaken", "the other one"]
    assert_same(opened(repository), xr.concat([cube(0, 2), cube(2, 2)], "time"))


def test_no_rows_commit_nothing(repository: Repository) -> None:
    table = rows_of(cube())
    assert commit_pieces(repository, "main", request_of(table), [], "nothing") is None
    assert len(list(repository.ancestry(branch="main"))) == 1
    with pytest.raises(InvalidInputError, match="no rows"):
        commit_pieces(repository, "main", request_of(table, mode="overwrite"), [], "nothing")


SCHEMA = StructType([StructField("x", LongType()), StructField("v", DoubleType())])
GOOD = {"dims": "x", "variables": "v"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"variables": "v"}, "option dims is missing"),
        ({"dims": "x"}, "option variables is missing"),
        ({**GOOD, "chunk": "1"}, "unknown option 'chunk'"),
        ({**GOOD, "chunks": "x=1,2"}, "option chunks is 'x=1,2'"),
        ({**GOOD, "chunks": "y=1"}, "chunks names 'y'"),
        ({**GOOD, "dims": "x,y"}, "no column 'y'"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    repository: Repository, options: dict[str, str], said: str
) -> None:
    source = IcefloeDataSource({"path": repository.storage.url, **options})
    with pytest.raises(InvalidInputError, match=said):
        source.writer(SCHEMA, overwrite=False)


def test_a_sink_needs_a_repository_a_name_and_append(repository: Repository) -> None:
    with pytest.raises(InvalidInputError, match="INSERT INTO"):
        IcefloeDataSource({}).writer(SCHEMA, overwrite=False)
    source = IcefloeDataSource({"path": repository.storage.url, **GOOD})
    with pytest.raises(InvalidInputError, match="option app-id is missing"):
        source.streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(InvalidInputError, match=r"outputMode\('append'\)"):
        source.streamWriter(SCHEMA, overwrite=True)
    assert app_of({"app-id": "me", "checkpointLocation": "/a"}) == "me"


def test_a_query_has_the_id_that_is_in_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "check point"
    checkpoint.mkdir()
    for number in "01":
        (checkpoint / "metadata").write_text(f'{{"id":"id {number}"}}')
        for given in (f"{checkpoint}", f"{checkpoint}/", f"file:{checkpoint}"):
            assert app_of({"checkpointLocation": given}) == f"id {number}"
            assert app_of({"checkpointlocation": given}) == f"id {number}"


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"id": 3}', '{"id": ""}', "\udc80"])
def test_a_name_is_asked_for_where_the_checkpoint_does_not_tell(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "metadata").write_text(content, errors="surrogateescape")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInputError, match=r"option app-id .*checkpoint"):
        app_of({"checkpointLocation": str(tmp_path)})
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(InvalidInputError, match=r"option app-id .*hdfs://host/checkpoint"):
        app_of({"checkpointLocation": "hdfs://host/checkpoint"})


def test_rows_one_by_one_become_batches() -> None:
    types = {"x": pa.int64(), "v": pa.float64()}
    rows = [Row(x=at, v=at / 2, other="o") for at in range(3)]
    found = pa.Table.from_batches(record_batches(iter(rows), types))
    assert found.to_pydict() == {"x": [0, 1, 2], "v": [0.0, 0.5, 1.0]}


@pytest.mark.parametrize("given", ["a", ("a",), ("", 1), ("a", "1"), ("a", True)])
def test_a_transaction_is_a_name_and_a_number(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="transaction"):
        BatchId.of(given)
