"""`verify` finds every kind of damage, names it, and finds nothing where there is none."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import icefloe
from icefloe.maintenance.findings import FindingKind, Severity, VerifyReport
from icefloe.storage.run import run_blocking
from tests.golden import repository_path
from tests.golden.decoded import NAMES
from tests.maintenance.damages import DAMAGES, chunk_of, flip, manifest_of, orphans, tip
from tests.maintenance.worlds import World, make_world
from tests.places import KINDS, fresh_storage


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    icechunk = pytest.importorskip("icechunk", minversion="2")
    place = tmp_path_factory.mktemp("world")
    make_world(place / "2", icechunk, 2)
    make_world(place / "1", icechunk, 1)
    return place


@pytest.fixture
def world(made: Path, tmp_path: Path) -> World:
    return copied(made / "2", tmp_path)


def copied(made: Path, place: Path) -> World:
    """A copy of the repository; sources stay where references lead, so they are put back."""
    shutil.copytree(made / "repository", place / "repository")
    kept = made / "kept"
    if not kept.exists():
        shutil.copytree(made / "sources", kept)
    shutil.rmtree(made / "sources", ignore_errors=True)
    shutil.copytree(kept, made / "sources")
    return World(place / "repository", made / "sources")


def verify(world: World, **options: Any) -> VerifyReport:
    return icefloe.Repository.verify_storage(
        world.storage,
        authorize_virtual_chunk_access=world.authorized(icefloe),
        **{"virtual_sources": True, **options},
    )


def above_info(report: VerifyReport) -> set[str]:
    return {str(kind) for kind in report.counts if kind.severity != Severity.INFO}


@pytest.mark.parametrize("name", NAMES)
def test_repositories_of_official_writers_are_healthy(name: str) -> None:
    storage = icefloe.local_filesystem_storage(str(repository_path(name)))
    report = icefloe.Repository.open(storage).verify()
    assert report.is_healthy, str(report)
    assert report.checked["snapshots"] > 0
    report = icefloe.Repository.open(storage).verify(read_chunks=True)
    # One of them has an inline chunk of six bytes where its array has 600.
    expected = {"undecodable-chunk"} if name == "2.3.0-locations" else set()
    assert above_info(report) == expected, str(report)


@pytest.mark.parametrize("spec", [1, 2])
def test_a_repository_with_all_kinds_of_chunks_is_healthy(
    made: Path, tmp_path: Path, spec: int
) -> None:
    world = copied(made / str(spec), tmp_path)
    report = verify(world, read_chunks=True)
    assert not report.counts, str(report)
    checked = report.checked
    assert checked["sources"] == 2
    assert checked["chunks read"] == 6 + 4 + 6
    assert checked["bytes read"] == 6 * 32 + 4 * 320 + 6 * 320


@pytest.mark.parametrize("spec", [1, 2])
def test_packed_chunks_are_healthy(tmp_path: Path, spec: int) -> None:
    packing = icefloe.PackingConfig(target_size_bytes=1 << 12)
    world = make_world(tmp_path, icefloe, spec, packing=packing)
    repo = world.open()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a/native", mode="r+")[1] = 7
    session.commit("part of a pack is dead from here on")
    report = verify(world, read_chunks=True)
    assert report.is_healthy, str(report)


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_nothing_else(world: World, name: str) -> None:
    change, expected = DAMAGES[name]
    change(world)
    report = verify(world)
    assert above_info(report) == expected, str(report)
    for row in report.findings:
        assert row.object
        assert row.detail
        assert row.repair
        assert (row.severity, row.repair) == (row.kind.severity, row.kind.repair)
    assert not report.is_healthy
    assert "NOT healthy" in str(report)


def test_flips_anywhere_end_in_a_report(made: Path, tmp_path: Path) -> None:
    """Files have no checksum, so not every flip shows; none of them ends a verification."""
    world = copied(made / "2", tmp_path)
    random = np.random.default_rng(5)
    kinds = {"snapshots": tip(world), "manifests": manifest_of(world, "/a/virtual")}
    kinds |= {
        "logs": world.folder / "transactions" / tip(world).name,
        "repo": world.folder / "repo",
    }
    found = 0
    for path in kinds.values():
        data = path.read_bytes()
        for at in random.integers(0, len(data), 12).tolist():
            flip(path, at)
            found += not verify(world).is_healthy
            path.write_bytes(data)
    assert found > 30
    assert verify(world).is_healthy


def test_bits_inside_of_chunks_are_found_by_reading_them(made: Path, tmp_path: Path) -> None:
    world = copied(made / "2", tmp_path)
    before = set(world.files("chunks"))
    session = world.open().writable_session("main")
    array = zarr.create_array(
        session.store,
        name="packed",
        shape=(4, 100),
        chunks=(1, 100),
        dtype="<i8",
        compressors=ZstdCodec(checksum=True),
    )
    array[:] = np.random.default_rng(0).integers(0, 99, (4, 100))
    session.commit("compressed")
    assert verify(world, read_chunks=True).is_healthy
    damaged = min(set(world.files("chunks")) - before)
    flip(damaged, -3)
    assert verify(world).is_healthy
    report = verify(world, read_chunks=True)
    (found,) = report.of_kind("undecodable-chunk")
    assert (found.object, found.path) == (f"chunks/{damaged.name}", "/packed")


def test_orphans_are_told_of_and_healthy(world: World) -> None:
    added = orphans(world)
    (world.folder / "chunks" / "notes.txt").write_text("not ours")
    report = verify(world)
    assert report.is_healthy
    assert sorted(row.object for row in report.of_kind("orphan")) == added
    assert [row.object for row in report.of_kind("object-of-unknown-name")] == ["chunks/notes.txt"]
    assert not verify(world, orphans=False).of_kind("orphan")


def test_bytes_behind_the_last_reference_are_told_of(world: World) -> None:
    path = chunk_of(world)
    path.write_bytes(path.read_bytes() + b"more")
    report = verify(world)
    (found,) = report.of_kind("bytes-behind-last-reference")
    assert (found.object, found.path) == (f"chunks/{path.name}", "/a/native")
    assert report.is_healthy


def test_sources_that_may_not_be_read_are_not_called_missing(world: World) -> None:
    report = icefloe.Repository.verify_storage(world.storage, virtual_sources=True)
    assert report.is_healthy
    assert report.counts[FindingKind.UNCHECKED_SOURCES] == 2


def test_all_findings_are_counted_and_some_are_kept(world: World) -> None:
    for path in world.files("chunks"):
        path.unlink()
    total = len(verify(world).of_kind("missing-chunk-object"))
    report = verify(world, max_findings=2)
    assert total == report.counts[FindingKind.MISSING_CHUNK] == 4
    assert len(report.of_kind("missing-chunk-object")) == 2
    table = report.to_arrow()
    assert table.column_names == ["severity", "kind", "object", "path", "detail", "repair"]
    assert table.num_rows == len(report.findings)
    assert {row["path"] for row in table.to_pylist()} == {"/a/native"}


def test_version_1_refs(made: Path, tmp_path: Path) -> None:
    world = copied(made / "1", tmp_path)
    ref = world.folder / "refs" / "branch.side" / "ref.json"
    ref.write_text("{}")
    assert above_info(verify(world)) == {"damaged-ref"}
    ref.write_text('{"snapshot":"000G40R40M30E209185G"}')
    report = verify(world)
    assert above_info(report) == {"dangling-ref"}
    assert "branch 'side'" in report.of_kind("dangling-ref")[0].detail


def test_the_same_inside_an_event_loop(world: World) -> None:
    chunk_of(world).unlink()
    expected = world.open().verify(virtual_sources=True)
    repo = world.open()
    assert asyncio.run(repo.verify_async(virtual_sources=True)) == expected


def test_a_place_without_a_repository_is_refused(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "nothing"))
    with pytest.raises(icefloe.RepositoryNotFoundError):
        icefloe.Repository.verify_storage(storage)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [1, 2])
def test_objects_that_zarr_wrote_past_the_repository_are_named(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, spec: int
) -> None:
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    storage = fresh_storage(kind, tmp_path, server)
    repo = icefloe.Repository.create(storage, spec_version=spec)
    with repo.transaction("main", message="a") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")[:] = 1
    repo.garbage_collect(datetime.now(UTC))  # leaves the mark of a collection in version 1
    assert not repo.verify().of_kind(FindingKind.FOREIGN_OBJECT)
    strays = stray_objects(tmp_path)
    run_blocking(storage.driver(blocking=True).put_many(list(strays.items())))
    report = repo.verify()
    found = report.of_kind(FindingKind.FOREIGN_OBJECT)
    assert sorted(one.object for one in found) == sorted(strays)
    assert "session.store" in str(report)
    assert report.is_healthy, "everything in the repository can be read"
    repo.garbage_collect(datetime.now(UTC))
    assert len(repo.verify().of_kind(FindingKind.FOREIGN_OBJECT)) == len(strays)


def stray_objects(folder: Path) -> dict[str, bytes]:
    """What Zarr writes for arrays at the root, below it, and in a folder of the repository."""
    place = folder / "zarr"
    for number, path in enumerate(("", "group/b", "chunks/in")):
        target = place / str(number)
        zarr.create_array(str(target), name=path or None, shape=(2,), chunks=(1,), dtype="i4")[
            :
        ] = 1
    return {
        str(path.relative_to(target)): path.read_bytes()
        for target in place.iterdir()
        for path in target.rglob("*")
        if path.is_file()
    }
