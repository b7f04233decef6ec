"""Metadata items of snapshots and repositories, and the encodings of their values."""
