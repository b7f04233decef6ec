"""The operations, each written once as a coroutine that awaits only storage.

- `handle`: a repository through one driver; `FormatVersion`: what differs by version
- `spec2`, `spec2_publish`, `spec1`, `creation`: both spec versions
- `lifecycle`: create, open, recognise; the registry of older generations
- `refs`, `history`: branches, tags, snapshots, operations
- `session`, `forks`, `find_chunks`: a session and what it sees
- `commit`, `rebase`, `gc_guard`: publishing while others write and collect garbage
- `replay`, `commit_notes`: cherry-pick, undo, merge, squash, and what commits note of them
- `rearrange`: moving nodes and chunks, and writing all manifests again
"""
