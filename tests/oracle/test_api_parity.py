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

# Names that come later, with the issue they belong to; None: with maintenance and tools.
LATER_MEMBERS: dict[str, dict[str, int | None]] = {
    "Repository": {
        "attribution": None,
    },
    "Session": {},
    "IcechunkStore": {},
}
LATER_PARAMETERS: dict[str, int | None] = {
    "attribution": None,
}
LATER_NAMES: dict[str, int | None] = {
    "Attribution": None,
    "hf_storage": None,
}
# Of official's own workings, or names for types that only annotations use.
NOT_OURS = {
    *("AnyAzureCredential", "AnyAzureStaticCredential", "AnyCredential", "AnyGcsCredential"),
    *("AnyGcsStaticCredential", "AnyObjectStoreConfig", "AnyS3Credential"),
    *("initialize_logs", "set_logs_filter", "shutdown_telemetry", "print_debug_info"),
    *("spec_version", "user_agent"),
}


CONSTRUCTORS = sorted(
    name
    for name in icechunk.__all__
    if name.endswith(("_storage", "_credentials", "_store")) and name not in LATER_NAMES
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


def is_later(owner: str, name: str) -> bool:
    later = LATER_MEMBERS[owner]
    return name in later or name.removesuffix("_async") in later


MEMBERS = [(owner, name) for owner in CLASSES for name in own_members(getattr(icechunk, owner))]
PRESENT = [(owner, name) for owner, name in MEMBERS if not is_later(owner, name)]


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {name: value for name, value in found.items() if name != "self"}


def assert_calls_carry_over(official: Any, ours: Any) -> None:
    """Whatever can be passed to official's function can be passed to ours and means the same."""
    theirs = {
        name: value for name, value in parameters(official).items() if name not in LATER_PARAMETERS
    }
    mine = parameters(ours)
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
    assert len(PRESENT) > 100
    assert len(MEMBERS) > len(PRESENT)
    assert len(CONSTRUCTORS) > 20


@pytest.mark.parametrize(("owner", "name"), PRESENT)
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


@pytest.mark.parametrize(("owner", "name"), PRESENT)
def test_a_coroutine_is_a_coroutine_in_both(owner: str, name: str) -> None:
    official, ours = (getattr(getattr(module, owner), name) for module in (icechunk, icefloe))
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(official)


@pytest.mark.parametrize("owner", CLASSES)
def test_what_comes_later_is_official_and_not_there_yet(owner: str) -> None:
    for name in LATER_MEMBERS[owner]:
        assert hasattr(getattr(icechunk, owner), name)
        assert not hasattr(getattr(icefloe, owner), name), f"{name} is there: take it off the list"


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


def test_every_public_name_is_there_or_comes_later() -> None:
    official = set(icechunk.__all__)
    assert official - set(icefloe.__all__) - NOT_OURS - set(LATER_NAMES) == set()
    assert official >= NOT_OURS | set(LATER_NAMES)
    assert set(LATER_NAMES) & set(icefloe.__all__) == set()
