"""Official and icefloe take turns at random; dictionaries are the third judge.

Deterministic for a seed: the number of steps is fixed, only snapshot ids and times differ from
run to run. `ICEFLOE_TURNS_SEEDS="7 8"` tries other seeds.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("icechunk", minversion="2")

import zarr

from icefloe.ids import FIRST_SNAPSHOT_ID
from tests.interop.sides import SIDES, Place, arrays_at, assert_same, seen

NUM_STEPS = 60
SEEDS = list(map(int, os.environ.get("ICEFLOE_TURNS_SEEDS", "1 2 3 4").split()))
DTYPES = ["i1", "<i4", ">i2", "u8", "<f8", "c8", "bool"]
NAMES = ["a", "b", "split", "group/c", "group/d", "group/deep/e"]


@dataclass
class Array:
    """An array in the model: its values, what fills it, and its attributes."""

    values: Any
    fill: int
    attributes: dict[str, Any] = field(default_factory=dict)


Arrays = dict[str, Array]


@dataclass(frozen=True)
class Snapshot:
    parent: str | None
    message: str
    metadata: dict[str, Any]
    arrays: Arrays


class Model:
    """A repository as dictionaries."""

    def __init__(self) -> None:
        first = Snapshot(None, "Repository initialized", {"__icechunk": {"is_root": True}}, {})
        self.snapshots = {FIRST_SNAPSHOT_ID.text: first}
        self.branches = {"main": FIRST_SNAPSHOT_ID.text}
        self.tags: dict[str, str] = {}
        self.metadata: dict[str, Any] = {}

    def history(self, snapshot_id: str | None) -> Iterator[tuple[str, Snapshot]]:
        while snapshot_id is not None:
            snapshot = self.snapshots[snapshot_id]
            yield snapshot_id, snapshot
            snapshot_id = snapshot.parent

    def reachable(self) -> list[str]:
        """Every snapshot that a branch or tag leads to, in an order that depends on no id."""
        tips = [self.branches[name] for name in sorted(self.branches)]
        tips += [self.tags[name] for name in sorted(self.tags)]
        return list(dict.fromkeys(key for tip in tips for key, _ in self.history(tip)))


class Game:
    """One repository, both libraries, and the model."""

    def __init__(self, place: Place, spec: int, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.spec = spec
        self.place = place
        place.create(SIDES[self.drawn.choice(sorted(SIDES))], spec)
        self.repos = {name: place.open(library) for name, library in SIDES.items()}
        self.model = Model()
        self.known: set[str] = set()
        self.number = 0
        self.told: list[str] = []

    def step(self) -> None:
        """One random thing by one of the two, then a look by both."""
        self.number += 1
        side = self.drawn.choice(sorted(SIDES))
        actions = [self.commit] * 6 + [
            self.create_branch,
            self.delete_branch,
            self.reset_branch,
            self.create_tag,
            self.delete_tag,
        ]
        if self.spec > 1:
            actions += [self.amend, self.amend, self.set_metadata]
        action = self.drawn.choice(actions)
        self.told.append(f"{self.number}: {action.__name__} by {side}")
        action(self.repos[side])
        self.check()

    # -- what can be done

    def commit(self, repo: Any) -> None:
        branch = self.drawn.choice(sorted(self.model.branches))
        session, arrays = self.edited(repo, branch)
        message, metadata = f"commit {self.number}", {"n": self.number, "list": [1, None, "x"]}
        made = session.commit(message, metadata=metadata, allow_empty=True)
        parent = self.model.branches[branch]
        self.model.snapshots[made] = Snapshot(parent, message, metadata, arrays)
        self.model.branches[branch] = made

    def amend(self, repo: Any) -> None:
        branch = self.drawn.choice(sorted(self.model.branches))
        replaced = self.model.snapshots[self.model.branches[branch]]
        if replaced.parent is None:
            return
        session, arrays = self.edited(repo, branch)
        message = f"amended {self.number}"
        made = session.amend(message, metadata={"amended": self.number}, allow_empty=True)
        metadata = {"amended": self.number}
        self.model.snapshots[made] = Snapshot(replaced.parent, message, metadata, arrays)
        self.model.branches[branch] = made

    def create_branch(self, repo: Any) -> None:
        name = f"branch {self.number}"
        self.model.branches[name] = self.drawn.choice(self.model.reachable())
        repo.create_branch(name, self.model.branches[name])

    def delete_branch(self, repo: Any) -> None:
        others = sorted(self.model.branches.keys() - {"main"})
        if others:
            name = self.drawn.choice(others)
            del self.model.branches[name]
            repo.delete_branch(name)

    def reset_branch(self, repo: Any) -> None:
        name = self.drawn.choice(sorted(self.model.branches))
        tip = self.model.branches[name]
        self.model.branches[name] = self.drawn.choice(self.model.reachable())
        expected = self.drawn.choice([None, tip])
        repo.reset_branch(name, self.model.branches[name], from_snapshot_id=expected)

    def create_tag(self, repo: Any) -> None:
        name = f"tag {self.number}"
        self.model.tags[name] = self.drawn.choice(self.model.reachable())
        repo.create_tag(name, self.model.tags[name])

    def delete_tag(self, repo: Any) -> None:
        if self.model.tags:
            name = self.drawn.choice(sorted(self.model.tags))
            del self.model.tags[name]
            repo.delete_tag(name)

    def set_metadata(self, repo: Any) -> None:
        if self.drawn.random() < 0.5:
            self.model.metadata = {"set": self.number}
            repo.set_metadata(self.model.metadata)
        else:
            self.model.metadata |= {f"key {self.number % 3}": [self.number]}
            repo.update_metadata({f"key {self.number % 3}": [self.number]})

    # -- changes to arrays

    def edited(self, repo: Any, branch: str) -> tuple[Any, Arrays]:
        """A session with changes, and the arrays as they should be."""
        session = repo.writable_session(branch)
        arrays = copy.deepcopy(self.model.snapshots[self.model.branches[branch]].arrays)
        top = zarr.open_group(session.store, mode="a")
        for _ in range(self.drawn.randint(1, 4)):
            edit = self.drawn.choice(
                [self.write, self.write, self.resize, self.describe, self.drop]
            )
            path = self.drawn.choice(NAMES)
            if path in arrays:
                edit(top, path, arrays)
            else:
                self.create(top, path, arrays)
        return session, arrays

    def create(self, top: Any, path: str, arrays: Arrays) -> None:
        shape = tuple(self.drawn.randint(1, 9) for _ in range(self.drawn.randint(0, 3)))
        chunks = tuple(self.drawn.randint(1, length) for length in shape)
        dtype, fill = self.drawn.choice(DTYPES), self.drawn.choice([0, 1])
        attributes = {"made": self.number}
        options: Any = {"chunks": chunks, "fill_value": fill, "attributes": attributes}
        if self.drawn.random() < 0.5:
            options["compressors"] = None
        top.create_array(path, shape=shape, dtype=dtype, **options)
        arrays[path] = Array(np.full(shape, fill, dtype), fill, attributes)

    def write(self, top: Any, path: str, arrays: Arrays) -> None:
        target = arrays[path].values
        index = tuple(
            slice(start := self.drawn.randrange(length), self.drawn.randint(start + 1, length))
            for length in target.shape
        )
        value = self.drawn.choice([0, 1, 5, 100])  # the filling too, which makes chunks go away
        target[index] = value
        top[path][index] = target.dtype.type(value)

    def resize(self, top: Any, path: str, arrays: Arrays) -> None:
        """Cut at a chunk's border only: what lies behind one inside a chunk is not defined."""
        old, array = arrays[path], top[path]
        if not array.shape:
            return
        shape = tuple(chunk * self.drawn.randint(1, 9 // chunk) for chunk in array.chunks)
        covered = tuple(slice(min(pair)) for pair in zip(shape, array.shape, strict=True))
        array.resize(shape)
        values = np.full(shape, old.fill, old.values.dtype)
        values[covered] = old.values[covered]
        arrays[path] = Array(values, old.fill, old.attributes)

    def describe(self, top: Any, path: str, arrays: Arrays) -> None:
        value = self.drawn.choice([self.number, "text ü", [1, None], {"deep": 2.5}])
        key = self.drawn.choice("xyz")
        arrays[path].attributes[key] = value
        top[path].attrs[key] = value

    def drop(self, top: Any, path: str, arrays: Arrays) -> None:
        """Delete an array, or the group it is in with everything else there."""
        gone = path if self.drawn.random() < 0.7 else path.rpartition("/")[0] or path
        for other in [other for other in arrays if other == gone or other.startswith(gone + "/")]:
            del arrays[other]
        del top[gone]

    # -- looking

    def check(self) -> None:
        official = seen(self.repos["official"], self.known)
        ours = seen(self.repos["icefloe"], self.known)
        assert_same(official, ours, "the two see different things")
        assert ours["branches"] == self.model.branches
        assert ours["tags"] == self.model.tags
        for tip, found in ours["histories"].items():
            assert [
                (entry["id"], entry["parent"], entry["message"], entry["metadata"])
                for entry in found
            ] == [(key, it.parent, it.message, it.metadata) for key, it in self.model.history(tip)]
        if self.spec > 1:
            assert ours["metadata"] == self.model.metadata
        for snapshot_id in ours["contents"]:
            self.check_arrays(snapshot_id)
        self.known.update(ours["contents"])

    def check_arrays(self, snapshot_id: str) -> None:
        expected = self.model.snapshots[snapshot_id].arrays
        if not expected:
            return  # there may not even be a group to open
        for name, repo in self.repos.items():
            found = arrays_at(repo, snapshot_id)
            assert found.keys() == expected.keys(), f"seen by {name}"
            for path, array in expected.items():
                np.testing.assert_array_equal(found[path][0], array.values, f"{path} by {name}")
                assert found[path][1] == array.attributes, f"{path}, seen by {name}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spec", [1, 2])
def test_random_turns(tmp_path: Path, spec: int, seed: int) -> None:
    game = Game(Place(folder=tmp_path / "repo"), spec, seed)
    try:
        for _ in range(NUM_STEPS):
            game.step()
        # From the beginning again, by objects that have nothing cached.
        game.repos = {name: game.place.open(library) for name, library in SIDES.items()}
        game.known.clear()
        game.check()
    except Exception as error:
        last = "\n".join(game.told[-8:])
        raise AssertionError(f"seed {seed}, version {spec}, the last steps were\n{last}") from error
