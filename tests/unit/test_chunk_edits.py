"""Uncommitted chunk changes against a dictionary that does the same."""

from hypothesis import given
from hypothesis import strategies as st

from icefloe.changes.chunk_edits import ChunkEdits, Coordinates
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs

coordinates = st.tuples(st.integers(0, 3), st.integers(0, 3))
payload = st.binary(min_size=1, max_size=4)
step = st.one_of(
    st.tuples(st.just("set"), coordinates, payload),
    st.tuples(st.just("delete"), coordinates),
    st.tuples(st.just("table"), st.dictionaries(coordinates, payload, min_size=1, max_size=5)),
)


def inline(data: bytes) -> ChunkRef:
    return ChunkRef(ChunkKind.INLINE, 0, len(data), inline=data)


@given(st.lists(step, max_size=12))
def test_the_last_change_of_a_chunk_counts(steps: list[tuple[object, ...]]) -> None:
    edits = ChunkEdits(2)
    model: dict[Coordinates, bytes | None] = {}
    for name, *rest in steps:
        if name == "set":
            at, data = rest
            edits.set(at, inline(data))  # type: ignore[arg-type]
            model[at] = data  # type: ignore[index, assignment]
        elif name == "delete":
            edits.set(rest[0], None)  # type: ignore[arg-type]
            model[rest[0]] = None  # type: ignore[index]
        else:
            table: dict[Coordinates, bytes] = rest[0]  # type: ignore[assignment]
            edits.set_table(ChunkRefs.inline_chunks([*table], [*table.values()]))
            model.update(table)
    refs, deleted = edits.columns()
    kept = {at: data for at, data in model.items() if data is not None}
    assert {tuple(row): refs.row(at).inline for at, row in enumerate(refs.index.tolist())} == kept
    assert {tuple(row) for row in deleted.tolist()} == model.keys() - kept.keys()
    assert list(edits) == sorted(model)
    for at in [(x, y) for x in range(4) for y in range(4)]:
        is_touched, ref = edits.find(at)
        assert is_touched == (at in model)
        assert (None if ref is None else ref.inline) == model.get(at)
