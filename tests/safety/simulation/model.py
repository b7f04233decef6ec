"""What must hold in a simulated world, said without the code under test.

A snapshot is a dictionary of keys and bytes. Every write of a ref or of the `repo` object is
compared with what its operation may do: which ref it may move from where to where, what the new
snapshot must contain, which snapshots may leave the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from icefloe.errors import IcechunkError
from icefloe.format import layout
from icefloe.format.ref_files import decode_ref_file
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import SnapshotId
from icefloe.maintenance import verify
from icefloe.maintenance.progress import Reporter
from icefloe.repo import lifecycle, session
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Driver, Version
from icefloe.storage.run import run_blocking
from icefloe.store import operations
from icefloe.testing.simulate import Observation, SimulatedObjects
from icefloe.testing.wrapping import WrappingDriver

Content = Mapping[str, bytes]
"""Keys of a snapshot and their values."""
Edits = Mapping[str, bytes | None]
"""New values of keys; None for one that is deleted."""


class Broken(Exception):  # noqa: N818 - a finding of the simulator, not an error of the program
    """Something that must hold does not."""


# -- contents


def normal(key: str, value: bytes) -> bytes:
    """A document in one form, a chunk as it is."""
    if not key.endswith("zarr.json"):
        return bytes(value)
    return json.dumps(json.loads(value), sort_keys=True).encode()


def edited(content: Content, edits: Edits) -> dict[str, bytes]:
    """The content with these edits."""
    merged: dict[str, bytes | None] = {**content, **edits}
    return {key: value for key, value in merged.items() if value is not None}


def changed(before: Content, after: Content) -> set[str]:
    """The keys that differ."""
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def three_way(
    base: Content, ours: Content, tip: Content, *, may_choose: bool = False
) -> list[dict[str, bytes]]:
    """What a merge may give; nothing if it has to refuse. `may_choose`: a solver settles chunks."""
    merged, open_keys = dict(tip), []
    for key in sorted(changed(base, ours)):
        if tip.get(key) in (base.get(key), ours.get(key)):
            merged = edited(merged, {key: ours.get(key)})
        elif may_choose and "/c/" in key:
            open_keys.append(key)
        elif may_choose and key not in ours:
            del merged[key]
        else:
            return []
    choices = product(*[(ours.get(key), tip.get(key)) for key in open_keys])
    found = [edited(merged, dict(zip(open_keys, values, strict=True))) for values in choices]
    return [*found, *map(without_orphans, found)] if may_choose else found


def without_orphans(content: Content) -> dict[str, bytes]:
    """Without what is below a node that was deleted."""
    if "zarr.json" not in content:
        return {}
    nodes = {key.removesuffix("zarr.json") for key in content if key.endswith("zarr.json")}
    return {
        key: it
        for key, it in content.items()
        if key.partition("c/")[0] in nodes or "/c/" not in key
    }


def say_difference(expected: Content, found: Content) -> str:
    """The first keys that differ, for messages."""
    keys = sorted(changed(expected, found))
    shown = [
        f"{key}: expected {_short(expected.get(key))}, found {_short(found.get(key))}"
        for key in keys[:3]
    ]
    return "; ".join(shown) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _short(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:60])


# -- what an operation may do


class Change(NamedTuple):
    """A ref that moved; None for one that is not there."""

    kind: str
    name: str
    old: str | None
    new: str | None


class Makes(NamedTuple):
    """The new snapshot that an operation may make the tip of a branch."""

    branch: str
    contents: Callable[[str], list[dict[str, bytes]]]
    """What it may contain, if this was the tip before."""
    parent: Callable[[str], str | None]
    """Its parent, if this was the tip before."""
    links: tuple[str, ...] = ()
    """What it contains besides its parent."""


class Expires(NamedTuple):
    """What an expiration may take from the history."""

    older_than: int | None
    keep_last: int
    keep_tagged: bool
    deletes_branches: bool
    deletes_tags: bool


@dataclass
class Permit:
    """What an operation has said that it may do, and what it has done."""

    makes: Makes | None = None
    moves: set[tuple[str, str, str | None]] = field(default_factory=set)
    """Kind, name and new snapshot of refs."""
    starts: set[str | None] | None = None
    """Where such a ref may have been before; None for anywhere."""
    expires: Expires | None = None
    collects: bool = False
    upgrades: bool = False
    effects: list[Change] = field(default_factory=list)


class Seen(NamedTuple):
    """The refs of a repository, and its snapshots with their parents if it lists them."""

    refs: dict[tuple[str, str], str]
    listed: dict[str, str | None] | None
    times: dict[str, int]


def _text(one: SnapshotId | None) -> str | None:
    return None if one is None else one.text


def look(objects: SimulatedObjects) -> Seen:
    """What is stored now."""
    stored = {key: it.data for key, it in objects.objects.items()}
    if layout.REPO in stored:
        info = decode_repo_info(stored[layout.REPO])
        refs = {("branch", name): tip.text for name, tip in info.branches.items()}
        refs |= {("tag", name): tip.text for name, tip in info.tags.items()}
        listed = [info.snapshots[key] for key in info.snapshots]
        parents = {it.id.text: _text(it.parent_id) for it in listed}
        return Seen(refs, parents, {it.id.text: it.flushed_at for it in listed})
    refs = {}
    for key, data in stored.items():
        if not key.startswith(layout.REFS) or not key.endswith("/ref.json"):
            continue
        kind, _, name = key.removeprefix(layout.REFS).removesuffix("/ref.json").partition(".")
        if f"{key}.deleted" not in stored:
            refs[kind, name] = decode_ref_file(data).text
    return Seen(refs, None, {})


class _Recorder(WrappingDriver):
    """Notes what is read."""

    def __init__(self, objects: SimulatedObjects) -> None:
        super().__init__(objects.driver())
        self.keys = set[str]()

    async def before(self, method: str, key: str) -> None:
        self.keys.add(key)


def open_plainly(objects: SimulatedObjects, driver: Driver | None = None) -> RepoHandle:
    """A handle with empty caches, without faults."""
    driver = driver or objects.driver()
    return run_blocking(lifecycle.open_repository(objects.storage(), driver, None, Clock()))


async def read_content(handle: RepoHandle, snapshot: str) -> dict[str, bytes]:
    """Every key of a snapshot with its value."""
    opened = await session.open_readonly(handle, SnapshotId.parse(snapshot))
    workspace = Workspace(handle, opened)
    found = {}
    for key in await operations.list_prefix(workspace, ""):
        value = await operations.get(workspace, key)
        if value is None:
            raise Broken(f"snapshot {snapshot} lists {key} and does not have it")
        found[key] = normal(key, bytes(value))
    return found


class Model:
    """What a repository must contain."""

    def __init__(self, objects: SimulatedObjects) -> None:
        self.objects = objects
        self.contents: dict[str, dict[str, bytes]] = {}
        self.refs: dict[tuple[str, str], str] = {}
        self.history: list[tuple[int, dict[tuple[str, str], str]]] = []
        """The refs after each change, with its number of writes."""
        self.parents: dict[str, str | None] = {}
        """As they were committed."""
        self.links: dict[str, tuple[str, ...]] = {}
        """What a snapshot contains besides its parent: what it merged or replaced."""
        self.visible: dict[str, str | None] = {}
        """Parents as expirations have left them."""
        self.listed: set[str] | None = None
        self.written_at: dict[str, int] = {}
        self.expirations: list[Expires] = []
        self.deleted_tags: set[str] = set()
        self.num_writes = 0
        self._files: dict[str, dict[str, Version]] = {}
        """The files of each snapshot that was read and found right, with their versions."""

    def branches(self) -> dict[str, str]:
        """The tips of branches."""
        return {name: tip for (kind, name), tip in sorted(self.refs.items()) if kind == "branch"}

    def tags(self) -> dict[str, str]:
        """The snapshots of tags."""
        return {name: tip for (kind, name), tip in sorted(self.refs.items()) if kind == "tag"}

    def line(self, snapshot: str | None, parents: Mapping[str, str | None]) -> Iterator[str]:
        """A snapshot and its ancestors."""
        while snapshot is not None:
            yield snapshot
            snapshot = parents.get(snapshot)

    def live(self) -> set[str]:
        """The snapshots that refs lead to."""
        return {one for tip in self.refs.values() for one in self.line(tip, self.visible)}

    def contained(self, snapshot: str, *, has_links: bool) -> set[str]:
        """A snapshot, its ancestors as they were committed, and what these merged."""
        found, waiting = set[str](), [snapshot]
        while waiting:
            one = waiting.pop()
            if one in found:
                continue
            found.add(one)
            parent = self.parents.get(one)
            waiting += [parent] if parent is not None else []
            waiting += self.links.get(one, ()) if has_links else ()
        return found

    def bases(self, ours: str, tip: str) -> set[str]:
        """The newest snapshots that both contain. Links count, or do not."""
        found = set[str]()
        for has_links in (True, False):
            both = self.contained(ours, has_links=has_links)
            both &= self.contained(tip, has_links=has_links)
            older = {
                below
                for one in both
                for below in self.contained(one, has_links=has_links)
                if below != one
            }
            found |= both - older
        return found

    def was_at(self, kind: str, name: str, snapshot: str, since: int) -> bool:
        """Whether a ref pointed at a snapshot at some time since so many writes."""
        before = [refs for number, refs in self.history if number <= since][-1:]
        after = [refs for number, refs in self.history if number > since]
        return any(refs.get((kind, name)) == snapshot for refs in (*before, *after))

    # -- every write

    def start(self) -> None:
        """Take the present state as it is."""
        seen, handle = look(self.objects), open_plainly(self.objects)
        for tip in seen.refs.values():
            for info in run_blocking(handle.format.ancestry(handle, SnapshotId.parse(tip))):
                one, parent = info.id.text, _text(info.parent_id)
                self.parents[one] = self.visible[one] = parent
                self.written_at[one] = info.flushed_at
                self.contents[one] = self._read(one)
        self.refs = seen.refs
        self.listed = None if seen.listed is None else set(seen.listed)
        self.history.append((0, self.refs))

    def observe(self, observation: Observation) -> None:
        """Compare a write with what its operation may do."""
        key, run = observation
        is_repo = key == layout.REPO
        if not is_repo and (self.listed is not None or not key.startswith(layout.REFS)):
            return
        permit: Permit = run.permit
        seen = look(self.objects)
        self.num_writes += 1
        changes = [
            Change(*ref, self.refs.get(ref), seen.refs.get(ref))
            for ref in sorted(self.refs.keys() | seen.refs.keys())
            if self.refs.get(ref) != seen.refs.get(ref)
        ]
        made = set[str]()
        for change in changes:
            made |= self._allow(change, permit, run)
        if is_repo and seen.listed is not None:
            self._check_list(seen, permit, made, run)
        self.refs = seen.refs
        self.history.append((self.num_writes, self.refs))
        permit.effects += changes

    def _allow(self, change: Change, permit: Permit, run: Any) -> set[str]:
        """Refuse a change that the operation may not make. Returns the snapshots it made."""
        makes = permit.makes
        if (change.kind, change.name, change.new) in permit.moves:
            if permit.starts is not None and change.old not in permit.starts:
                raise Broken(f"{run} moved a ref that was elsewhere: {change}")
            return set()
        rules = permit.expires
        if rules is not None and change.new is None and change.name != "main":
            deletes = rules.deletes_tags if change.kind == "tag" else rules.deletes_branches
            if deletes:
                return set()
        is_tip = makes is not None and (change.kind, change.name) == ("branch", makes.branch)
        if makes is None or not is_tip or change.old is None or change.new is None:
            raise Broken(f"{run} made a change that it may not make: {change}")
        if change.new in self.contents:
            raise Broken(f"{run} moved {change.name} to an old snapshot: {change}")
        return self._add(change.old, change.new, makes, run)

    def _add(self, old: str, new: str, makes: Makes, run: Any) -> set[str]:
        """Compare a new snapshot with what it should be. Returns it and others made with it."""
        handle = open_plainly(self.objects)
        fresh = run_blocking(self._unknown(handle, new))
        found = self._read(new)
        allowed = makes.contents(old)
        if found not in allowed:
            said = say_difference(allowed[0], found) if allowed else "it had to be refused"
            raise Broken(f"{run} made snapshot {new} with other values: {said}")
        wanted = makes.parent(old)
        oldest = fresh[-1]
        parent = _text(oldest.parent_id)
        # An expiration during the operation may have taken the parent from the history.
        if parent != wanted and wanted in self.visible and wanted in self.live():
            raise Broken(f"{run} made {new} on {parent}, expected {wanted}")
        replaced = [self.contents[one] for one in self.line(old, self.visible)]
        for info in fresh:
            one = info.id.text
            self.contents[one] = found if one == new else self._read(one)
            self.visible[one] = self.parents[one] = _text(info.parent_id)
            self.written_at[one] = info.flushed_at
            if one != new and self.contents[one] not in replaced:
                raise Broken(f"{run} wrote {one} with values that no snapshot of {old} had")
        self.parents[oldest.id.text] = wanted
        self.links[new] = makes.links
        return {info.id.text for info in fresh}

    async def _unknown(self, handle: RepoHandle, tip: str) -> list[SnapshotInfo]:
        """The snapshots of a line down to the first that is known."""
        found = []
        async for info in handle.format.ancestors(handle, SnapshotId.parse(tip)):
            if info.id.text in self.contents:
                break
            found.append(info)
        return found

    def _read(self, snapshot: str) -> dict[str, bytes]:
        """The content of a snapshot; which files it needs is noted."""
        driver = _Recorder(self.objects)
        content = run_blocking(read_content(open_plainly(self.objects, driver), snapshot))
        stored, folders = self.objects.objects, tuple(layout.KINDS.values())
        keys = sorted(key for key in driver.keys if key.startswith(folders))
        self._files[snapshot] = {key: stored[key].version for key in keys}
        return content

    def _is_unchanged(self, snapshot: str) -> bool:
        """Whether the files of a snapshot are those of the last time."""
        stored, files = self.objects.objects, self._files[snapshot]
        return all(key in stored and stored[key].version == it for key, it in files.items())

    def _check_list(self, seen: Seen, permit: Permit, made: set[str], run: Any) -> None:
        """Compare the snapshots that a `repo` object lists, and their parents."""
        assert seen.listed is not None
        if self.listed is None:
            if not permit.upgrades:
                raise Broken(f"{run} created a `repo` object")
            self.listed, lost = set(seen.listed), self.live() - seen.listed.keys()
            if lost:
                self._expired(lost, None, run)
        removed, added = self.listed - seen.listed.keys(), seen.listed.keys() - self.listed - made
        if added:
            raise Broken(f"{run} listed snapshots that it did not make: {sorted(added)}")
        if removed:
            self._allow_removal(removed, seen, permit, run)
        for one, parent in seen.listed.items():
            before = self.visible.get(one)
            if one not in made and parent != before:
                skipped = [*self.line(before, self.visible)]
                if parent not in skipped:
                    raise Broken(f"{run} gave {one} the parent {parent}, which was {before}")
                if permit.expires is None and not permit.upgrades and one in self.live():
                    raise Broken(f"{run} changed the parent of {one} to {parent}")
            self.visible[one] = parent
        self.listed = set(seen.listed)

    def _allow_removal(self, removed: set[str], seen: Seen, permit: Permit, run: Any) -> None:
        after = {one for tip in seen.refs.values() for one in self.line(tip, seen.listed or {})}
        if permit.expires is not None:
            tips = set(seen.refs.values()) & removed
            if tips:
                raise Broken(f"{run} expired the tips {sorted(tips)}")
            self._expired(removed, [permit.expires], run)
        elif permit.collects and removed & after:
            raise Broken(f"{run} dropped snapshots that refs lead to: {sorted(removed & after)}")
        elif not permit.collects:
            # Amended commits leave the list.
            left = removed & self.live() - set(self.refs.values())
            if left or permit.makes is None:
                raise Broken(f"{run} dropped snapshots: {sorted(removed)}")

    def _expired(self, removed: Iterable[str], rules: list[Expires] | None, run: Any) -> None:
        """Refuse an expiration that no rule allows. None: any rule so far."""
        given = self.expirations if rules is None else rules
        tagged = {one for tip in self.tags().values() for one in self.line(tip, self.visible)}
        newest = {
            rule: {
                one
                for tip in self.branches().values()
                for one in [*self.line(tip, self.visible)][: rule.keep_last]
            }
            for rule in given
        }
        for one in sorted(removed):
            is_allowed = self.parents.get(one) is not None and any(
                (rule.older_than is None or self.written_at[one] < rule.older_than)
                and (rules is None or one not in newest[rule])
                and not (rules is not None and rule.keep_tagged and one in tagged)
                for rule in given
            )
            if not is_allowed:
                raise Broken(f"{run} expired {one}, which no rule lets expire")

    # -- everything

    def check(self, run: Any) -> None:
        """Every snapshot of the history is there, with its values."""
        seen, handle = look(self.objects), open_plainly(self.objects)
        if seen.refs != self.refs:
            raise Broken(f"refs are {seen.refs}, expected {self.refs}")
        known = set[str]()
        for (kind, name), tip in sorted(seen.refs.items()):
            try:
                found = run_blocking(handle.format.ancestry(handle, SnapshotId.parse(tip)))
            except IcechunkError as error:
                raise Broken(f"the history of {kind} {name} after {run}: {error!r}") from error
            self._check_line(tip, [info.id.text for info in found], f"{kind} {name}", run)
            known |= {info.id.text for info in found}
        for one in sorted(known):
            if self._is_unchanged(one):
                continue
            try:
                content = self._read(one)
            except IcechunkError as error:
                raise Broken(f"snapshot {one} cannot be read after {run}: {error!r}") from error
            if content != self.contents[one]:
                said = say_difference(self.contents[one], content)
                raise Broken(f"snapshot {one} has changed after {run}: {said}")

    def _check_line(self, tip: str, found: list[str], where: str, run: Any) -> None:
        expected = [*self.line(tip, self.visible)]
        if found == expected:
            return
        missing = set(expected) - set(found)
        is_part = [one for one in expected if one in set(found)] == found
        if self.listed is not None or not is_part or found[-1:] != expected[-1:]:
            raise Broken(f"the history of {where} after {run} is {found}, expected {expected}")
        self._expired(missing, None, run)
        for one, parent in zip(found, [*found[1:], None], strict=True):
            self.visible[one] = parent

    def verify(self) -> None:
        """The repository is healthy. Values are compared by `check`."""
        handle = open_plainly(self.objects)
        options = verify.VerifyOptions(orphans=False)
        report = run_blocking(verify.verify(handle, options, Reporter(None)))
        if not report.is_healthy:
            raise Broken(f"verify: {report}")
