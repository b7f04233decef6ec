"""What a transaction means, decided without touching storage.

- `change_set`, `chunk_edits`: what a session has changed
- `commit_plan`, `splits`, `shared_manifests`: what a commit writes, and which reference goes into
  which manifest
- `conflicts`, `three_way`, `diff`: what two writers did; merges; differences as people read them
"""
