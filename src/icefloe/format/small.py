"""What counts as small: every size below which another way to the same result in memory is taken.

The general path is right for any size, none and one included: a test runs it with all of these off.
"""

from __future__ import annotations

ROWS = 64
"""Rows of a column: up to this, slicing byte strings one by one beats setting up numpy. Serves
small commits."""

NODES = 64
"""Nodes of a snapshot, and manifests of all its arrays: up to this, values beat columns. Serves
small commits."""

LENGTHS = 16
"""Distinct lengths in a column: up to this, a pass for each beats sorting all rows. Serves
manifests of many references."""

DICTIONARY_ROWS = 4096
"""Rows of a column: up to this, its distinct values are found before Arrow is loaded. Serves
manifests of virtual references."""

REFS = (1 << 15) - 1
"""References of an array: up to this, decoding all takes no longer than finding one in the bytes.
Serves the lookup of one reference among many."""

LOCATIONS_SHARE = 1 / 8
"""Share of the locations of a column: up to this, inflating one by one beats inflating all. Serves
the listing of some virtual references."""
