"""Branches and tags by the hundred, which are written as columns."""

from __future__ import annotations

import pytest

icechunk = pytest.importorskip("icechunk", minversion="2")

import icefloe  # noqa: E402
from tests.interop.sides import Place  # noqa: E402

NAMES = {f"{'long-' * (number % 7)}{number}{'ä€' * (number % 3)}" for number in range(70)}


def test_official_finds_each_of_many_refs(place: Place) -> None:
    ours = icefloe.Repository.create(place.storage(icefloe))
    first = ours.lookup_branch("main")
    second = ours.writable_session("main").commit("second", allow_empty=True)
    for number, name in enumerate(sorted(NAMES)):
        ours.create_branch(name, (first, second)[number % 2])
        ours.create_tag(name, (second, first)[number % 2])
    theirs = place.open(icechunk)
    assert theirs.list_branches() == NAMES | {"main"}
    assert theirs.list_tags() == NAMES
    for name in NAMES:
        assert theirs.lookup_branch(name) == ours.lookup_branch(name)
        assert theirs.lookup_tag(name) == ours.lookup_tag(name)
    tip = ours.writable_session("main").commit("third", allow_empty=True)
    assert place.open(icechunk).lookup_branch("main") == tip
