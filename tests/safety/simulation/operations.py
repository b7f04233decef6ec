"""The operations of a simulated world: the real ones, and what each of them may do.

An operation draws what it does from its own seed and from the refs of the model, so that it does
much the same when others are left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from icefloe.changes.conflicts import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictSolver,
    VersionSelection,
)
from icefloe.errors import ConflictError, RebaseFailedError, StorageError, UnknownOutcomeError
from icefloe.ids import SnapshotId
from icefloe.legacy.migrate import LocalMigration, Migration, migrate
from icefloe.maintenance import expire, gc, incremental, repair, stats, verify
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.upgrade import upgrade
from icefloe.repo import commit, forks, lifecycle, rearrange, rebase, refs, replay, session
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionState, Workspace
from icefloe.store import operations
from icefloe.store.appends import AppendSolver
from icefloe.testing.simulate import SimulatedObjects
from tests.safety.simulation.model import (
    Broken,
    Edits,
    Expires,
    Makes,
    Model,
    Permit,
    changed,
    edited,
    normal,
    open_plainly,
    read_content,
    three_way,
)

if TYPE_CHECKING:
    from tests.safety.simulation.worlds import Client

BRANCHES = ("main", "dev", "side")
TAGS = ("t0", "t1", "t2", "t3")
GROUPS = tuple(f"g{number}" for number in range(4))
LENGTHS = {"a": (6, 1), "n": (4, 100), "t": (2, 100)}
"""Arrays: how many chunks of how many numbers. Those of `a` are inline, `t` grows."""

Contents = list[dict[str, bytes]]


@dataclass
class Run:
    """One operation of one client."""

    client: Client
    name: str
    key: int
    drawn: random.Random
    model: Model
    started_at: int
    """The number of writes that the model had seen."""
    permit: Permit = field(default_factory=Permit)
    must: tuple[str, str, str | None] | None = None
    """What it has to have done once it is acknowledged."""

    def __str__(self) -> str:
        return f"{self.name} of client {self.client.number}"

    async def handle(self) -> RepoHandle:
        """The client's repository, opened if it is not open."""
        return await self.client.open()

    def branch(self) -> str:
        """A branch, mostly one that exists."""
        known = [*self.model.branches()]
        return self.drawn.choice([*known * 4, "side"])

    def live(self) -> str:
        """A snapshot that a ref leads to."""
        return self.drawn.choice(sorted(self.model.live()))

    def known(self) -> str:
        """Any snapshot, mostly one that a ref leads to."""
        if self.drawn.random() < 0.8:
            return self.live()
        return self.drawn.choice(sorted(self.model.contents))

    def number(self) -> int:
        """A number that no other edit has."""
        return self.drawn.getrandbits(60)

    def makes(
        self,
        branch: str,
        contents: Callable[[str], Contents],
        parent: Callable[[str], str | None] = lambda tip: tip,
        links: tuple[str, ...] = (),
    ) -> None:
        """Allow a new tip of a branch."""
        self.permit.makes = Makes(branch, contents, parent, links)

    def made(self, branch: str, snapshot: SnapshotId | None) -> None:
        """Demand a new tip of a branch."""
        if snapshot is None:
            raise Broken(f"{self} was acknowledged without a snapshot")
        self.must = ("branch", branch, snapshot.text)


# -- edits


def document(kind: str, name: str, attributes: dict[str, Any], count: int = 0) -> bytes:
    """The metadata of a group or an array."""
    text: dict[str, Any] = {"zarr_format": 3, "node_type": kind, "attributes": attributes}
    if kind == "array":
        length = LENGTHS[name][1]
        text |= {
            "shape": [count * length],
            "data_type": "int64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [length]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "dimension_names": ["time" if name == "t" else name],
        }
    return normal("zarr.json", json.dumps(text).encode())


def chunk(name: str, number: int) -> bytes:
    """A chunk of one number."""
    return number.to_bytes(8, "little") * LENGTHS[name][1]


def first_edits() -> dict[str, bytes]:
    """What a world starts with."""
    found = {"zarr.json": document("group", "", {})}
    for name, (count, _) in LENGTHS.items():
        found[f"{name}/zarr.json"] = document("array", name, {}, count)
        found |= {f"{name}/c/{n}": chunk(name, n + 1) for n in range(count)}
    return found


def draw_edits(run: Run, base: dict[str, bytes]) -> dict[str, bytes | None]:
    """A few changes; no key twice. Where a branch starts from nothing, everything."""
    drawn, edits = run.drawn, dict[str, bytes | None]()
    if "t/zarr.json" not in base:
        return {**first_edits()}
    for _ in range(drawn.choice((1, 1, 2, 3))):
        what = drawn.random()
        if what < 0.65:
            name = drawn.choice(("a", "n", "n"))
            key = f"{name}/c/{drawn.randrange(LENGTHS[name][0])}"
            value = chunk(name, run.number())
            edits[key] = None if drawn.random() < 0.15 and key in base else value
        elif what < 0.9:
            group = drawn.choice(GROUPS)
            key = f"{group}/zarr.json"
            is_deleted = key in base and drawn.random() < 0.4
            made = document("group", group, {"by": run.number()})
            edits[key] = None if is_deleted else made
        else:
            edits["zarr.json"] = document("group", "", {"by": run.number()})
    return edits


async def apply(workspace: Workspace, edits: Edits) -> None:
    """Make edits in a session."""
    for key, value in edits.items():
        if value is None:
            await operations.delete(workspace, key)
        else:
            await operations.set_key(workspace, key, value)


def rebased(run: Run, branch: str, base: str, edits: Edits, rule: str) -> Callable[[str], Contents]:
    """What edits on `base` may give on top of a tip."""
    model = run.model

    def contents(tip: str) -> Contents:
        if rule == "none":
            return [edited(model.contents[base], edits)] if tip == base else []
        # A tip that does not come after the base is compared with it. So is one that does, where
        # logs in between are gone.
        net = changed(model.contents[base], model.contents[tip])
        line, touched = [*model.line(tip, model.parents)], set(net)
        for one in line[: line.index(base)] if base in line else ():
            touched |= changed(model.contents[model.parents[one] or ""], model.contents[one])
        found = [found for theirs in (touched, net) for found in settled(tip, theirs)]
        if rule == "theirs" and found:
            # What lost against a commit stays lost if the branch leaves that commit again.
            tips = {
                refs.get(("branch", branch), tip)
                for number, refs in model.history
                if number >= run.started_at
            }
            lost = {
                key for one in tips for key in changed(model.contents[base], model.contents[one])
            }
            keys = sorted(key for key in lost & edits.keys() if "/c/" in key)
            for count in range(len(keys) + 1):
                for some in combinations(keys, count):
                    kept = {key: it for key, it in edits.items() if key not in some}
                    found.append(edited(model.contents[tip], kept))
        return found

    def settled(tip: str, theirs: set[str]) -> Contents:
        ours = dict(edits)
        for key in sorted(theirs & edits.keys()):
            if edits[key] is None and key not in model.contents[tip]:
                continue  # both deleted it
            is_chunk = "/c/" in key
            if rule == "detect" or (not is_chunk and edits[key] is not None):
                return []
            if is_chunk and rule == "theirs":
                del ours[key]
        return [edited(model.contents[tip], ours)]

    return contents


def solver_of(rule: str) -> ConflictSolver | None:
    """The solver of a rule."""
    if rule in ("ours", "theirs"):
        ours, theirs = VersionSelection.UseOurs, VersionSelection.UseTheirs
        return BasicConflictSolver(on_chunk_conflict=ours if rule == "ours" else theirs)
    return ConflictDetector() if rule == "detect" else None


# -- sessions


async def opened(run: Run, branch: str) -> tuple[Workspace, str]:
    """A writable session, and its base."""
    handle = await run.handle()
    state = await session.open_writable(handle, branch)
    base = state.snapshot_id.text
    if base not in run.model.contents:
        raise Broken(f"{run} opened {branch} at {base}, which was never acknowledged")
    return Workspace(handle, state), base


async def _do_commit(run: Run) -> None:
    branch, rule = run.branch(), run.drawn.choice(("none", "detect", "detect", "ours", "theirs"))
    workspace, base = await opened(run, branch)
    edits = draw_edits(run, run.model.contents[base])
    await apply(workspace, edits)
    run.makes(branch, rebased(run, branch, base, edits, rule))
    if rule != "none" and run.drawn.random() < 0.3:
        await rebase.rebase(workspace, solver_of(rule) or ConflictDetector())
    solver = solver_of(rule)
    try:
        made = await commit.commit(workspace, str(run), None, rebase_with=solver)
    except (ConflictError, StorageError) as error:
        if isinstance(error, UnknownOutcomeError | RebaseFailedError) or run.drawn.random() < 0.3:
            raise
        # The session keeps its changes.
        if rule == "none":
            solver = ConflictDetector()
            run.makes(branch, rebased(run, branch, base, edits, "detect"))
            await rebase.rebase(workspace, solver)
        made = await commit.commit(workspace, str(run), None, rebase_with=solver)
    run.made(branch, made)


async def _do_amend(run: Run) -> None:
    branch = run.branch()
    workspace, base = await opened(run, branch)
    edits = draw_edits(run, run.model.contents[base])
    await apply(workspace, edits)
    run.makes(branch, rebased(run, branch, base, edits, "none"), lambda tip: run.model.visible[tip])
    run.made(branch, await commit.amend(workspace, str(run), None))


async def _do_fork(run: Run) -> None:
    """Two workers write in forks of a session."""
    branch = run.branch()
    workspace, base = await opened(run, branch)
    content = run.model.contents[base]
    if "n/zarr.json" not in content:
        return
    groups = [key for key in draw_edits(run, content) if "/c/" not in key]
    edits: dict[str, bytes | None] = {
        key: document("group", "", {"by": run.number()}) for key in groups
    }
    await apply(workspace, edits)
    brought = []
    for worker in range(2):
        state: SessionState = await forks.fork_session(workspace)
        fork = Workspace(workspace.handle, state)
        ours: dict[str, bytes | None] = {
            f"n/c/{number}": chunk("n", run.number()) for number in (worker, worker + 2)
        }
        await apply(fork, ours)
        edits |= ours
        brought.append(await forks.fork_changes(fork))
    await forks.merge_forks(workspace, brought)
    run.makes(branch, rebased(run, branch, base, edits, "detect"))
    solver = ConflictDetector()
    run.made(branch, await commit.commit(workspace, str(run), None, rebase_with=solver))


async def _do_append(run: Run) -> None:
    """Make `t` longer by one or two chunks."""
    branch = run.branch()
    workspace, base = await opened(run, branch)
    if "t/zarr.json" not in run.model.contents[base]:
        return
    values = [chunk("t", run.number()) for _ in range(run.drawn.choice((1, 2)))]

    def longer(content: dict[str, bytes]) -> dict[str, bytes | None]:
        text = json.loads(content["t/zarr.json"])
        count = text["shape"][0] // LENGTHS["t"][1]
        text["shape"] = [(count + len(values)) * LENGTHS["t"][1]]
        made = normal("zarr.json", json.dumps(text).encode())
        added = {f"t/c/{count + n}": value for n, value in enumerate(values)}
        return {"t/zarr.json": made, **added}

    def contents(tip: str) -> Contents:
        content = run.model.contents[tip]
        return [edited(content, longer(content))]

    await apply(workspace, longer(run.model.contents[base]))
    run.makes(branch, contents)
    solver = AppendSolver("time", accept_unordered=True)
    run.made(branch, await commit.commit(workspace, str(run), None, rebase_with=solver))


async def _do_read(run: Run) -> None:
    """Read a snapshot, with the caches of the client."""
    one = run.live()
    found = await read_content(await run.handle(), one)
    if found != run.model.contents[one]:
        raise Broken(f"{run} found other values in snapshot {one}")


# -- commits of other places


def _replay_request(run: Run, branch: str) -> tuple[replay.ReplayRequest, bool]:
    may_choose = run.drawn.random() < 0.3
    solver = BasicConflictSolver() if may_choose else None
    return replay.ReplayRequest(branch, solver=solver), may_choose


async def _do_merge(run: Run) -> None:
    model, branch = run.model, run.branch()
    others = [name for name in (*model.branches(), *model.tags()) if name != branch]
    name = run.drawn.choice(others or [branch])
    source = {**model.tags(), **model.branches()}[name]
    request, may_choose = _replay_request(run, branch)

    def contents(tip: str) -> Contents:
        ours, theirs = model.contents[source], model.contents[tip]
        return [
            found
            for base in sorted(model.bases(source, tip))
            for found in three_way(model.contents[base], ours, theirs, may_choose=may_choose)
        ]

    run.makes(branch, contents, links=(source,))
    merged = await replay.merge(await run.handle(), SnapshotId.parse(source), name, request)
    run.made(branch, merged.snapshot_id)


async def _do_cherry_pick(run: Run) -> None:
    branch = run.branch()
    tip = run.model.branches().get(branch, "")
    others = run.model.live() - {*run.model.line(tip, run.model.visible)}
    one = run.drawn.choice(sorted(others) or [run.live()])
    await pick(run, branch, one, is_undo=False)


async def _do_undo(run: Run) -> None:
    branch = run.branch()
    tip = run.model.branches().get(branch, run.live())
    line = [*run.model.line(tip, run.model.visible)]
    await pick(run, branch, run.drawn.choice(line[:4]), is_undo=True)


async def pick(run: Run, branch: str, one: str, *, is_undo: bool) -> None:
    """Apply the changes of a commit, or their reverse."""
    model = run.model
    request, may_choose = _replay_request(run, branch)

    def contents(tip: str) -> Contents:
        parent = model.parents[one]
        if parent is None:
            return []
        before, after = model.contents[parent], model.contents[one]
        if is_undo:
            before, after = after, before
        return three_way(before, after, model.contents[tip], may_choose=may_choose)

    run.makes(branch, contents)
    function = replay.undo if is_undo else replay.cherry_pick
    done = await function(await run.handle(), SnapshotId.parse(one), request)
    run.made(branch, done.snapshot_id)


async def _do_squash(run: Run) -> None:
    model, branch = run.model, run.branch()
    first = model.branches().get(branch, run.live())
    line = [*model.line(first, model.visible)]
    since = run.drawn.choice(line[1:5] or line)
    position = line.index(since)
    until = run.drawn.choice([None, *line[:position]])
    run.makes(
        branch,
        lambda tip: [model.contents[tip]] if since in model.line(tip, model.visible) else [],
        lambda tip: since,
        (first,),
    )
    done = await replay.squash(
        await run.handle(),
        SnapshotId.parse(since),
        replay.ReplayRequest(branch),
        None if until is None else SnapshotId.parse(until),
    )
    if until is None:
        run.made(branch, done.snapshot_id)


# -- refs


async def _do_reset(run: Run) -> None:
    model, branch, target = run.model, run.branch(), run.known()
    expected = model.branches().get(branch) if run.drawn.random() < 0.5 else None
    run.permit.moves = {("branch", branch, target)}
    run.permit.starts = None if expected is None else {expected}
    handle = await run.handle()
    start = None if expected is None else SnapshotId.parse(expected)
    await refs.reset_branch(handle, branch, SnapshotId.parse(target), start)
    if not model.was_at("branch", branch, target, run.started_at):
        raise Broken(f"{run} was acknowledged, and {branch} was never at {target}")


async def _do_create_branch(run: Run) -> None:
    name, target = run.drawn.choice(BRANCHES), run.known()
    run.permit.moves, run.permit.starts = {("branch", name, target)}, {None}
    await refs.create_branch(await run.handle(), name, SnapshotId.parse(target))
    run.must = ("branch", name, target)


async def _do_delete_branch(run: Run) -> None:
    name = run.drawn.choice(BRANCHES)
    run.permit.moves = {("branch", name, None)} if name != "main" else set()
    await refs.delete_branch(await run.handle(), name)
    run.must = ("branch", name, None)


async def _do_create_tag(run: Run) -> None:
    name, target = run.drawn.choice(TAGS), run.known()
    run.permit.moves, run.permit.starts = {("tag", name, target)}, {None}
    if name in run.model.deleted_tags:
        run.permit.moves = set()
    await refs.create_tag(await run.handle(), name, SnapshotId.parse(target))
    run.must = ("tag", name, target)


async def _do_delete_tag(run: Run) -> None:
    name = run.drawn.choice(TAGS)
    run.permit.moves = {("tag", name, None)}
    await refs.delete_tag(await run.handle(), name)
    run.must = ("tag", name, None)
    run.model.deleted_tags.add(name)


# -- maintenance


async def _do_expire(run: Run) -> None:
    drawn, handle = run.drawn, await run.handle()
    age = drawn.choice((0, 1, 10, 60, 3600)) * 1_000_000
    keeps = drawn.random() < 0.4
    rules = expire.Rules(
        older_than=handle.clock.now_us() - age,
        keep_last=drawn.choice((1, 2, 3)) if keeps else 0,
        keep_tagged=drawn.random() < 0.3,
        keep_fork_points=drawn.random() < 0.5,
        delete_expired_branches=drawn.random() < 0.1,
        delete_expired_tags=drawn.random() < 0.1,
    )
    deletes = rules.delete_expired_branches, rules.delete_expired_tags
    allowed = Expires(rules.older_than, rules.keep_last, rules.keep_tagged, *deletes)
    run.permit.expires = allowed
    run.model.expirations.append(allowed)
    await expire.expire_snapshots(handle, rules)


def _collection_options(run: Run, handle: RepoHandle) -> gc.Options:
    age = run.drawn.choice((0, 0, 1, 10, 60, 3600)) * 1_000_000
    run.permit.collects = True
    return gc.Options(handle.clock.now_us() - age, full_every=run.drawn.choice((2, 10)))


async def _do_collect(run: Run) -> None:
    handle = await run.handle()
    options = _collection_options(run, handle)
    if run.drawn.random() < 0.3:
        plan = await gc.plan_garbage(handle, options, Reporter(None))
        await gc.run_plan(handle, plan, options, Reporter(None))
    else:
        await gc.collect_garbage(handle, options, Reporter(None), dry_run=False)


async def _do_collect_incrementally(run: Run) -> None:
    handle = await run.handle()
    options = _collection_options(run, handle)
    await incremental.collect_garbage(handle, options, Reporter(None), dry_run=False)


def _same_content(run: Run, branch: str, parent: Callable[[str], str | None]) -> None:
    run.makes(branch, lambda tip: [run.model.contents[tip]], parent)


async def _do_repack(run: Run) -> None:
    branch = run.branch()
    _same_content(run, branch, lambda tip: tip)
    made = await stats.repack(await run.handle(), branch, str(run), run.drawn.choice((0.1, 0.5)))
    if made is not None:
        run.made(branch, made)


async def _do_rewrite(run: Run) -> None:
    branch, method = run.branch(), run.drawn.choice(("new_commit", "amend"))
    is_amended = method == "amend"
    _same_content(run, branch, lambda tip: run.model.visible[tip] if is_amended else tip)
    handle = await run.handle()
    run.made(branch, await rearrange.rewrite_manifests(handle, str(run), branch, None, method))


async def _do_verify(run: Run) -> None:
    await verify.verify(await run.handle(), verify.VerifyOptions(), Reporter(None))


async def _do_repair(run: Run) -> None:
    """Nothing is damaged, so there is nothing to repair."""
    branch, handle = run.branch(), await run.handle()
    plan = await repair.plan_repair(handle, branch, virtual_sources=False)
    if not plan.is_empty and plan.base in run.model.live():
        raise Broken(f"{run} wants to repair what is not damaged: {plan}")


async def _do_upgrade(run: Run) -> None:
    run.permit.upgrades = True
    keeps_files = run.drawn.random() < 0.3
    await upgrade(
        await run.handle(),
        dry_run=False,
        delete_unused_v1_files=not keeps_files,
        report=Reporter(None),
    )


async def _do_migrate(run: Run) -> None:
    """Make a copy of another spec version, which has the same values."""
    source = await run.handle()
    objects = SimulatedObjects("migrated", run.client.network)
    version = lifecycle.new_format_version(run.drawn.choice((1, 2)))
    target = lifecycle.make_handle(
        objects.storage(),
        run.client.driver_for(objects),
        version,
        source.config,
        source.clock,
    )
    engine = LocalMigration(Migration(source, target, "copy"), Reporter(None))
    report = await migrate(engine, dry_run=False, check=True, reporter=Reporter(None))
    old_ids = {new: old for old, new in report.snapshots.items()}
    handle = open_plainly(objects)
    for name, tip in report.branches.items():
        found = await read_content(handle, tip)
        if found != run.model.contents[old_ids[tip]]:
            raise Broken(f"{run} gave branch {name} other values")


OPERATIONS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "commit": _do_commit,
    "append": _do_append,
    "fork": _do_fork,
    "amend": _do_amend,
    "merge": _do_merge,
    "cherry_pick": _do_cherry_pick,
    "undo": _do_undo,
    "squash": _do_squash,
    "reset": _do_reset,
    "create_branch": _do_create_branch,
    "delete_branch": _do_delete_branch,
    "create_tag": _do_create_tag,
    "delete_tag": _do_delete_tag,
    "expire": _do_expire,
    "collect": _do_collect,
    "collect_incrementally": _do_collect_incrementally,
    "repack": _do_repack,
    "rewrite": _do_rewrite,
    "verify": _do_verify,
    "repair": _do_repair,
    "upgrade": _do_upgrade,
    "migrate": _do_migrate,
    "read": _do_read,
}
WEIGHTS = {
    "commit": 10,
    "append": 4,
    "collect": 4,
    "expire": 3,
    "merge": 3,
    "read": 3,
    "migrate": 0.3,
}
"""How often an operation is drawn; others once."""
