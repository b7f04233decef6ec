"""Small rows as Arrow, against Arrow's own conversion."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import batch_of

SCHEMA = pa.schema(
    [("name", pa.string()), ("data", pa.binary()), ("count", pa.int64()), ("ndim", pa.int32())]
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.text(),
        st.none() | st.binary(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(0, 32),
    ),
    max_size=20,
)


@given(ROWS)
def test_rows_become_the_batch_that_arrow_makes_of_them(
    rows: list[tuple[str | None, bytes | None, int, int]],
) -> None:
    batch = batch_of(SCHEMA, rows)
    batch.validate(full=True)
    as_dicts = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    assert batch.equals(pa.RecordBatch.from_pylist(as_dicts, schema=SCHEMA))
