"""Shared manifests in use never have too many dead references, whatever commits there were.

So a collection leaves little beside what is live: of every manifest in use at most a stated share
of references, and of bytes of chunks, belongs to no array.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hypothesis import event, example, given
from hypothesis import strategies as st

import icefloe
from icefloe.changes.shared_manifests import MAX_DEAD_SHARE
from icefloe.format.layout import CHUNKS
from icefloe.repo.session import all_chunks
from icefloe.storage.run import run_blocking
from tests.interop.test_shared_manifests import document, get, key_of, put
from tests.safety.worlds import driver_of

NUM_ARRAYS = 14
SIZES = (1, 1, 2, 3, 5, 12)
"""Chunks of an array that is made, by its number; the last has more than may share a manifest."""
MOST_REFS = 8
Model = dict[str, tuple[int, dict[int, bytes]]]
"""By path: how many chunks there may be, and those that there are."""


class Edit(NamedTuple):
    """What a commit does to one array. It is made if it is not there."""

    kind: str
    number: int
    at: int

    @property
    def path(self) -> str:
        return f"{'ab'[self.number % 2]}/v{self.number}"

    def run(self, session: icefloe.Session, model: Model, value: int) -> None:
        # Chunks of one array are much larger than the others.
        data = b"%06d" % value * (200 if self.number == 3 else 10)
        if self.path not in model:
            size = SIZES[self.number % len(SIZES)]
            chunks = dict.fromkeys(range(size), data)
            model[self.path] = size, chunks
            put(session, {f"{self.path}/zarr.json": document((size,))})
            put(session, {key_of(self.path, (at,)): data for at in chunks})
            return
        if self.kind == "delete array":
            del model[self.path]
            put(session, {f"{self.path}/zarr.json": None})
            return
        size, chunks = model[self.path]
        if self.kind == "resize":
            kept = {at: old for at, old in chunks.items() if at <= self.at}
            gone = [at for at in chunks if at > self.at]
            put(session, {key_of(self.path, (at,)): None for at in gone})
            put(session, {f"{self.path}/zarr.json": document((self.at + 1,))})
            model[self.path] = self.at + 1, kept
        elif self.kind == "delete chunk":
            chunks.pop(self.at % size, None)
            put(session, {key_of(self.path, (self.at % size,)): None})
        else:
            some = range(size) if self.kind == "all chunks" else [self.at % size]
            chunks.update(dict.fromkeys(some, data))
            put(session, {key_of(self.path, (at,)): data for at in some})


KINDS = ("all chunks", "all chunks", "one chunk", "delete chunk", "delete array", "resize")
edits = st.builds(Edit, st.sampled_from(KINDS), st.integers(0, NUM_ARRAYS - 1), st.integers(0, 11))
commits = st.lists(
    st.lists(edits, min_size=1, max_size=5, unique_by=lambda edit: edit.number),
    min_size=3,
    max_size=10,
)


def check_shares(repo: icefloe.Repository, limit: float = MAX_DEAD_SHARE) -> int:
    """Compare what manifests have with what arrays read; returns the bytes of living chunks."""
    workspace = repo.readonly_session("main").workspace
    snapshot = workspace.state.snapshot
    living: dict[str, list[int]] = {}
    total = 0
    for node in snapshot.nodes:
        if node.array is not None and node.array.manifests:
            refs = run_blocking(all_chunks(workspace.handle, workspace.state.view, node))
            total += int(refs.length.sum())
            if len(node.array.manifests) == 1:
                counts = living.setdefault(node.array.manifests[0].id.text, [0, 0])
                counts[0] += len(refs)
                counts[1] += int(refs.length.sum())
    for info in snapshot.manifest_files.values():
        manifest = run_blocking(workspace.handle.assets.manifest(info.id, info.size_bytes))
        if info.id.text in living:
            all_refs = sum(len(array) for array in manifest.arrays)
            num_bytes = sum(int(array.refs.length.sum()) for array in manifest.arrays)
            for part, whole in zip(living[info.id.text], (all_refs, num_bytes), strict=True):
                assert part >= (1 - limit) * whole - 1e-9, (info, part, whole)
    return total


_RESIZED = [[Edit("all chunks", 0, 0)]] * 2 + [[Edit("all chunks", 4, 0), Edit("resize", 2, 2)]]


@example(first=True, plays=_RESIZED, spec=2, overtaken=False)  # it used to stay where it was
@given(first=st.booleans(), plays=commits, spec=st.sampled_from([1, 2]), overtaken=st.booleans())
def test_the_share_of_dead_references_is_bounded(
    first: bool, plays: list[list[Edit]], spec: int, overtaken: bool
) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    config.manifest = icefloe.ManifestConfig(
        max_shared_refs_per_array=MOST_REFS, max_refs_per_shared_manifest=20
    )
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    model: Model = {}
    everything = [Edit("all chunks", number, 0) for number in range(NUM_ARRAYS)]
    for turn, some in enumerate([everything, *plays] if first else plays):
        before = {path: (size, dict(chunks)) for path, (size, chunks) in model.items()}
        session = repo.writable_session("main")
        for at, edit in enumerate(some):
            edit.run(session, model, 10 * turn + at)
        if not session.has_uncommitted_changes:
            continue
        others = sorted(before.keys() - {edit.path for edit in some})
        if overtaken and others:
            event("overtaken")
            other = repo.writable_session("main")
            edit = Edit("all chunks", int(others[0].split("v")[1]), 0)
            edit.run(other, model, 10 * turn + 9)
            other.commit("first")
        session.commit("turn", rebase_with=icefloe.ConflictDetector())
        check_shares(repo)
        keys = {
            key_of(path, (at,)): data
            for path, (_, chunks) in model.items()
            for at, data in chunks.items()
        }
        assert get(repo.readonly_session("main"), keys) == keys
    live = check_shares(repo)
    later = datetime.now(UTC) + timedelta(days=1)
    repo.expire_snapshots(later)
    repo.garbage_collect(later)
    stored = sum(info.size_bytes for info in run_blocking(driver_of(storage).list(CHUNKS)))
    assert live <= stored <= live / (1 - MAX_DEAD_SHARE) + 1e-9
