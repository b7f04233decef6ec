"""Locations of virtual chunks: URLs as text, the form they are stored in, and the key they name.

Nothing here is compared with containers yet; see `container_set.py`.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import NamedTuple

VCC = "vcc"
"""The scheme of locations relative to a named container: `vcc://name/rest`."""

_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_FILE = re.compile(r"file:(.*)", re.DOTALL | re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DOT = re.compile(r"\.|%2e", re.IGNORECASE)
_DOUBLE_DOT = re.compile(r"(\.|%2e){2}", re.IGNORECASE)
# What a file URL keeps as it is in its path; everything else is percent-encoded.
_KEPT_IN_PATH = "!$%&'()*+,-./:;=@[\\]^_|~"


class Url(NamedTuple):
    """A location, taken apart. `path` is percent-decoded and has no query or fragment."""

    scheme: str
    authority: str
    path: str

    @property
    def key(self) -> str:
        """The name of the object in its bucket, or of the file below `/`."""
        return self.path.removeprefix("/")


def stored_location(location: str) -> str:
    """The form in which a location is stored.

    >>> stored_location("S3://bucket/a//b"), stored_location("file:///data/x/../a b")
    ('s3://bucket/a//b', 'file:///data/a%20b')

    Raises:
        InvalidInputError: it is not an absolute URL, kind `invalid-virtual-ref`.
    """
    file = _FILE.fullmatch(location.strip("".join(map(chr, range(33)))))
    if file is not None:
        return _normal_file_url(file[1], location)
    url = _ABSOLUTE.fullmatch(location)
    if url is None:
        if _SCHEME.match(location):
            raise _invalid(location, "it has no '://' and path")
        raise _invalid(location, "it is not an absolute URL such as 's3://bucket/key'")
    if not url[2]:
        if url[1].lower() == VCC:
            raise InvalidInputError(
                f"virtual chunk location {location!r} names no container: expected "
                "'vcc://name/rest', with the name of a container of the configuration",
                ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            )
        raise _invalid(location, "it names no bucket or host")
    return url[1].lower() + location[len(url[1]) :]


def parse(location: str) -> Url:
    """Take an absolute location apart; file URLs are normalised first.

    Raises:
        InvalidInputError: it is none, or its key is not text, kind `invalid-virtual-ref`.
    """
    url = _ABSOLUTE.fullmatch(stored_location(location))
    assert url is not None
    try:
        return Url(url[1], url[2], unquote(url[3], errors="strict"))
    except UnicodeDecodeError:
        raise _invalid(location, "its path is not UTF-8 once percent-decoded") from None


def has_odd_segments(path: str) -> bool:
    """Whether a path has empty, `.` or `..` segments; a slash at the end does not count."""
    segments = path.removeprefix("/").removesuffix("/").split("/")
    return any(segment in ("", ".", "..") for segment in segments)


def _normal_file_url(rest: str, location: str) -> str:
    """As the URL standard has it: dot segments resolved, odd characters percent-encoded."""
    rest = rest.replace("\t", "").replace("\n", "").replace("\r", "")
    end = min((at for at in (rest.find("?"), rest.find("#")) if at >= 0), default=len(rest))
    path, tail = rest[:end].replace("\\", "/"), rest[end:]
    host = ""
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = slash + path
    elif not path.startswith("/"):
        raise _invalid(location, "a file URL needs an absolute path")
    segments: list[str] = []
    parts = path.split("/")[1:]
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if _DOUBLE_DOT.fullmatch(part):
            del segments[-1:]
        elif not _DOT.fullmatch(part):
            segments.append(part)
            continue
        if is_last:
            segments.append("")
    host = "" if host.lower() == "localhost" else host.lower()
    encoded = quote("/".join(segments), safe=_KEPT_IN_PATH, errors="surrogatepass")
    return f"file://{host}/{encoded}{tail}"


def _invalid(location: str, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"virtual chunk location {location!r}: {problem}", ErrorKind.INVALID_VIRTUAL_REF
    )
