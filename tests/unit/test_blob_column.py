"""Columns of byte strings and texts: what goes in comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import BlobColumn

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=9)


@given(TEXTS, st.booleans(), st.booleans())
def test_texts_come_out_as_they_went_in(
    texts: list[str], with_zeros: bool, with_absent: bool
) -> None:
    """Few and many; texts with and without zeros are cut apart in different ways."""
    kept: list[str | None] = [text if with_zeros else text.replace("\0", "ü") for text in texts]
    values = [*kept, None] if with_absent else kept
    for times in (1, 40):
        column = BlobColumn.from_values(values * times, is_text=True)
        assert column.to_list() == values * times
        assert column[2:-1].to_list() == (values * times)[2:-1]


@pytest.mark.parametrize("length", [0, 1, 32, 33, 100])
def test_texts_of_any_length_come_out_as_they_went_in(length: int) -> None:
    texts = [f"{number:03}".ljust(length, "x")[:length] for number in range(100)]
    assert BlobColumn.from_values(texts, is_text=True).to_list() == texts
