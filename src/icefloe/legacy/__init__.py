"""The generations of the format before spec version 1.

- `detect`, `older`: which generation a storage holds. `api.handles` registers `older` with
  `repo.lifecycle.register_older`, so nothing below this package imports it.
- `numbered`: files of repositories with numbered branches, as JSON, MessagePack or Parquet.
- `state_file`: files of datasets with one state file, as JSON and Parquet.
- `numbered_format`, `state_format`, `base`: their refs, history and commits.
- `numbered_assets`, `state_assets`, `base`: their files as today's snapshots and manifests.
- `maintenance`: their expiration, collection and verification.
- `migrate`, `convert`: from any generation to spec version 2, or 1.

The codecs (`checked`, `detect`, `numbered`, `state_file`) do no I/O.
"""
