"""Writers that commit and merge during expiration and collection, all of them killed at random.

No acknowledged value is reverted: not at the tip of `main`, and not between two snapshots of its
history. `ICEFLOE_STORM_SEED` repeats the draws of a run (not the order in which processes get the
processor), `ICEFLOE_STORMS` says how many long ones there are.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from tests.places import fresh_storage
from tests.safety.crews import ROOT
from tests.safety.storm import CHUNK, Storm, start

NUM_WRITERS = 4
MAX_SECONDS = 60.0
"""No short storm is longer than this."""
SPECS = pytest.mark.parametrize("spec", [1, 2])
PLACES = pytest.mark.parametrize("kind", ["local", "s3"])


def rage(storm: Storm) -> int:
    """Run it; returns how many processes were killed."""
    with (storm.folder / "errors").open("wb") as errors:
        done = subprocess.run(
            storm.command(), cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, check=False
        )
    assert done.returncode == 0, said(storm)
    return int(done.stdout)


def said(storm: Storm) -> str:
    return (storm.folder / "errors").read_text()[-4000:]


def read_main(repo: Any, snapshot_id: str) -> tuple[np.ndarray[Any, Any], set[str]]:
    """The cells, each read as a whole, and the groups."""
    top: Any = zarr.open_group(repo.readonly_session(snapshot_id=snapshot_id).store, mode="r")
    cells = np.asarray(top["cells"][...]).reshape(-1, CHUNK)
    assert (cells == cells[:, :1]).all(), f"a chunk of {snapshot_id} is torn"
    return cells[:, 0], set(top.group_keys())


def check_nothing_reverted(storm: Storm) -> int:
    """The number of values that were acknowledged; all of them are there, or newer ones."""
    repo = icefloe.Repository.open(storm.storage)
    line = [info.id for info in repo.ancestry(branch="main")][:-1]
    cells, groups = read_main(repo, line[0])
    deleted = {note.name for note in storm.all_notes() if note.value < 0}
    for note in storm.done():
        if note.name.isdigit():
            found = cells[int(note.name)]
            assert found >= note.value, f"cell {note.name} is {found}, {note.value} was confirmed"
        elif note.value < 0:
            assert note.name not in groups, f"group {note.name} is back after its deletion"
        else:
            assert note.name in groups | deleted, f"group {note.name} is lost"
    newer = cells
    for snapshot_id in line[1:]:
        older, _ = read_main(repo, snapshot_id)
        assert (older <= newer).all(), f"{snapshot_id}: a later commit reverts {older} to {newer}"
        newer = older
    report = repo.verify(orphans=False)
    assert report.is_healthy, str(report)
    return len(storm.done())


def weather(
    request: pytest.FixtureRequest, folder: Path, kind: str, spec: int, num: int, seconds: float
) -> None:
    seed = int(os.environ.get("ICEFLOE_STORM_SEED", random.SystemRandom().randrange(2**32)))
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    storm = Storm(fresh_storage(kind, folder, server), folder, seed, NUM_WRITERS, num, seconds)
    start(storm.storage, spec, NUM_WRITERS)
    note = f"seed {seed} of a storm on {kind}, spec {spec}"
    print(note)  # noqa: T201 - shown when the test fails
    try:
        num_kills = rage(storm)
        num_values = check_nothing_reverted(storm)
    except AssertionError as error:
        raise AssertionError(note) from error
    assert num_values, said(storm)
    print(f"{note}: {num_values} values, {num_kills} kills")  # noqa: T201


@pytest.mark.timeout(300)
@SPECS
@PLACES
def test_no_acknowledged_value_is_reverted_in_a_short_storm(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, spec: int
) -> None:
    weather(request, tmp_path, kind, spec, 20, MAX_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(3600)
@SPECS
@PLACES
def test_no_acknowledged_value_is_reverted_in_long_storms(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, spec: int
) -> None:
    for number in range(int(os.environ.get("ICEFLOE_STORMS", "5"))):
        (tmp_path / str(number)).mkdir()
        weather(request, tmp_path / str(number), kind, spec, 200, 300)
