"""What counts as small: every size below which another way to the same result in memory is taken.

The general path is right for any size, none and one included: a test runs it with all of these off.
"""

from __future__ import annotations

ROWS = 64
"""Rows of a column, nodes of a snapshot, manifests of its arrays: up to this, values one by one
beat setting up numpy. Serves small commits."""

DICTIONARY_ROWS = 4096
"""Rows of a column: up to this, its distinct values are found before Arrow is loaded. Serves
manifests of virtual references."""

LOCATIONS_SHARE = 1 / 8
"""Share of the locations of a column: up to this, inflating one by one beats inflating all. Serves
the listing of some virtual references."""

EDITS_SHARE = 1 / 4096
"""Edits per reference of an array: up to this, edits are put between references and nothing is
sorted. Serves a commit of few chunks to a large array."""

REFS = (1 << 15) - 1
"""References of an array: up to this, decoding all takes no longer than finding one in the bytes.
Serves the lookup of one reference among many."""

PROBES_SHARE = 1 / 16
"""Share of the references of an array: up to this, looking at single ones in the bytes takes no
longer than decoding all. Serves the lookup of few references among many."""
