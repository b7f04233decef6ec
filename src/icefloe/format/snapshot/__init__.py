"""Snapshot files: nodes as columns, decoded and encoded."""
