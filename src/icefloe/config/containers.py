"""Virtual chunk containers: which URL prefix is read through which object store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import quote, unquote

from icefloe import display
from icefloe.config.section import Option, Section, Text
from icefloe.display import Picture, ShownAsCode, qualified
from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from icefloe.config.stores import (
        S3,
        Azure,
        Gcs,
        Http,
        InMemory,
        LocalFileSystem,
        S3Compatible,
        Tigris,
    )


class ObjectStoreConfig(ShownAsCode):
    """A kind of object store with its options; make one of the variants.

    >>> from icefloe import ObjectStoreConfig, S3Options
    >>> ObjectStoreConfig.LocalFileSystem("/data")
    icefloe.ObjectStoreConfig.LocalFileSystem("/data")
    >>> isinstance(ObjectStoreConfig.S3(S3Options(region="eu-west-1")), ObjectStoreConfig)
    True
    """

    __slots__ = ()

    url_schemes: ClassVar[frozenset[str]] = frozenset()
    """URL schemes of the virtual chunks this kind of store can hold."""

    def _title_(self) -> str:
        return qualified(f"ObjectStoreConfig.{type(self).__name__}", "config")

    def _arguments_(self) -> list[tuple[str, Any]]:
        return [("", value) for value in self._values_().values()]

    def _values_(self) -> dict[str, Any]:
        return dict(vars(self))

    def _picture_(self) -> Picture:
        fields: list[tuple[str, Any]] = []
        for name, value in self._values_().items():
            if isinstance(value, Section):
                fields += value._picture_().fields
            else:
                fields.append((name, display.as_value(value)))
        return Picture(self._title_(), fields)

    InMemory: ClassVar[type[InMemory]]
    LocalFileSystem: ClassVar[type[LocalFileSystem]]
    Http: ClassVar[type[Http]]
    S3Compatible: ClassVar[type[S3Compatible]]
    S3: ClassVar[type[S3]]
    Gcs: ClassVar[type[Gcs]]
    Azure: ClassVar[type[Azure]]
    Tigris: ClassVar[type[Tigris]]


# -- Virtual chunk containers: which URL prefix is read through which object store.
#
# A container as persisted may be unusable (early releases wrote prefixes such as `s3`), so
# checking is separate from making one: `validate` for what a user passes in, and
# `usable_containers` for what a file held. Credentials are never part of a container.
#
# `ContainerSet` finds the container of a location. A prefix counts only at segment boundaries (it
# ends with `/`), bucket and host are compared as they are written, and a path is compared
# percent-decoded, because decoded it is what is fetched.


# --- locations -------------------------------------------------------------------------------

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


def parse_url(location: str) -> Url:
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


# --- containers ------------------------------------------------------------------------------

# No user or password: a URL prefix is shown and compared, and `a@b` reads like host a.
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s@:/\\?#\[\]%]+)(?::[0-9]+)?")
_LAST_PORT = 65535
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<host>[^/?#]*))?(?P<path>.*)", re.DOTALL
)


@dataclass(repr=False)
class VirtualChunkContainer(Section):
    """Chunks whose location starts with `url_prefix` are read from `store`.

    With a `name`, chunk locations can also be written `vcc://name/rest`.

    >>> store = icefloe.s3_store(region="eu-west-1", anonymous=True)
    >>> container = icefloe.VirtualChunkContainer("s3://archive/", store, name="archive")
    """

    shown_in = "virtual"

    url_prefix: Option[str, str] = Option(str, initial=MISSING, written_after="name")
    store: Option[ObjectStoreConfig, ObjectStoreConfig] = Option(
        ObjectStoreConfig, initial=MISSING, written_after="url_prefix"
    )
    name: Text = Option(str)

    def validate(self) -> None:
        """Raise InvalidInputError if no virtual chunk could be read through this container.

        >>> icefloe.VirtualChunkContainer("s3://archive/", icefloe.s3_store()).validate()
        """
        problem = _find_problem(self)
        if problem is not None:
            raise InvalidInputError(_report(self, problem), ErrorKind.BAD_PREFIX)


def usable_containers(
    persisted: Iterable[VirtualChunkContainer],
) -> tuple[list[VirtualChunkContainer], list[str]]:
    """The containers that can be read through, and why each other one cannot.

    Meant for containers out of a repository's config: a missing final `/` is added, and an
    unusable container is a line to report, not a reason to refuse the repository.
    """
    usable, problems = [], []
    for container in persisted:
        prefix = container.url_prefix
        candidate = replace(container, url_prefix=prefix if prefix.endswith("/") else prefix + "/")
        problem = _find_problem(candidate)
        if problem is None:
            usable.append(candidate)
        else:
            problems.append(_report(container, problem))
    return usable, problems


def _report(container: VirtualChunkContainer, problem: str) -> str:
    return f"virtual chunk container {container.url_prefix!r}: {problem}"


def _find_problem(container: VirtualChunkContainer) -> str | None:
    name, store = container.name, container.store
    if name is not None and (not name or "/" in name):
        return f"its name is {name!r}, expected a non-empty name without '/'"
    if not container.url_prefix.endswith("/"):
        return "the prefix must end with '/'"
    url = _URL.fullmatch(container.url_prefix)
    if url is None:
        return "the prefix must be an absolute URL such as 's3://bucket/'"
    scheme = url["scheme"].lower()
    if scheme not in store.url_schemes:
        takes = " or ".join(sorted(store.url_schemes)) or "no virtual chunks"
        return f"scheme {scheme!r} does not fit a {type(store).__name__} store, which takes {takes}"
    if re.search(r"[?#]", container.url_prefix):
        return "a prefix has no query or fragment; percent-encode '?' and '#' in names"
    try:
        # Before file URLs are normalised: a reader who authorises a prefix has to see its target.
        path = unquote(url["path"], errors="strict")
    except UnicodeDecodeError:
        return "the path is not UTF-8 once percent-decoded"
    if path.strip("/") and has_odd_segments(path):
        return "the path has empty, '.' or '..' segments"
    if scheme == "file":
        if url["host"] not in (None, "", "localhost"):
            return f"files are on this machine, not on host {url['host']!r}"
        return None if path.strip("/") else "a file prefix must name a directory"
    if not url["host"] or not _HOST.fullmatch(url["host"]):
        return f"host {url['host'] or ''!r} must be a bucket, container or server name"
    port = url["host"].rpartition("]")[2].partition(":")[2]
    if port and int(port) > _LAST_PORT:
        return f"port {port} is none"
    return None


class ContainerSource(NamedTuple):
    """The object a location leads to, and the container it is read through."""

    container: VirtualChunkContainer
    url: Url


class ContainerSet:
    """Containers that can be read through; of several that match, the longest prefix counts."""

    def __init__(self, containers: Iterable[VirtualChunkContainer]) -> None:
        self._containers = tuple(sorted(containers, key=lambda each: -len(each.url_prefix)))
        self._prefixes = [parse_url(each.url_prefix) for each in self._containers]
        self._by_name = {
            each.name: (each, prefix)
            for each, prefix in zip(self._containers, self._prefixes, strict=True)
            if each.name is not None
        }

    def __iter__(self) -> Iterator[VirtualChunkContainer]:
        return iter(self._containers)

    def __len__(self) -> int:
        return len(self._containers)

    def names(self) -> list[str]:
        """Names that `vcc://` locations can use."""
        return list(self._by_name)

    def expand(self, location: str) -> str:
        """The absolute URL of a location; only `vcc://` ones change."""
        if not location.startswith(f"{VCC}://"):
            return location
        container, rest = self._named(location)
        return container.url_prefix + rest

    def resolve(self, location: str) -> ContainerSource:
        """Find the container of a location.

        Raises:
            InvalidInputError: there is none, kind `no-container-for-virtual-chunk`, or the
                location is no URL, kind `invalid-virtual-ref`.
        """
        stored = stored_location(location)
        if stored.startswith(f"{VCC}://"):
            container, rest = self._named(stored)
            url = parse_url(container.url_prefix + rest)
            if not _covers(self._by_name[container.name or ""][1], url):
                raise _no_container(f"{location!r} leads out of {container.url_prefix!r}")
            return ContainerSource(container, url)
        url = parse_url(stored)
        for container, prefix in zip(self._containers, self._prefixes, strict=True):
            if _covers(prefix, url):
                return ContainerSource(container, url)
        raise _no_container(
            f"{location!r} lies below no container's prefix; edit the repository configuration: "
            "add a container for it with RepositoryConfig.set_virtual_chunk_container"
        )

    def _named(self, location: str) -> tuple[VirtualChunkContainer, str]:
        name, slash, rest = location.partition("://")[2].partition("/")
        found = self._by_name.get(name)
        if found is None or not slash:
            known = ", ".join(map(repr, self._by_name)) or "none"
            raise _no_container(
                f"{location!r}: no container is called {name!r}; names in the configuration: "
                f"{known}"
                if found is None
                else f"{location!r}: expected '/' and a path behind the container's name"
            )
        return found[0], rest


def _covers(prefix: Url, url: Url) -> bool:
    return (
        prefix.scheme == url.scheme
        and prefix.authority == url.authority
        and url.path.startswith(prefix.path)
    )


def _no_container(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"virtual chunk location {problem}", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    )
