"""Calls that have to be refused, in a form that runs on icefloe and on official icechunk.

Each takes the library and a `Place`: a repository with two commits, a branch, a tag, a deleted
tag and one array, `/a`. With each call goes what icefloe's message has to say: the thing that was
wrong, and what to do where that is not plain. `DIFFERENCES` lists where the two libraries are
meant to answer differently, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import zarr

MISSING_ID = "0123456789ABCDEFGHJG"


@dataclass(frozen=True, slots=True)
class Place:
    repository: Any
    first: str
    second: str
    other: str  # the tip of branch "other", which is no ancestor of `second`

    def writable(self) -> Any:
        return self.repository.writable_session("main")

    def changed(self) -> Any:
        """A session with something to commit."""
        session = self.writable()
        zarr.open_group(session.store, mode="a").attrs["changed"] = True
        return session

    def reader(self) -> Any:
        return self.repository.readonly_session("main")


def make_place(library: Any, storage: Any, spec_version: int) -> Place:
    repository = library.Repository.create(storage, spec_version=spec_version)
    first = _commit(repository, "main", "one")
    repository.create_branch("other", first)
    other = _commit(repository, "other", "three")
    second = _commit(repository, "main", "two")
    repository.create_tag("tag", first)
    repository.create_tag("deleted", first)
    repository.delete_tag("deleted")
    return Place(repository, first, second, other)


def _commit(repository: Any, branch: str, name: str) -> str:
    session = repository.writable_session(branch)
    group = zarr.open_group(session.store, mode="a")
    if "a" not in group:
        group.create_array("a", shape=(4,), chunks=(2,), dtype="i4")[:] = 1
    group.create_group(name)
    snapshot: str = session.commit(name)
    return snapshot


Call = Callable[[Any, Place], Any]


def _conflicting_commit(_library: Any, place: Place) -> Any:
    session = place.changed()
    place.changed().commit("faster")
    return session.commit("slower")


def _first(iterator: Any) -> Any:
    return next(iter(iterator))


async def _collect(iterator: Any) -> Any:
    return [item async for item in iterator]


# name: (call, what icefloe's message says)
BOTH: dict[str, tuple[Call, str]] = {
    # refs
    "look up a branch that is not there": (
        lambda _, p: p.repository.lookup_branch("nothing"),
        r"branch 'nothing'",
    ),
    "look up a tag that is not there": (
        lambda _, p: p.repository.lookup_tag("nothing"),
        r"tag 'nothing'",
    ),
    "look up a deleted tag": (lambda _, p: p.repository.lookup_tag("deleted"), r"tag 'deleted'"),
    "create a branch that exists": (
        lambda _, p: p.repository.create_branch("other", p.first),
        r"branch already exists: 'other'|branch 'other' exists",
    ),
    "create a branch at an unknown snapshot": (
        lambda _, p: p.repository.create_branch("new", MISSING_ID),
        MISSING_ID,
    ),
    "create a branch at no snapshot": (
        lambda _, p: p.repository.create_branch("new", "no-id"),
        r"no-id",
    ),
    "create a branch at half a snapshot": (
        lambda _, p: p.repository.create_branch("new", p.first[:10]),
        r"20",
    ),
    "create a tag that exists": (
        lambda _, p: p.repository.create_tag("tag", p.second),
        r"tag already exists.*'tag'",
    ),
    "create a tag that was deleted": (
        lambda _, p: p.repository.create_tag("deleted", p.second),
        r"tag .*'deleted'.*never used again",
    ),
    "create a tag at an unknown snapshot": (
        lambda _, p: p.repository.create_tag("new", MISSING_ID),
        MISSING_ID,
    ),
    "delete main": (
        lambda _, p: p.repository.delete_branch("main"),
        r"^main branch cannot be deleted: every repository has it",
    ),
    "delete a branch that is not there": (
        lambda _, p: p.repository.delete_branch("nothing"),
        r"branch 'nothing'",
    ),
    "delete a tag that is not there": (
        lambda _, p: p.repository.delete_tag("nothing"),
        r"tag 'nothing'",
    ),
    "delete a tag twice": (lambda _, p: p.repository.delete_tag("deleted"), r"tag 'deleted'"),
    "reset a branch that is not there": (
        lambda _, p: p.repository.reset_branch("nothing", p.first),
        r"branch 'nothing'",
    ),
    "reset a branch to an unknown snapshot": (
        lambda _, p: p.repository.reset_branch("main", MISSING_ID),
        MISSING_ID,
    ),
    "reset a branch that has moved": (
        lambda _, p: p.repository.reset_branch("main", p.first, from_snapshot_id=p.first),
        r"'main'.* expected \w{20}, found \w{20}\. ",
    ),
    # history
    "look up an unknown snapshot": (
        lambda _, p: p.repository.lookup_snapshot(MISSING_ID),
        MISSING_ID,
    ),
    "look up no snapshot": (lambda _, p: p.repository.lookup_snapshot("no-id"), r"no-id"),
    "manifests of an unknown snapshot": (
        lambda _, p: p.repository.list_manifest_files(MISSING_ID),
        MISSING_ID,
    ),
    "ancestry of nothing": (lambda _, p: _first(p.repository.ancestry()), r"branch, tag"),
    "ancestry of two": (
        lambda _, p: _first(p.repository.ancestry(branch="main", tag="tag")),
        r"branch and tag",
    ),
    "ancestry of a branch that is not there": (
        lambda _, p: _first(p.repository.ancestry(branch="nothing")),
        r"branch 'nothing'",
    ),
    "ancestry of an unknown snapshot": (
        lambda _, p: _first(p.repository.ancestry(snapshot_id=MISSING_ID)),
        MISSING_ID,
    ),
    "difference backwards": (
        lambda _, p: p.repository.diff(from_snapshot_id=p.second, to_snapshot_id=p.first),
        r"not an ancestor",
    ),
    "difference to itself": (
        lambda _, p: p.repository.diff(from_branch="main", to_branch="main"),
        r"not an ancestor",
    ),
    "difference across branches": (
        lambda _, p: p.repository.diff(from_branch="other", to_branch="main"),
        r"not an ancestor",
    ),
    "difference from nothing": (
        lambda _, p: p.repository.diff(to_branch="main"),
        r"from_branch, from_tag and from_snapshot_id",
    ),
    # sessions
    "read a branch that is not there": (
        lambda _, p: p.repository.readonly_session("nothing"),
        r"branch 'nothing'",
    ),
    "read a tag that is not there": (
        lambda _, p: p.repository.readonly_session(tag="nothing"),
        r"tag 'nothing'",
    ),
    "read an unknown snapshot": (
        lambda _, p: p.repository.readonly_session(snapshot_id=MISSING_ID),
        MISSING_ID,
    ),
    "read nothing": (lambda _, p: p.repository.readonly_session(), r"branch, tag"),
    "read two": (
        lambda _, p: p.repository.readonly_session("main", tag="tag"),
        r"branch and tag",
    ),
    "read before there was anything": (
        lambda _, p: p.repository.readonly_session("main", as_of=datetime(2001, 1, 1, tzinfo=UTC)),
        r"'main' has no snapshot at or before",
    ),
    "read a missing branch at a time": (
        lambda _, p: p.repository.readonly_session("nothing", as_of=datetime.now(UTC)),
        r"branch 'nothing'",
    ),
    "read a tag at a time": (
        lambda _, p: p.repository.readonly_session(tag="tag", as_of=datetime.now(UTC)),
        r"as_of needs a branch",
    ),
    "write to a branch that is not there": (
        lambda _, p: p.repository.writable_session("nothing"),
        r"branch 'nothing'",
    ),
    "commit nothing": (lambda _, p: p.writable().commit("empty"), r"allow_empty=True"),
    "commit a read-only session": (lambda _, p: p.reader().commit("read"), r"read-only"),
    "flush a read-only session": (lambda _, p: p.reader().flush("read"), r"read-only"),
    "node id of nothing": (lambda _, p: p.reader().get_node_id("/nothing"), r"'/nothing'"),
    "chunk type of nothing": (
        lambda _, p: p.reader().chunk_type("/nothing", [0]),
        r"'/nothing'",
    ),
    "chunk type in a group": (lambda _, p: p.reader().chunk_type("/one", [0]), r"'/one'"),
    "chunks of nothing": (
        lambda _, p: asyncio.run(_collect(p.reader().chunk_coordinates("/nothing"))),
        r"'/nothing'",
    ),
    "chunks of a group": (
        lambda _, p: asyncio.run(_collect(p.reader().chunk_coordinates("/one"))),
        r"'/one'",
    ),
    "change a read-only session": (
        lambda _, p: zarr.open_group(p.reader().store, mode="r+").create_group("new"),
        r"read-only",
    ),
    "create on top": (
        lambda lib, p: lib.Repository.create(p.repository.storage),
        r"not empty.*check_clean_root=False",
    ),
}

# calls that write files before they are refused: they leave garbage, never a visible change
LEAVE_GARBAGE: dict[str, tuple[Call, str]] = {
    "commit to a branch that moved": (
        _conflicting_commit,
        r"'main'.* expected \w{20}, found \w{20}\. ",
    ),
}

ONLY_V1: dict[str, tuple[Call, str]] = {
    "a slash in a branch name": (
        lambda _, p: p.repository.create_branch("a/b", p.first),
        r"'a/b'.*no '/'",
    ),
    "a slash in a tag name": (
        lambda _, p: p.repository.create_tag("a/b", p.first),
        r"'a/b'.*no '/'",
    ),
    "amend": (lambda _, p: p.changed().amend("again"), r"spec version 2.*migrate"),
    "operations log": (lambda _, p: _first(p.repository.ops_log()), r"spec version 2.*migrate"),
    "get metadata": (lambda _, p: p.repository.get_metadata(), r"spec version 2.*migrate"),
    "set metadata": (lambda _, p: p.repository.set_metadata({"a": 1}), r"spec version 2.*migrate"),
    "update metadata": (
        lambda _, p: p.repository.update_metadata({"a": 1}),
        r"spec version 2.*migrate",
    ),
    "get status": (lambda _, p: p.repository.get_status(), r"spec version 2.*migrate"),
    "set status": (
        lambda lib, p: p.repository.set_status(lib.RepoStatus(lib.RepoAvailability.online)),
        r"spec version 2.*migrate",
    ),
    "feature flags": (lambda _, p: p.repository.feature_flags(), r"spec version 2.*migrate"),
    "set a feature flag": (
        lambda _, p: p.repository.set_feature_flag("create_tag", True),
        r"spec version 2.*migrate",
    ),
}

ONLY_V2: dict[str, tuple[Call, str]] = {
    "an unknown feature flag": (
        lambda _, p: p.repository.set_feature_flag("fly", True),
        r"'fly'.*'create_tag'",
    ),
    "amend a read-only session": (lambda _, p: p.reader().amend("read"), r"read-only"),
    "amend with nothing": (lambda _, p: p.writable().amend("empty"), r"allow_empty=True"),
}

# Calls that need a repository of their own, given an empty place.
Start = Callable[[Any, Any], Any]
EMPTY: dict[str, tuple[Start, str]] = {
    "open where nothing is": (lambda lib, s: lib.Repository.open(s), r"found none in .*create"),
    "create a version that is not there": (
        lambda lib, s: lib.Repository.create(s, spec_version=3),
        r"spec_version is 3, expected 1 or 2",
    ),
    "create version 0": (
        lambda lib, s: lib.Repository.create(s, spec_version=0),
        r"spec_version is 0, expected 1 or 2",
    ),
    "open or create a version that is not there": (
        lambda lib, s: lib.Repository.open_or_create(s, create_version=7),
        r"is 7, expected 1 or 2",
    ),
}

WRONG_VALUES: dict[str, tuple[Call, str]] = {
    "an empty branch name": (lambda _, p: p.repository.create_branch("", p.first), r"''.*empty"),
    "an empty tag name": (lambda _, p: p.repository.create_tag("", p.first), r"''.*empty"),
    "chunk type with too many indices": (
        lambda _, p: p.reader().chunk_type("/a", [0, 0]),
        r"2 dimensions, array '/a' has 1",
    ),
    "chunk type with a negative index": (lambda _, p: p.reader().chunk_type("/a", [-1]), r"-1"),
    "chunk type with a huge index": (
        lambda _, p: p.reader().chunk_type("/a", [2**40]),
        r"1099511627776",
    ),
    "chunk type at a relative path": (lambda _, p: p.reader().chunk_type("a", [0]), r"'a'"),
    "node id at a relative path": (lambda _, p: p.reader().get_node_id("a"), r"'a'"),
    "node id at an empty path": (lambda _, p: p.reader().get_node_id(""), r"''"),
    "node id at a path with dots": (lambda _, p: p.reader().get_node_id("/a/../a"), r"/a/\.\./a"),
    "chunks at a relative path": (
        lambda _, p: asyncio.run(_collect(p.reader().chunk_coordinates("a"))),
        r"'a'",
    ),
    "chunks in batches of less than none": (
        lambda _, p: asyncio.run(_collect(p.reader().chunk_coordinates("/a", -1))),
        r"batch_size.*-1",
    ),
    "discard the changes of a read-only session": (
        lambda _, p: p.reader().discard_changes(),
        r"read-only|Read only",
    ),
    "metadata that is no JSON": (
        lambda _, p: p.changed().commit("commit", {"key": object()}),
        r"key.*object",
    ),
    "metadata that is not a number": (
        lambda _, p: p.changed().commit("commit", {"key": float("nan")}),
        r"key.*nan",
    ),
    "metadata of bytes": (
        lambda _, p: p.changed().commit("commit", {"key": b"value"}),
        r"key.*bytes",
    ),
    "metadata beyond 64 bits": (
        lambda _, p: p.changed().commit("commit", {"key": 2**70}),
        r"key.*64 bits",
    ),
}

# The argument that is wrong is the one named by the second item.
WRONG_TYPES: dict[str, tuple[Call, str]] = {
    "create at a path": (lambda lib, _: lib.Repository.create("path"), "storage"),
    "open a path": (lambda lib, _: lib.Repository.open("path"), "storage"),
    "exists at a path": (lambda lib, _: lib.Repository.exists("path"), "storage"),
    "create with a dict as config": (
        lambda lib, _: lib.Repository.create(lib.in_memory_storage(), {"a": 1}),
        "config",
    ),
    "open with a dict as config": (
        lambda lib, p: lib.Repository.open(p.repository.storage, {"a": 1}),
        "config",
    ),
    "a number as branch to look up": (lambda _, p: p.repository.lookup_branch(5), "branch|name"),
    "None as branch to look up": (lambda _, p: p.repository.lookup_branch(None), "branch|name"),
    "a number as new branch": (lambda _, p: p.repository.create_branch(5, p.first), "branch|name"),
    "a number as new tag": (lambda _, p: p.repository.create_tag(5, p.first), "tag|name"),
    "None as new tag": (lambda _, p: p.repository.create_tag(None, p.first), "tag|name"),
    "None as branch to delete": (lambda _, p: p.repository.delete_branch(None), "branch|name"),
    "a number as tag to delete": (lambda _, p: p.repository.delete_tag(5), "tag|name"),
    "bytes as snapshot": (lambda _, p: p.repository.create_tag("new", b"1" * 20), "snapshot"),
    "a number as snapshot": (lambda _, p: p.repository.create_tag("new", 5), "snapshot|str"),
    "None as branch to write to": (lambda _, p: p.repository.writable_session(None), "branch|name"),
    "a number as branch to read": (lambda _, p: p.repository.readonly_session(5), "branch|name"),
    "text as time": (
        lambda _, p: p.repository.readonly_session("main", as_of="now"),
        "as_of|datetime",
    ),
    "a number as time": (
        lambda _, p: p.repository.readonly_session("main", as_of=5),
        "as_of|datetime",
    ),
    "None as message": (lambda _, p: p.changed().commit(None), "message"),
    "bytes as message": (lambda _, p: p.changed().commit(b"message"), "message"),
    "text as commit metadata": (
        lambda _, p: p.changed().commit("commit", "text"),
        "metadata|mapping",
    ),
    "a number as key of commit metadata": (
        lambda _, p: p.changed().commit("commit", {1: 2}),
        "metadata",
    ),
    "text as metadata": (lambda _, p: p.repository.set_metadata("text"), "metadata"),
    "text as default metadata": (
        lambda _, p: p.repository.set_default_commit_metadata("text"),
        "metadata",
    ),
    "text as status": (lambda _, p: p.repository.set_status("online"), "status|RepoStatus"),
    "text as setting of a flag": (
        lambda _, p: p.repository.set_feature_flag("create_tag", "yes"),
        "setting|bool",
    ),
    "a number as path": (lambda _, p: p.reader().get_node_id(3), "path"),
}

NO_SNAPSHOT = "SnapshotNotFoundError snapshot-not-found"
NO_OBJECT = "StorageError object-not-found"
BAD_METADATA = "InvalidInputError bad-metadata"
ONE_ANSWER = "an unknown snapshot is the same mistake in both versions and in every call"
KEPT_EXACTLY = "metadata is stored exactly or not at all; official changes such values"

# name: (icefloe's answer, official's answers, why)
DIFFERENCES: dict[str, tuple[str, tuple[str, ...], str]] = {
    **dict.fromkeys(
        (
            "manifests of an unknown snapshot",
            "create a branch at an unknown snapshot",
            "create a tag at an unknown snapshot",
            "reset a branch to an unknown snapshot",
            "look up an unknown snapshot",
            "ancestry of an unknown snapshot",
            "read an unknown snapshot",
        ),
        (NO_SNAPSHOT, (NO_OBJECT, NO_SNAPSHOT), ONE_ANSWER),
    ),
    "flush a read-only session": (
        "SessionStateError commit-not-allowed",
        ("nothing raised",),
        "there is nothing to flush, and reading must not write",
    ),
    "an empty branch name": (
        "InvalidInputError invalid-ref-name",
        ("nothing raised",),
        "a name that cannot be seen helps nobody, and version 1 would lose it",
    ),
    "an empty tag name": (
        "InvalidInputError invalid-ref-name",
        ("nothing raised",),
        "a name that cannot be seen helps nobody, and version 1 would lose it",
    ),
    "chunk type with too many indices": (
        "InvalidInputError invalid-chunk-index",
        ("nothing raised",),
        "chunk indices have as many numbers as the array has dimensions",
    ),
    "chunks in batches of less than none": (
        "InvalidInputError",
        ("OverflowError",),
        "the same mistake with an exception that says so",
    ),
    "chunk type with a negative index": (
        "InvalidInputError invalid-chunk-index",
        ("OverflowError",),
        "the same mistake with an exception that says so",
    ),
    "chunk type with a huge index": (
        "InvalidInputError invalid-chunk-index",
        ("OverflowError",),
        "the same mistake with an exception that says so",
    ),
    "metadata that is no JSON": (
        "NoJsonError bad-metadata",
        ("TypeError",),
        "the message says where in the metadata the value is",
    ),
    "metadata that is not a number": (BAD_METADATA, ("nothing raised",), KEPT_EXACTLY),
    "metadata of bytes": ("NoJsonError bad-metadata", ("nothing raised",), KEPT_EXACTLY),
    "metadata beyond 64 bits": (BAD_METADATA, ("nothing raised",), KEPT_EXACTLY),
}
