"""Both libraries list the objects of a storage alike."""

from __future__ import annotations

import pytest

icechunk = pytest.importorskip("icechunk", minversion="2")

import icefloe  # noqa: E402
from tests.interop.sides import Place  # noqa: E402

PREFIXES = (None, "", "/", "snapshots", "snapshots/", "refs", "refs/branch.main", "none")


@pytest.mark.parametrize("spec", [1, 2])
def test_a_prefix_is_a_folder_and_keys_are_relative_to_it(place: Place, spec: int) -> None:
    icechunk.Repository.create(place.storage(icechunk), spec_version=spec)
    ours, theirs = place.storage(icefloe), place.storage(icechunk)
    for prefix in PREFIXES:
        expected = sorted(theirs.list_objects(prefix=prefix))
        assert ours.list_objects(prefix=prefix) == expected
        listed, found = (side.list_objects_metadata(prefix=prefix) for side in (ours, theirs))
        assert [(one.key, one.size_bytes) for one in listed] == expected
        assert {one.key: one.created_at for one in listed} == {
            one.key: one.created_at for one in found
        }
    assert len(ours.list_objects(prefix="snapshots")) == 1
    assert ours.list_objects(prefix="snap") == []  # official fails on S3
