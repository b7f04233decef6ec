"""Recipes: what can be written down, and what is said about mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import (
    ChunkType,
    InvalidInputError,
    Repository,
    RepositoryNotFoundError,
    local_filesystem_storage,
)
from icefloe.spark import load_recipe, run_recipe
from tests.virtual.datasets import check, dataset, expected, read, to_netcdf4

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
)

FULL = """
sources: [a/*.nc, s3://bucket/b.nc]
repository: s3://bucket/repository
group: obs
branch: main
concat_dim: time
variables: [t2m]
chunks: {time: 24, lat: 10}
mode: native
append: true
on_error: skip
message: a day more
"""


def test_a_recipe_has_the_arguments_of_ingest(tmp_path: Path) -> None:
    recipe = load_recipe(FULL)
    assert recipe["chunks"] == {"time": 24, "lat": 10}
    assert recipe["append"] is True
    assert len(recipe) == 11
    path = tmp_path / "recipe.yaml"
    path.write_text(FULL)
    assert load_recipe(path) == load_recipe(str(path)) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: a.nc\nrepositry: b\n", "no field 'repositry'; did you mean 'repository'"),
        ("sources: a.nc\nrepository: b\nzzz: 1\n", "no field 'zzz'; there are sources, repository"),
        ("sources: a.nc\n", "repository is missing, expected repository: the URL"),
        ("group: obs\n", "sources, repository is missing"),
        ("sources: 3\nrepository: b\n", "sources is 3, expected a path"),
        ("sources: []\nrepository: b\n", r"sources is \[\]"),
        ("sources: a.nc\nrepository: b\nappend: maybe\n", "append is 'maybe', expected true"),
        ("sources: a.nc\nrepository: b\nchunks: 3\n", "chunks is 3, expected lengths by name"),
        ("sources: a.nc\nrepository: b\nchunks: {time: true}\n", "chunks is {'time': True}"),
        ("sources: a.nc\nrepository: b\nmode: copy\n", "mode is 'copy', expected 'native' or"),
        ("- a\n- b\n", "it is a list, expected names and values"),
        ("sources: [a\n", "it is not YAML"),
        ("/nowhere/recipe.yaml", "recipe /nowhere/recipe.yaml: cannot be read: No such file"),
        ("", "expected the path of a file, or YAML"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_recipe(text)


def test_a_recipe_is_run(spark: SparkSession, tmp_path: Path, repository: Repository) -> None:
    paths = [tmp_path / "b.nc", tmp_path / "a.nc"]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"sources: {tmp_path}/*.nc\nrepository: {repository.storage.url}\nconcat_dim: time\n"
        "message: by recipe\nappend: true\n"
    )
    report = run_recipe(spark, recipe)
    assert report.files_added == 2
    newest = next(iter(repository.ancestry(branch="main")))
    assert (newest.id, newest.message) == (report.snapshot_id, "by recipe")
    check(read(repository.readonly_session("main").store), expected(paths))
    assert run_recipe(spark, recipe).snapshot_id is None


def test_one_rule_for_repositories_that_are_not_there(spark: SparkSession, tmp_path: Path) -> None:
    to_netcdf4(dataset(0), tmp_path / "a.nc")
    (tmp_path / "bad.nc").write_bytes(b"something else")
    text = f"sources: {tmp_path}/{{}}.nc\nrepository: {tmp_path}/{{}}\nappend: true\n"
    ways: dict[str, Callable[[str], object]] = {
        "call": lambda recipe: icefloe.ingest(**icefloe.load_recipe(recipe)),
        "recipe": lambda recipe: run_recipe(spark, recipe),
        "spark": lambda recipe: icefloe.spark.ingest(spark, **load_recipe(recipe)),
        "engine": lambda recipe: icefloe.ingest(**load_recipe(recipe), engine="spark", spark=spark),
    }
    for name, run in ways.items():
        place = tmp_path / name
        with pytest.raises(RepositoryNotFoundError):
            run(text.format("a", name) + "create: false\n")
        with pytest.raises(InvalidInputError, match="1 file cannot be ingested"):
            run(text.format("bad", name))
        assert not place.exists()
        run(text.format("a", name))
        assert Repository.exists(local_filesystem_storage(place))


def test_a_group_goes_on_in_its_mode_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    files = [tmp_path / "files" / f"{part}.nc" for part in range(2)]
    files[0].parent.mkdir()
    for part, path in enumerate(files):
        to_netcdf4(dataset(part), path)
    place = str(tmp_path / "weather")
    icefloe.spark.ingest(spark, files[:1], place, concat_dim="time", mode="virtual")
    report = run_recipe(spark, f"sources: {files[1]}\nrepository: {place}\nappend: true\n")
    assert "mode='virtual'" in report.notes[-1]
    session = Repository.open(local_filesystem_storage(place)).readonly_session("main")
    assert session.chunk_type("/packed", (3, 0, 0)) is ChunkType.virtual
