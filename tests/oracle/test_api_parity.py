"""The public names of official icechunk exist in icefloe, with parameters that carry over."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

import icefloe

icechunk: Any = pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)

CLASSES = ("Repository", "Session", "IcechunkStore")
VALUES = (
    *("SnapshotInfo", "Diff", "FeatureFlag", "RepoStatus", "RepoAvailability", "Update"),
    *("UpdateType", "ManifestFileInfo", "ChunkType", "SessionMode", "SpecVersion"),
    *("Conflict", "ConflictType", "VersionSelection", "GCSummary"),
)

# Of official's own workings, or names for types that only annotations use.
NOT_OURS = {
    *("AnyAzureCredential", "AnyAzureStaticCredential", "AnyCredential", "AnyGcsCredential"),
    *("AnyGcsStaticCredential", "AnyObjectStoreConfig", "AnyS3Credential"),
    *("initialize_logs", "set_logs_filter", "shutdown_telemetry", "print_debug_info"),
    *("spec_version", "user_agent"),
}


CONSTRUCTORS = sorted(
    name for name in icechunk.__all__ if name.endswith(("_storage", "_credentials", "_store"))
)


def own_members(official: type) -> list[str]:
    """Public names that official's class defines itself, not those of zarr's Store."""
    return sorted(
        {
            name
            for ancestor in official.__mro__
            if ancestor.__module__.startswith("icechunk")
            for name in vars(ancestor)
            if not name.startswith("_")
        }
    )


MEMBERS = [(owner, name) for owner in CLASSES for name in own_members(getattr(icechunk, owner))]


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {name: value for name, value in found.items() if name != "self"}


def assert_calls_carry_over(official: Any, ours: Any) -> None:
    """Whatever can be passed to official's function can be passed to ours and means the same."""
    theirs, mine = parameters(official), parameters(ours)
    assert [name for name in theirs if name not in mine] == []
    for name, value in theirs.items():
        default = mine[name].default
        is_relaxed = (
            value.default is inspect.Parameter.empty and default is not inspect.Parameter.empty
        )
        assert is_relaxed or default == value.default, name
        # What follows a parameter that comes later can only be passed by name until then.
        before = list(parameters(official))[: list(parameters(official)).index(name)]
        if value.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and all(
            earlier in mine for earlier in before
        ):
            assert mine[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, name
    positional = [
        name
        for name, value in parameters(official).items()
        if value.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    order = [name for name in mine if name in positional]
    assert order == [name for name in positional if name in mine]
    for name, value in mine.items():
        assert name in theirs or value.default is not inspect.Parameter.empty, name


def test_the_classes_have_members_to_compare() -> None:
    assert len(MEMBERS) > 100
    assert len(CONSTRUCTORS) > 20


@pytest.mark.parametrize(("owner", "name"), MEMBERS)
def test_a_member_is_there_and_takes_the_same_arguments(owner: str, name: str) -> None:
    official = inspect.getattr_static(getattr(icechunk, owner), name)
    ours = inspect.getattr_static(getattr(icefloe, owner), name)
    assert isinstance(ours, property) == isinstance(official, property)
    if isinstance(official, property):
        return
    assert isinstance(ours, staticmethod | classmethod) == isinstance(
        official, staticmethod | classmethod
    )
    assert_calls_carry_over(
        getattr(getattr(icechunk, owner), name), getattr(getattr(icefloe, owner), name)
    )


@pytest.mark.parametrize(("owner", "name"), MEMBERS)
def test_a_coroutine_is_a_coroutine_in_both(owner: str, name: str) -> None:
    official, ours = (getattr(getattr(module, owner), name) for module in (icechunk, icefloe))
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(official)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_constructor_takes_the_same_arguments(name: str) -> None:
    assert_calls_carry_over(getattr(icechunk, name), getattr(icefloe, name))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_has_the_same_members(name: str) -> None:
    official = {member for member in dir(getattr(icechunk, name)) if not member.startswith("_")}
    assert official
    missing = {member for member in official if not hasattr(getattr(icefloe, name), member)}
    slots = set(getattr(getattr(icefloe, name), "__annotations__", {}))
    assert missing - slots == set()


def test_every_public_name_is_there() -> None:
    official = set(icechunk.__all__)
    assert official - set(icefloe.__all__) - NOT_OURS == set()
    assert official >= NOT_OURS
