"""No writer of a branch starves: measured in virtual time, so that the machine does not matter."""

from __future__ import annotations

import pytest

from tests.safety.crowds import HASTY, OURS, crowd

SLOWEST_SHARE = 0.4
"""Commits of the slowest writer, as a part of the mean."""


@pytest.mark.parametrize("spec", [1, 2])
def test_the_slowest_of_four_writers_has_its_share(spec: int) -> None:
    found = crowd([OURS] * 4, spec=spec, seconds=10)
    assert sum(found.commits()) >= 30
    assert found.slowest_share() >= SLOWEST_SHARE, found.commits()


def test_writers_get_through_among_others_that_never_pause() -> None:
    found = crowd([OURS, OURS, HASTY, HASTY], spec=2, seconds=10)
    assert min(found.commits(OURS)) >= 3, found.commits()
