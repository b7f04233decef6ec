"""The keys of the files of a repository with numbered branches."""

from __future__ import annotations

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ids import encode_base32
from icefloe.legacy.numbered.sequence import LONG, SHORT, sequence_name, sequence_number
from icefloe.records import NamedTuple

JSON = ".json"


class Names(NamedTuple):
    """The names of one generation."""

    refs: str
    branch: str
    """The prefix of a branch's name."""
    tag: str
    tag_end: str
    """The suffix of a tag's name."""
    characters: int
    """The number of characters of a sequence number in a file name."""
    snapshots: str
    manifests: str
    chunks: str
    attributes: str
    transactions: str
    id_size: int

    @property
    def is_parquet(self) -> bool:
        """Whether snapshots and manifests are Parquet files."""
        return False

    def branch_directory(self, name: str) -> str:
        return f"{self.branch}{ref_name(name)}/"

    def branch_key(self, name: str, number: int) -> str:
        """The file of a branch at a sequence number."""
        return self.branch_directory(name) + sequence_name(number, self.characters) + JSON

    def tag_key(self, name: str) -> str:
        return f"{self.tag}{ref_name(name)}{self.tag_end}"

    def tag_tombstone_key(self, name: str) -> str:
        """The tombstone of a tag in Icechunk 0.1.0 to 0.1.3."""
        return self.tag_key(name) + ".deleted"

    def number_of(self, key: str, branch: str) -> int | None:
        """The sequence number of a file in the directory of a branch."""
        name = key.removeprefix(self.branch_directory(branch))
        if not name.endswith(JSON) or len(name) != self.characters + len(JSON):
            return None
        return sequence_number(name.removesuffix(JSON))

    def branch_of(self, key: str) -> str | None:
        """The branch that a file below `refs` belongs to, or None."""
        if not key.startswith(self.branch):
            return None
        name, slash, _ = key.removeprefix(self.branch).partition("/")
        return name if slash and self.number_of(key, name) is not None else None

    def tag_of(self, key: str) -> str | None:
        """The tag that a file below `refs` belongs to, or None."""
        if not key.startswith(self.tag) or not key.endswith(self.tag_end):
            return None
        name = key.removeprefix(self.tag).removesuffix(self.tag_end)
        return None if "/" in name or not name else name

    def snapshot_key(self, wide_id: bytes) -> str:
        return self.snapshots + encode_base32(wide_id)

    def manifest_key(self, wide_id: bytes) -> str:
        return self.manifests + encode_base32(wide_id)

    def chunk_key(self, wide_id: bytes) -> str:
        return self.chunks + encode_base32(wide_id)

    def attributes_key(self, wide_id: bytes) -> str:
        return self.attributes + encode_base32(wide_id)

    def transaction_log_key(self, wide_id: bytes) -> str:
        return self.transactions + encode_base32(wide_id)


_SHORT_FOLDERS = ("s/", "m/", "c/", "a/", "t/", 16)
_LONG_FOLDERS = ("snapshots/", "manifests/", "chunks/", "attributes/", "transactions/", 12)

DOCUMENT = Names("r/", "r/", "r/", JSON, SHORT, *_SHORT_FOLDERS)
"""The names of document 000. It has no directory for transaction logs; `t/` is our choice."""
PROTOTYPE = Names("r/", "r/branch:", "r/tag:", "/ref.json", LONG, *_SHORT_FOLDERS)
"""The names that the program used at the time of document 000."""
FIRST_ALPHA = Names("refs/", "refs/branch:", "refs/tag:", "/ref.json", LONG, *_LONG_FOLDERS)
RELEASED = Names("refs/", "refs/branch.", "refs/tag.", "/ref.json", SHORT, *_LONG_FOLDERS)
"""From alpha.2 to 0.1.3."""

ALL_NAMES = (DOCUMENT, PROTOTYPE, FIRST_ALPHA, RELEASED)


def ref_name(name: str) -> str:
    """`name`, if it is valid in a file name."""
    if not name or "/" in name:
        raise InvalidInputError(
            f"ref name {name!r}: it must not be empty or contain '/'", ErrorKind.INVALID_REF_NAME
        )
    return name
