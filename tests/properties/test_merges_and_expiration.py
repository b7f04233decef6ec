"""Random histories of commits, merges, squashes, amendments and resets, cut by random expirations.

Each writer has a cell that it writes on `main`, and each branch one that only it writes. Values
only ever go up. So a merge that lowers a value on any branch, or brings back a group that `main`
has deleted, reverts something.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.changes.conflicts import BasicConflictSolver, ConflictDetector, VersionSelection
from icefloe.errors import (
    IcechunkError,
    RebaseFailedError,
    SessionStateError,
    SnapshotNotFoundError,
)

NUM_WRITERS, STEPS = 3, 40
NUM_CELLS = NUM_WRITERS + STEPS
FIRST = int(os.environ.get("ICEFLOE_FIRST_SEED", "0"))
FAR = timedelta(days=1)


class Play:
    """A repository, the writers, and what was seen so far."""

    def __init__(
        self, storage: icefloe.Storage, spec: int, seed: int, official: Any = None
    ) -> None:
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=512 * (seed % 2))
        self.repo = icefloe.Repository.create(storage, config, spec_version=spec)
        self.drawn = random.Random(seed)
        self.spec, self.official = spec, official
        self.last = 0
        self.cells = {f"main {writer}": writer for writer in range(NUM_WRITERS)}
        self.gone: set[str] = set()
        self.steps: list[str] = []
        self.num_merges = self.num_refused = 0
        session = self.repo.writable_session("main")
        if self.drawn.random() < 0.5:  # otherwise the first commit of `main` makes the array
            session.commit("empty", allow_empty=True)
            session = self.repo.writable_session("main")
        top = zarr.create_group(session.store)
        top.create_array("cells", shape=(NUM_CELLS,), chunks=(1,), dtype="<i8", fill_value=0)
        session.commit("start")

    def look(self, branch: str) -> tuple[list[int], set[str]]:
        top: Any = zarr.open_group(self.repo.readonly_session(branch).store, mode="r")
        return np.asarray(top["cells"][...]).tolist(), set(top.group_keys())

    def solver(self) -> Any:
        ours = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
        return self.drawn.choice([ConflictDetector(), ours])

    def change(self, session: Any, writer: int, branch: str) -> None:
        self.last += 1
        top: Any = zarr.open_group(session.store, mode="r+")
        mine = sorted(name for name in top.group_keys() if name.startswith(f"g{writer}-"))
        if self.drawn.random() < 0.6:
            cell = self.cells[f"main {writer}" if branch == "main" else branch]
            top["cells"][cell] = self.last
        elif mine and self.drawn.random() < 0.6:
            del top[self.drawn.choice(mine)]
        else:
            top.create_group(f"g{writer}-{self.last}")

    # -- what may happen to a branch

    def commit(self, branch: str, writer: int) -> None:
        session = self.repo.writable_session(branch)
        self.change(session, writer, branch)
        session.commit("commit")
        if self.spec > 1 and self.drawn.random() < 0.2:
            session = self.repo.writable_session(branch)
            self.change(session, writer, branch)
            session.amend("amend")

    def merge(self, source: str, branch: str) -> None:
        self.num_merges += 1
        try:
            self.repo.merge(source, branch, rebase_with=self.solver(), rebase_tries=1)
        except (SnapshotNotFoundError, RebaseFailedError) as error:
            self.steps[-1] += f" refused: {type(error).__name__}"
            self.num_refused += 1
        except SessionStateError as error:
            kinds = icefloe.ErrorKind
            if error.kind not in (kinds.NO_CHANGES_TO_COMMIT, kinds.OBJECTS_COLLECTED):
                raise

    def squash(self, branch: str) -> None:
        line = [info.id for info in self.repo.ancestry(branch=branch)]
        if len(line) < 2:
            return
        first, last = sorted(self.drawn.sample(range(len(line)), 2))
        try:
            self.repo.squash(branch, line[last], until=line[first])
        except SnapshotNotFoundError:
            # Official expired them, after they were read. The next try reads them again.
            line = [info.id for info in self.repo.ancestry(branch=branch)]
            self.repo.squash(branch, line[-1])

    def tag(self, branch: str) -> None:
        tip = self.repo.lookup_branch(branch)
        if tip not in self.repo.list_tags():
            self.repo.create_tag(tip, tip)

    # -- upkeep

    def expire(self) -> None:
        repo, drawn = self.repo, self.drawn
        infos = {
            info.id: info for name in repo.list_branches() for info in repo.ancestry(branch=name)
        }
        cut = drawn.choice(sorted(info.written_at for info in infos.values()))
        tips = {repo.lookup_branch(name) for name in repo.list_branches()}
        tips |= {repo.lookup_tag(name) for name in repo.list_tags()}
        middle = sorted(k for k, info in infos.items() if info.parent_id and k not in tips)
        rules: list[dict[str, Any]] = [
            {"older_than": cut},
            {"keep_last": drawn.randint(1, 3)},
            {"older_than": cut, "keep_tagged": True},
            {"older_than": cut, "keep_fork_points": True},
        ]
        if middle:
            rules.append({"snapshot_ids": drawn.sample(middle, drawn.randint(1, len(middle)))})
        chosen = drawn.choice(rules)
        self.steps[-1] += f" {sorted(chosen)}"
        if self.official is not None and drawn.random() < 0.5:
            self.steps[-1] += " by official"
            self.official().expire_snapshots(older_than=cut)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            repo.expire_snapshots(**chosen)

    def collect(self) -> None:
        if self.official is not None and self.drawn.random() < 0.5:
            self.official().garbage_collect(datetime.now(UTC) + FAR)
        else:
            self.repo.garbage_collect(datetime.now(UTC) + FAR)
        self.repo = icefloe.Repository.open(self.repo.storage)  # without caches

    # -- the play

    def step(self) -> None:
        drawn, repo = self.drawn, self.repo
        writer = drawn.randrange(NUM_WRITERS)
        branch, other = f"of-{writer}", f"of-{drawn.randrange(NUM_WRITERS)}"
        if branch not in repo.list_branches():
            self.steps.append(f"create {branch}")
            self.cells[branch] = NUM_WRITERS + len(self.steps) - 1
            repo.create_branch(branch, repo.lookup_branch("main"))
            return
        other = other if other in repo.list_branches() else "main"
        deeds: list[tuple[str, Callable[[], None]]] = [
            (f"commit main by {writer}", lambda: self.commit("main", writer)),
            (f"commit {branch}", lambda: self.commit(branch, writer)),
            (f"merge {branch} into main", lambda: self.merge(branch, "main")),
            (f"merge main into {branch}", lambda: self.merge("main", branch)),
            (f"merge {other} into {branch}", lambda: self.merge(other, branch)),
            (f"squash {branch}", lambda: self.squash(branch)),
            (f"delete {branch}", lambda: repo.delete_branch(branch)),
            (f"tag {branch}", lambda: self.tag(branch)),
            ("expire", self.expire),
            ("collect", self.collect),
        ]
        name, work = drawn.choices(deeds, [15, 25, 15, 10, 5, 6, 4, 3, 10, 7])[0]
        self.steps.append(name)
        work()

    def run(self) -> None:
        before = {"main": self.look("main")}
        for _ in range(STEPS):
            self.step()
            self.judge(before)
        report = self.repo.verify(orphans=False)
        assert report.is_healthy, str(report)

    def judge(self, before: dict[str, tuple[list[int], set[str]]]) -> None:
        after = {name: self.look(name) for name in self.repo.list_branches()}
        for name in before.keys() & after.keys():
            old, new = before[name][0], after[name][0]
            assert all(a <= b for a, b in zip(old, new, strict=True)), f"{name}: {old} to {new}"
        back = self.gone & after["main"][1]
        assert not back, f"groups are back on main: {back}"
        self.gone |= before["main"][1] - after["main"][1]
        before.clear()
        before.update(after)


def play(storage: icefloe.Storage, spec: int, seed: int, official: Any = None) -> Play:
    found = Play(storage, spec, seed, official)
    try:
        found.run()
    except (AssertionError, IcechunkError) as error:
        raise AssertionError(f"seed {seed}, spec {spec}: {found.steps}") from error
    return found


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 6))
@pytest.mark.parametrize("spec", [1, 2])
def test_no_merge_reverts_anything_after_expirations(spec: int, seed: int) -> None:
    found = play(icefloe.in_memory_storage(), spec, seed)
    assert found.num_refused < found.num_merges


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("spec", [1, 2])
def test_no_merge_reverts_anything_in_many_histories(spec: int) -> None:
    played = [play(icefloe.in_memory_storage(), spec, seed) for seed in range(FIRST, FIRST + 200)]
    assert sum(one.num_refused for one in played) < sum(one.num_merges for one in played) / 2


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 3))
@pytest.mark.parametrize("spec", [1, 2])
def test_no_merge_reverts_anything_after_expirations_by_official(
    tmp_path: Path, spec: int, seed: int
) -> None:
    official = pytest.importorskip(
        "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
    )
    place = str(tmp_path / "repository")

    def reopened() -> Any:
        return official.Repository.open(official.local_filesystem_storage(place))

    storage = icefloe.local_filesystem_storage(place, durable=False)
    found = play(storage, spec, seed, reopened)
    for name in found.repo.list_branches():
        top: Any = zarr.open_group(reopened().readonly_session(name).store, mode="r")
        seen = np.asarray(top["cells"][...]).tolist(), set(top.group_keys())
        assert seen == found.look(name), "official reads the same"
