"""Exceptions carry the names, parents and codes of official Icechunk, so handlers carry over."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe import errors

icechunk: Any = pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)

OUR_OWN_KINDS = {"UNKNOWN_OUTCOME", "OBJECTS_COLLECTED"}


def official_exceptions() -> dict[str, type[BaseException]]:
    found = {name: getattr(icechunk, name) for name in dir(icechunk)}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }


def lineage(exception: type[BaseException]) -> list[str]:
    return [ancestor.__name__ for ancestor in exception.__mro__]


def test_every_official_code_exists_under_the_same_name() -> None:
    ours = {kind.name: kind.value for kind in errors.ErrorKind}
    official = {kind.name: kind.value for kind in icechunk.ErrorKind}
    assert {name: value for name, value in ours.items() if name not in OUR_OWN_KINDS} == official


def test_every_official_exception_exists_with_the_same_ancestors() -> None:
    official = {name: lineage(exception) for name, exception in official_exceptions().items()}
    assert len(official) >= 15
    assert {name: lineage(getattr(errors, name)) for name in official} == official


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("IcechunkError", ("text",)),
        ("IcechunkError", ("text", "some-kind")),
        ("NotFoundError", ("text", "branch-not-found")),
        ("FormatError", ("text", "deserialization")),
        ("ConflictError", ("A", "B")),
        ("ConflictError", (None, None, "text", "repo-info-updated")),
    ],
)
def test_exceptions_are_made_and_read_as_official_ones(
    name: str, arguments: tuple[Any, ...]
) -> None:
    ours, official = getattr(errors, name)(*arguments), getattr(icechunk, name)(*arguments)
    for attribute in ("kind", "expected_parent", "actual_parent"):
        if hasattr(official, attribute):
            assert getattr(ours, attribute) == getattr(official, attribute)
    if "text" in arguments:
        assert str(ours) == str(official) == ours.message == official.message
