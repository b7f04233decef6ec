"""Bytes to tables and back. No I/O, clock, randomness or logging in here.

- `columns`, `chunk_index`, `small`: byte strings, texts and chunk indices in flat arrays
- `flatbuffer`: every table of the format by name; tables to columns, all checked, and back
- `flexbuffers`, `metadata`: JSON-shaped values
- `envelope`: the header and zstd frame around every file; `layout`: where files are
- `snapshot`, `nodes`: snapshot files; their nodes, and the manifests of an array
- `manifest`, `manifest_lookup`, `chunk_refs`, `locations`: manifests and their references
- `repo_info`, `snapshot_table`, `operations_log`: the `repo` object of spec version 2
- `transaction_log`, `ref_files`, `config`: what a commit touched; refs of version 1; the saved
  configuration
"""
