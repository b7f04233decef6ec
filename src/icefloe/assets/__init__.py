"""Typed access to stored files: from ids to decoded objects, with caches.

- `assets`: files by id, decoded and cached; bytes of chunks; listings as columns
- `cache`: bounded caches, and loads that concurrent readers share
- `computed_logs`: the difference of two snapshots where no log is stored
- `virtual`, `virtual_sources`: virtual chunks: who may read them, and how they are read
"""
