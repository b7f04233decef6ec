"""The generations of the format, oldest first."""

from __future__ import annotations

from enum import StrEnum


class Generation(StrEnum):
    """What the files of a repository follow. Each generation has its own names and bytes."""

    STATE_FILE = "state-file"
    """`state.json` and Parquet files, as document 003 has it."""
    NUMBERED = "numbered"
    """Numbered branch files below `r/` and ids of 16 bytes, as document 000 has it."""
    ALPHA = "alpha"
    """Icechunk 0.1.0-alpha.1 to alpha.8: files are MessagePack and nothing else."""
    BETA = "beta"
    """Icechunk 0.1.0-alpha.10 to 0.1.3: MessagePack behind the header of document 004."""
    SPEC_1 = "spec-1"
    SPEC_2 = "spec-2"

    @property
    def noun(self) -> str:
        """What errors call a repository of this generation."""
        return _NOUNS[self]


_NOUNS = {
    Generation.STATE_FILE: "a dataset with a state file (2024-08)",
    Generation.NUMBERED: "a repository with numbered refs (2024-10)",
    Generation.ALPHA: "a repository of Icechunk 0.1.0-alpha.1 to alpha.8",
    Generation.BETA: "a repository of Icechunk 0.1.0-alpha.10 to 0.1.3",
    Generation.SPEC_1: "a repository of spec version 1",
    Generation.SPEC_2: "a repository of spec version 2",
}
