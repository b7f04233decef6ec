"""The generations of the format, oldest first."""

from __future__ import annotations

from enum import StrEnum


class Generation(StrEnum):
    """A generation of the format. Each has its own file names and encodings."""

    STATE_FILE = "state-file"
    """`state.json` and Parquet files, as in document 003."""
    NUMBERED = "numbered"
    """Numbered branch files below `r/` and 16-byte ids, as in document 000."""
    ALPHA = "alpha"
    """Icechunk 0.1.0-alpha.1 to alpha.8: files are MessagePack without a header."""
    BETA = "beta"
    """Icechunk 0.1.0-alpha.10 to 0.1.3: MessagePack after the header of document 004."""
    SPEC_1 = "spec-1"
    SPEC_2 = "spec-2"

    @property
    def noun(self) -> str:
        """The name of such a repository in errors."""
        return _NOUNS[self]


_NOUNS = {
    Generation.STATE_FILE: "a dataset with a state file (2024-08)",
    Generation.NUMBERED: "a repository with numbered refs (2024-10)",
    Generation.ALPHA: "a repository of Icechunk 0.1.0-alpha.1 to alpha.8",
    Generation.BETA: "a repository of Icechunk 0.1.0-alpha.10 to 0.1.3",
    Generation.SPEC_1: "a repository of spec version 1",
    Generation.SPEC_2: "a repository of spec version 2",
}
