"""Ids in, decoded objects out: the typed side of storage, with its caches."""
