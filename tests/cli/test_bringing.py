"""`ingest`, `import`, `export`, `clone`, `materialize` and `migrate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from tests.cli.calling import call, here, opened, told
from tests.virtual.datasets import check, dataset, expected, read, to_netcdf4, to_zarr


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two files, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    paths = [tmp_path / "files" / f"{name}.nc" for name in "ab"]
    paths[0].parent.mkdir()
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    return paths


def contents(place: str, **access: Any) -> Any:
    storage = icefloe.local_filesystem_storage(place)
    repo = icefloe.Repository.open(storage, None, access or None)
    return read(repo.readonly_session("main").store)


def test_ingest_again_and_again(files: list[Path]) -> None:
    missing = here("ingest", "files/*.nc", "weather", "--no-create")
    assert missing.returncode == 3
    assert "leave out --no-create" in missing.stderr
    assert not Path("weather").exists()
    first = told("ingest", files[0], "weather", "--message", "the first")
    assert (first["files_added"], told("log", "weather")[0]["message"]) == (1, "the first")
    again = here("ingest", "files/*.nc", "weather", "--append", "--concat-dim", "time")
    assert again.returncode == 0, again.stderr
    assert "1 file added, 1 there already" in again.stdout
    check(contents("weather"), expected(files))
    assert here("ingest", "files/*.nc", "weather", "--append").stdout.startswith("Nothing had to")
    assert here("ingest", "files/*.nc", "weather").returncode == 4


def test_ingest_takes_a_recipe(files: list[Path]) -> None:
    Path("recipe.yaml").write_text(
        "sources: files/*.nc\nrepository: weather\nconcat_dim: time\ngroup: era5\n"
    )
    Path("careful.yaml").write_text(Path("recipe.yaml").read_text() + "create: false\n")
    assert here("ingest", "--recipe", "careful.yaml").returncode == 3
    assert told("ingest", "--recipe", "recipe.yaml")["files_added"] == 2
    assert told("tree", "weather", "era5")[0]["path"] == "/era5"
    # What is said on the command line wins.
    assert told("ingest", "--recipe", "recipe.yaml", "--group", "other")["files_added"] == 2
    both = here("ingest", "a.nc", "weather", "--recipe", "recipe.yaml")
    assert (both.returncode, "give no others" in both.stderr) == (2, True)
    Path("recipe.yaml").write_text("sources: a.nc\nrepositry: weather\n")
    typo = here("ingest", "--recipe", "recipe.yaml")
    assert "did you mean 'repository'" in typo.stderr


def test_ingest_chooses(files: list[Path]) -> None:
    words = ["--variable", "plain", "--chunk", "time=2", "--exclude", "b*", "--create"]
    told("ingest", "files/*.nc", "weather", *words)
    rows = {row["path"]: row for row in told("tree", "weather")}
    assert rows["/plain"]["chunk_shape"] == [2, 4]
    assert "/packed" not in rows
    assert rows["/plain"]["shape"][0] == 3


def test_references_need_a_container(files: list[Path]) -> None:
    told("init", "weather")
    words = ["files/*.nc", "weather", "--mode", "virtual", "--concat-dim", "time"]
    assert "container" in here("ingest", *words).stderr
    assert told("ingest", *words, "--add-containers")["refs_written"] > 0
    prefix = files[0].parent.as_uri() + "/"
    access = {prefix: icefloe.credentials.LocalFileSystemAccess}
    check(contents("weather", **access), expected(files))


@pytest.mark.parametrize("flag", [[], ["--by-reference"]])
def test_import_makes_a_repository(files: list[Path], flag: list[str]) -> None:
    to_zarr(2)(dataset(0), Path("source.zarr"))
    told("import", *flag, "source.zarr", "new")
    access = {Path.cwd().as_uri() + "/": icefloe.credentials.LocalFileSystemAccess}
    wanted = expected([Path("source.zarr")], engine="zarr")
    check(contents("new", **access), wanted)
    kinds = {row["type"] for row in told("chunks", "new", "packed")}
    assert kinds == ({"virtual"} if flag else {"inline"})
    again = here("import", "source.zarr", "new")
    assert (again.returncode, "ingest --append" in again.stderr) == (4, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["ingest", "files/a.nc"], 2, "the repository as the last argument"),
        (["ingest", "files/none.nc", "new", "--create"], 3, "no such file"),
        (["ingest", "weather", "files/a.nc"], 2, "sources come first, the repository last"),
        (["ingest", "files/a.nc", "weather", "--master", "local"], 2, "--engine spark"),
        (["ingest", "files/a.nc", "weather", "--num-tasks", "2"], 2, "--engine spark"),
        (["ingest", "files/a.nc", "weather", "--chunk", "time"], 2, "--chunk takes KEY=VALUE"),
        (["ingest", "files/a.nc", "weather", "--engine", "dask"], 2, "'local', 'spark'"),
        (["import", "source.zarr"], 2, "at least one SOURCE"),
        (["log", "files/a.nc"], 3, "icefloe ingest files/a.nc REPOSITORY"),
        (["log", "weathr"], 3, "Did you mean weather?"),
        (["chunks", "packed", "weather"], 3, "REPOSITORY is the first"),
        (["weather", "log"], 2, "The command comes first: icefloe log weather"),
    ],
)
def test_what_newcomers_get_wrong(
    files: list[Path], words: list[str], code: int, said: str
) -> None:
    told("init", "weather")
    done = here(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert not Path("new").exists()


def test_export_to_zarr_and_parquet(files: list[Path], tmp_path: Path) -> None:
    pq: Any = pytest.importorskip("pyarrow.parquet")
    told("import", *files, "weather", "--concat-dim", "time")
    done = here("export", "weather@main", "plain")
    assert done.returncode == 0, done.stderr
    assert "Exported" in done.stdout
    # Books of the ingest stay behind: a plain store has data only.
    assert not list(Path("plain").rglob("sources"))
    packed: Any = zarr.open_array("plain/packed", mode="r")
    assert packed.shape == (6, 4, 6)
    told(
        "export",
        "weather",
        "rows",
        "--format",
        "parquet",
        "--variable",
        "plain",
        "--where",
        "y < 51",
    )
    assert pq.read_table("rows").column_names == ["time", "y", "plain"]
    assert here("export", "weather", "plain2", "--group", "a").returncode == 2
    assert here("export", "weather", "files").returncode == 2


def test_virtual_chunks_are_copied_when_allowed(files: list[Path]) -> None:
    told("import", *files, "weather", "--concat-dim", "time", "--by-reference")
    prefix = files[0].parent.as_uri()
    refused = here("export", "weather", "plain")
    assert refused.returncode != 0
    assert "--allow-virtual" in refused.stderr
    told("export", "weather", "plain", "--allow-virtual", prefix)
    assert "--allow-virtual" in here("materialize", "weather").stderr
    made = told("materialize", "weather", "packed", "--allow-virtual", prefix)
    assert made["chunks"] > 0
    assert told("materialize", "weather", "packed", "--allow-virtual", prefix)["chunks"] == 0
    assert here("materialize", "weather", "nothing", "--allow-virtual", prefix).returncode == 2


def test_clone_is_brought_up_to_date(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert told("clone", place, copy)["objects"] > 0
    assert told("clone", place, copy)["objects"] == 0
    with opened(place).transaction("main", message="more") as store:
        zarr.open_array(store, path="surface/t2m")[3] = 1
    assert here("clone", place, copy).stdout.startswith(f"Cloned {place} to {copy}")
    assert told("log", copy) == told("log", place)
    assert here("clone", f"{place}@v1", copy).returncode == 2
    told("tag", "create", copy, "mine")
    assert here("clone", place, copy).returncode == 4


def test_migrate(place: Path, tmp_path: Path) -> None:
    down = told("migrate", place, tmp_path / "one", "--to", "1")
    assert (down["spec_version"], len(down["snapshots"])) == (1, 3)
    assert "would become" in here("migrate", place, tmp_path / "b", "--dry-run").stdout
    assert not (tmp_path / "b").exists()
    asked = here("migrate", tmp_path / "one")
    assert (asked.returncode, "--yes" in asked.stderr) == (2, True)
    assert told("migrate", tmp_path / "one", "--dry-run")["dry_run"] is True
    up = here("migrate", tmp_path / "one", "--yes")
    assert up.stdout.endswith("was upgraded to spec version 2.\n")
    assert told("info", tmp_path / "one")["spec_version"] == 2
    assert here("migrate", f"{place}@v1", tmp_path / "c").returncode == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ingest_on_spark(files: list[Path]) -> None:
    words = ["--concat-dim", "time", "--engine", "spark", "--master", "local[1]"]
    first = call("ingest", "files/a.nc", "weather", "--create", *words, "--num-tasks", "2")
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""  # nothing of Java and Spark
    assert "1 file added, 0 there already" in first.stdout
    again = call("ingest", "files/*.nc", "weather", "--append", *words, "--json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert (found["files_added"], found["files_skipped"]) == (1, 1)
    check(contents("weather"), expected(files))
    missing = call("ingest", "files/none.nc", "weather", "--append", *words)
    assert missing.returncode == 2
    assert "files/none.nc: there is no such file" in missing.stderr
    assert "Traceback" not in missing.stderr
