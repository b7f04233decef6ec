"""What keeps a repository healthy, written once for any engine.

- `engine`: the protocol of an engine, and the one of this process
- `gc`, `live`, `expire`: collection, reachability, and which snapshots stay
- `verify`, `checks`, `check_refs`, `read_chunks`, `findings`: verification
- `repair`, `rescue`: plans that mend references; a lost `repo` object or branch made again
- `stats`, `inspect`, `blame`, `summary`: sizes, files as plain values, who wrote a chunk
- `upgrade`: from spec version 1 to 2; `progress`: how far a long call is
"""
