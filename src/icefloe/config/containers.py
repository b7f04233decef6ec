"""Virtual chunk containers: which URL prefix is read through which object store.

A container as persisted may be unusable (early releases wrote prefixes such as `s3`), so
checking is separate from making one: `validate` for what a user passes in, and
`usable_containers` for what a file held. Credentials are never part of a container.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import unquote

from icefloe.config.section import Section
from icefloe.config.stores import ObjectStoreConfig
from icefloe.config.virtual_urls import has_odd_segments
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import record

# No user or password: a URL prefix is shown and compared, and `a@b` reads like host a.
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s@:/\\?#\[\]%]+)(?::[0-9]+)?")
_LAST_PORT = 65535
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<host>[^/?#]*))?(?P<path>.*)", re.DOTALL
)


@record()
class VirtualChunkContainer(Section):
    """Chunks whose location starts with `url_prefix` are read from `store`.

    With a `name`, chunk locations can also be written `vcc://name/rest`.
    """

    shown_in = "virtual"

    url_prefix: str
    store: ObjectStoreConfig
    name: str | None = None

    def validate(self) -> None:
        """Raise InvalidInputError if no virtual chunk could be read through this container."""
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
