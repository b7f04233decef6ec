"""Damaged files of a dataset with a state file: each is refused by name, or can be used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

import numpy as np
import pytest

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.legacy.state_file.manifest import decode_manifest, encode_manifest
from icefloe.legacy.state_file.state import RefType, decode_state, encode_state, line
from icefloe.legacy.state_file.structure import Inventory, nodes_of, read_structure
from icefloe.legacy.state_file.tables import Profile, decode_attributes, encode_attributes
from tests.fuzz.guard import limited_memory, limited_time
from tests.fuzz.mutate import Seed, mutant
from tests.legacy.state_file.test_manifest import ARRAY, BOX, refs
from tests.legacy.state_file.test_state import GOLDEN
from tests.legacy.state_file.test_structure import NODES, encoded

NAME = "damaged/file"
CASES = 400
MANY_CASES = 20_000
_TOKENS = (
    b"null",
    b"-1",
    b"1e400",
    b'"',
    b"{}",
    b"[]",
    b'"id"',
    b'"refs"',
    b"18446744073709551616",
)


@cache
def seeds(kind: str) -> list[Seed]:
    attributes = [b'{"units":"K"}', b'{"a":[1,2,{"b":null}]}']
    found = {
        "state": [GOLDEN],
        "structure": [encoded(NODES, profile).data for profile in Profile],
        "manifest": [
            *(encode_manifest(ARRAY, refs(), profile, "/a") for profile in Profile),
            encode_manifest(ARRAY, _many(), Profile.strict, "/a"),
        ],
        "attributes": [encode_attributes(attributes)],
    }[kind]
    return [Seed(kind, data, is_metadata_file=False) for data in found]


def _many() -> ChunkRefs:
    index = np.stack(np.meshgrid(np.arange(4), np.arange(40), indexing="ij"), axis=-1)
    ids = np.random.default_rng(1).integers(0, 256, (160, 12), np.uint8)
    return ChunkRefs.native(index.reshape(-1, 2), ids, np.zeros(160, np.uint64), np.arange(160))


def use_state(data: bytes) -> None:
    state = decode_state(data, NAME)
    try:
        again = decode_state(encode_state(state))
    except InvalidInputError:  # a number that JSON has no room for, such as 1e400
        return
    assert again.refs == state.refs
    entries = {entry.id: entry for entry in state.snapshots}
    for tip in entries:
        line(entries, tip)
    for kind in RefType:
        state.named(kind)


def use_structure(data: bytes) -> None:
    structure = read_structure(data, NAME)
    stored = [b'{"units":"K"}'] * 4
    nodes, _ = nodes_of(structure, dict.fromkeys(structure.attrs_files, stored))
    assert len(list(nodes)) == len(structure.rows)


def use_manifest(data: bytes) -> None:
    (found,) = decode_manifest(data, NAME, [Inventory("x", 0, ARRAY, BOX)])
    for row in range(len(found)):
        found.row(row)
    assert found.to_arrow().num_rows == len(found)


def use_attributes(data: bytes) -> None:
    for value in decode_attributes(data, NAME):
        assert isinstance(value, bytes)


USES: dict[str, Callable[[bytes], None]] = {
    "state": use_state,
    "structure": use_structure,
    "manifest": use_manifest,
    "attributes": use_attributes,
}


def run(kind: str, case: int) -> bool:
    """Damage one file and use it; whether it could be decoded."""
    random = Random(f"{kind} {case}")
    seed = random.choice(seeds(kind))
    data = mutant(seed, random, _TOKENS if kind == "state" else ())
    try:
        USES[kind](data)
    except FormatError as error:
        if NAME not in str(error):
            raise AssertionError(f"run({kind!r}, {case}): the file is not named") from error
        return False
    return True


@pytest.mark.parametrize("kind", USES)
def test_healthy_files_are_used(kind: str) -> None:
    for seed in seeds(kind):
        USES[kind](seed.data)


def damage(kind: str, cases: range) -> None:
    for seed in seeds(kind):  # what is loaded on first use is loaded before the limits
        USES[kind](seed.data)
    with limited_time(len(cases)) as start, limited_memory():
        for case in cases:
            start()
            try:
                run(kind, case)
            except Exception as error:
                raise AssertionError(f"run({kind!r}, {case})") from error


@pytest.mark.parametrize("kind", USES)
@pytest.mark.timeout(0)
def test_damaged_files_are_refused_or_usable(kind: str) -> None:
    damage(kind, range(CASES))


@pytest.mark.long
@pytest.mark.parametrize("kind", USES)
@pytest.mark.timeout(0)
def test_many_damaged_files_are_refused_or_usable(kind: str) -> None:
    damage(kind, range(CASES, MANY_CASES))
