"""Seeded histories of a repository in a directory, made by official and by icefloe in turns.

Each has branches, tags, deleted refs, resets, amended and anonymous snapshots, moves, split
manifests and packed chunks, as far as its version has them.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe

CHUNK = 40  # numbers of 8 bytes: above the size up to which chunks go into the manifest here
CHUNKS = 6
_INLINE = 64


@dataclass
class Made:
    """A repository, and instants between the steps of its making."""

    folder: Path
    instants: list[datetime] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


def open_official(official: Any, folder: Path) -> Any:
    return official.Repository.open(official.local_filesystem_storage(str(folder)))


def open_ours(folder: Path, **config: Any) -> icefloe.Repository:
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    return icefloe.Repository.open(storage, icefloe.RepositoryConfig(**config) if config else None)


def arrays_of(session: Any) -> dict[str, Any]:
    """Every array; none in the very first snapshot, which has no group either."""
    try:
        return dict(zarr.open_group(session.store, mode="r").members())
    except zarr.errors.GroupNotFoundError:
        return {}


def make_history(official: Any, folder: Path, spec: int, seed: int, num_steps: int = 14) -> Made:
    """A repository with `num_steps` steps of history."""
    drawn = random.Random(f"{spec} {seed}")
    splitting = official.ManifestSplittingConfig.from_dict(
        {official.ManifestSplitCondition.AnyArray(): {official.ManifestSplitDimCondition.Any(): 2}}
    )
    config = official.RepositoryConfig(inline_chunk_threshold_bytes=_INLINE)
    if drawn.random() < 0.5:
        config.manifest = official.ManifestConfig(splitting=splitting)
    repo = official.Repository.create(
        official.local_filesystem_storage(str(folder)), config, spec_version=spec
    )
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    for name in ("a", "b"):
        array = top.create_array(
            name, shape=(CHUNKS * CHUNK,), chunks=(CHUNK,), dtype="<i8", compressors=None
        )
        array[:] = np.arange(1, 1 + CHUNKS * CHUNK)
    top.create_array("inline", shape=(4,), chunks=(1,), dtype="<i8")[:] = 1
    session.commit("first")
    maker = _Maker(official, Made(folder), spec, drawn)
    for number in range(num_steps):
        maker.step(number)
    return maker.made


class _Maker:
    def __init__(self, official: Any, made: Made, spec: int, drawn: random.Random) -> None:
        self.official = official
        self.made = made
        self.drawn = drawn
        self.number = 0
        kinds = ["commit"] * 4 + ["pack", "flush", "branch", "tag", "reset", "leave", "fork"]
        kinds += ["delete branch", "delete tag", "rewrite", "drop", "grow"]
        self.kinds = kinds if spec == 1 else [*kinds, "amend", "amend", "move"]

    def step(self, number: int) -> None:
        self.number = number
        kind = self.drawn.choice(self.kinds)
        self.made.instants.append(datetime.now(UTC))
        time.sleep(0.002)
        self.made.steps.append(kind)
        getattr(self, f"_{kind.replace(' ', '_')}")()

    def _repo(self) -> Any:
        if self.drawn.random() < 0.5:
            return open_official(self.official, self.made.folder)
        return open_ours(self.made.folder)

    def _some_branch(self, repo: Any) -> str:
        return str(self.drawn.choice(sorted(repo.list_branches())))

    def _some_snapshot(self, repo: Any) -> str:
        line = list(repo.ancestry(branch=self._some_branch(repo)))
        return str(self.drawn.choice(line).id)

    def _session(self, repo: Any) -> Any:
        """With one chunk of some array replaced, and another one perhaps deleted."""
        session = repo.writable_session(self._some_branch(repo))
        group = zarr.open_group(session.store, mode="a")
        names = sorted(name for name, _ in group.arrays())
        array: Any
        if not names:  # of the very first snapshot
            array = group.create_array("a", shape=(CHUNK,), chunks=(CHUNK,), dtype="<i8")
        else:
            array = group[self.drawn.choice(names)]
        at = self.drawn.randrange(array.shape[0])
        array[at] = 1000 + self.number
        if array.shape[0] > CHUNK and self.drawn.random() < 0.2:
            first = at // CHUNK * CHUNK
            array[first : first + CHUNK] = 0
        return session

    def _commit(self) -> None:
        self._session(self._repo()).commit(f"commit {self.number}")

    def _amend(self) -> None:
        repo = open_official(self.official, self.made.folder)
        tips = {repo.lookup_branch(name) for name in repo.list_branches()}
        if all(repo.lookup_snapshot(tip).parent_id is not None for tip in tips):
            logs = [repo.inspect_transaction_log(tip)["moved_nodes"] for tip in tips]
            if not any(logs):
                self._session(self._repo()).amend(f"amended {self.number}")

    def _flush(self) -> None:
        self._session(self._repo()).flush(f"anonymous {self.number}")

    def _leave(self) -> None:
        """A session that writes chunks and is never heard of again."""
        self._session(self._repo())

    def _fork(self) -> None:
        """Forks store a snapshot that nothing lists."""
        self._session(self._repo()).fork()

    def _pack(self) -> None:
        config = icefloe.PackingConfig(target_size_bytes=8 * CHUNK * 3)
        repo = open_ours(self.made.folder, packing=config)
        session = repo.writable_session(self._some_branch(repo))
        group = zarr.open_group(session.store, mode="a")
        name = f"packed{self.number}"
        group.create_array(
            name, shape=(CHUNKS * CHUNK,), chunks=(CHUNK,), dtype="<i8", compressors=None
        )[:] = np.arange(1, 1 + CHUNKS * CHUNK)
        session.commit(f"pack {self.number}")

    def _rewrite(self) -> None:
        """All manifests anew, which leaves the old ones to older snapshots."""
        repo = self._repo()
        repo.rewrite_manifests(f"rewrite {self.number}", branch=self._some_branch(repo))

    def _drop(self) -> None:
        """An array goes; half of the time another one takes its name."""
        repo = self._repo()
        session = repo.writable_session(self._some_branch(repo))
        group = zarr.open_group(session.store, mode="a")
        names = sorted(name for name, _ in group.arrays())
        if names:
            name = self.drawn.choice(names)
            del group[name]
            if self.drawn.random() < 0.5:
                group.create_array(name, shape=(CHUNK,), chunks=(CHUNK,), dtype="<i8")[:] = 5
            session.commit(f"drop {self.number}")

    def _grow(self) -> None:
        """More chunks, or fewer: those beyond the end stay stored, and in older snapshots."""
        repo = self._repo()
        session = repo.writable_session(self._some_branch(repo))
        group = zarr.open_group(session.store, mode="a")
        arrays: list[Any] = [array for _, array in sorted(group.arrays(), key=lambda one: one[0])]
        if arrays:
            array = self.drawn.choice(arrays)
            array.resize((self.drawn.choice([CHUNK, 2 * CHUNK, 6 * CHUNK]),))
            array[0] = self.number
            session.commit(f"grow {self.number}")

    def _move(self) -> None:
        repo = self._repo()
        session = repo.rearrange_session(self._some_branch(repo))
        names = list(arrays_of(session))
        if names:
            session.move(f"/{self.drawn.choice(sorted(names))}", f"/moved{self.number}")
            session.commit(f"move {self.number}")

    def _branch(self) -> None:
        repo = self._repo()
        repo.create_branch(f"branch{self.number}", self._some_snapshot(repo))

    def _tag(self) -> None:
        repo = self._repo()
        repo.create_tag(f"tag{self.number}", self._some_snapshot(repo))

    def _reset(self) -> None:
        repo = self._repo()
        repo.reset_branch(self._some_branch(repo), self._some_snapshot(repo))

    def _delete_branch(self) -> None:
        repo = self._repo()
        names = sorted(repo.list_branches() - {"main"})
        if names:
            repo.delete_branch(self.drawn.choice(names))

    def _delete_tag(self) -> None:
        repo = self._repo()
        names = sorted(repo.list_tags())
        if names:
            repo.delete_tag(self.drawn.choice(names))
