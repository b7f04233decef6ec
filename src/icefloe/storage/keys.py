"""Object keys: which ones are accepted, and how they are spelled where not every character can be.

Icechunk writes to directories, Google and Azure through a client that percent-encodes some
characters of each segment; on S3 it writes keys as they are. To find each other's files, so do we.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.driver import Span

OWN_DIRECTORY = ".icefloe"
"""Where a directory storage keeps its locks and unfinished files. Not part of the repository."""

PROBE_DIRECTORY = ".icefloe-probe"
"""Where conditional writes are tried out. Objects left here by a crash are not repository files."""

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_NEEDS_ENCODING = re.compile(r"[^ !$&'()+,\-./0-9:;=@A-Z_a-z]+")


def check_key(key: str) -> None:
    """Raise InvalidInputError unless `key` names one object below the root.

    >>> check_key("refs/branch.main/ref.json")
    """
    segments = key.split("/")
    if "\0" in key or not key or "" in segments or "." in segments or ".." in segments:
        raise InvalidInputError(
            f"{key!r} is not a key: expected names joined by '/', none of them empty, '.' or '..'",
            ErrorKind.INVALID_KEY,
        )


def encode_key(key: str) -> str:
    """`key` with everything percent-encoded that Icechunk encodes in file and blob names.

    >>> encode_key("refs/tag.ä~b c")
    'refs/tag.%C3%A4%7Eb c'
    """
    return _NEEDS_ENCODING.sub(_percent, key)


def decode_key(text: str) -> str:
    """The key behind a name made by `encode_key`; other names stay as they are.

    >>> decode_key("refs/tag.%C3%A4%7Eb c"), decode_key("100%")
    ('refs/tag.ä~b c', '100%')
    """
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def object_not_found(key: str, location: str) -> StorageError:
    """There is no object `key`."""
    return StorageError(f"no object {key!r} in {location}", ErrorKind.OBJECT_NOT_FOUND)


def check_span(key: str, span: Span, size_bytes: int, location: str) -> None:
    """Raise StorageError unless `span` is wholly inside an object of `size_bytes`."""
    if span.start < 0 or span.length < 0 or span.start + span.length > size_bytes:
        raise StorageError(
            f"object {key!r} in {location} has {size_bytes} bytes, expected at least "
            f"{span.start + span.length} to read {span.length} from {span.start}",
            ErrorKind.INVALID_OBJECT_SIZE,
        )


def microseconds(time: datetime) -> int:
    """A datetime as microseconds since the epoch, exactly."""
    return (time - _EPOCH) // _MICROSECOND


def instant(time_us: int) -> datetime:
    """Microseconds since the epoch as a datetime in UTC, exactly."""
    return _EPOCH + time_us * _MICROSECOND


def moment(timestamp_seconds: float) -> datetime:
    """A POSIX timestamp as a datetime in UTC."""
    return datetime.fromtimestamp(timestamp_seconds, UTC)
