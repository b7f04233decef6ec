"""The `repo` object of spec version 2: refs, snapshots, operations log."""
