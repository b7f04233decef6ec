"""Packs by themselves: what is in them, in which order, and what readers see meanwhile."""

from __future__ import annotations

import itertools

import pytest

from icefloe.changes.change_set import PENDING, ChangeSet, Pack, Packs, check_placed
from icefloe.changes.chunk_edits import Coordinates
from icefloe.errors import InternalError
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.nodes import ArrayData, Dimension, Node
from icefloe.ids import ChunkId, NodeId


class Desk:
    """A change set with one array and its packs."""

    def __init__(self) -> None:
        self.changes, self.packs = ChangeSet(), Packs()
        shape = (Dimension(100, 100), Dimension(100, 100))
        self.node = Node(NodeId(b"nodenode"), "/a", b"{}", ArrayData(shape))
        self.numbers = itertools.count(1)

    def add(self, at: Coordinates, data: bytes) -> int:
        edits = self.changes.edits(self.node)
        return self.packs.add(edits, self.node.id, at, data, self.new_id)

    def new_id(self) -> ChunkId:
        return ChunkId(next(self.numbers).to_bytes(12, "big"))

    def ref(self, at: Coordinates) -> ChunkRef | None:
        return self.changes.edits(self.node).find(at)[1]

    def read(self, at: Coordinates) -> bytes | None:
        ref = self.ref(at)
        return None if ref is None else self.packs.filled(ref, self.node.id, at).inline

    def close(self) -> list[Pack]:
        self.packs.close(self.changes)
        return self.packs.take()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_chunks_are_laid_out_by_coordinates_whatever_order_they_came_in(desk: Desk) -> None:
    values = {(i, j): f"{i},{j};".encode() for i in range(3) for j in (0, 2, 11)}
    for at in sorted(values, key=lambda at: (at[1], -at[0])):
        desk.add(at, values[at])
    assert all(ref and ref.offset == PENDING for ref in map(desk.ref, values))
    assert {at: desk.read(at) for at in values} == values
    [pack] = desk.close()
    assert pack.data == b"".join(values[at] for at in sorted(values))
    assert {at: desk.read(at) for at in values} == values
    desk.packs.drop([pack])
    for at, value in values.items():
        ref = desk.ref(at)
        assert ref is not None
        assert (ref.kind, ref.chunk_id) == (ChunkKind.NATIVE, pack.id)
        assert pack.data[ref.offset : ref.offset + ref.length] == value
        assert desk.read(at) is None, "a stored chunk is read from the storage"
    assert desk.packs.num_bytes == 0


def test_a_chunk_written_again_replaces_the_waiting_one(desk: Desk) -> None:
    desk.add((0, 0), b"first")
    desk.add((0, 1), b"other")
    assert desk.add((0, 0), b"2") == 6
    [pack] = desk.close()
    assert pack.data == b"2other"
    desk.add((0, 1), b"after closing")
    assert desk.read((0, 1)) == b"after closing"
    assert desk.read((0, 0)) == b"2"
    assert [pack.data for pack in desk.close()] == [b"after closing"]


def test_what_is_not_in_the_session_any_more_is_left_out(desk: Desk) -> None:
    for column in range(5):
        desk.add((0, column), b"%d" % column)
    edits = desk.changes.edits(desk.node)
    edits.set((0, 1), None)
    edits.set((0, 2), ChunkRef(ChunkKind.INLINE, 0, 1, inline=b"x"))
    edits.set_table(ChunkRefs.native([[0, 3]], bytearray(12), [0], [7]))
    assert (desk.read((0, 0)), desk.read((0, 1)), desk.read((0, 2))) == (b"0", None, b"x")
    [pack] = desk.close()
    assert pack.data == b"04"
    assert (desk.read((0, 0)), desk.read((0, 4))) == (b"0", b"4")
    assert desk.ref((0, 3)) == ChunkRef(ChunkKind.NATIVE, 0, 7, ChunkId(bytes(12)))
    refs, _ = edits.columns()
    assert refs.offset.tolist() == [0, 0, 0, 1]
    desk.add((1, 1), b"gone with its array")
    del desk.changes.chunks[desk.node.id]
    assert [pack.data for pack in desk.close()] == []
    assert desk.packs.num_bytes == len(b"04")


def test_packs_are_stored_by_one_until_that_fails(desk: Desk) -> None:
    desk.add((0, 0), b"a")
    taken = desk.close()
    assert desk.packs.num_taken == 1
    assert desk.packs.take() == []
    assert desk.packs.take(all_closed=True) == taken
    desk.packs.give_back(taken)
    assert desk.packs.num_taken == 0
    desk.add((0, 1), b"open, so it stays")
    assert desk.packs.take() == taken
    assert desk.read((0, 0)) == b"a"
    desk.packs.drop(taken)
    assert desk.packs.num_bytes == len(b"open, so it stays")


def test_a_reference_that_lost_its_pack_is_found_before_it_is_committed(desk: Desk) -> None:
    desk.add((0, 0), b"a")
    with pytest.raises(InternalError, match="wait in a pack that is gone"):
        check_placed(desk.changes)
    desk.close()
    check_placed(desk.changes)
    desk.add((0, 1), b"b")
    refs, _ = desk.changes.edits(desk.node).columns()
    desk.close()
    desk.changes.edits(desk.node).set_table(refs)  # as they were before the pack was closed
    with pytest.raises(InternalError, match="wait in a pack that is gone"):
        check_placed(desk.changes)
