"""The functions people call to say where a repository is. Names and arguments are Icechunk's.

None of them makes a request. Here are memory, directories and the web; buckets of S3 services are
in `s3.py`, Google and Azure in `cloud.py`, URLs in `urls.py`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.on_demand import on_demand
from icefloe.storage.places.locations import (
    HttpLocation,
    LocalLocation,
    MemoryLocation,
    RedirectLocation,
    as_headers,
)
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.storage.drivers import memory
else:
    memory = on_demand("icefloe.storage.drivers.memory")


def in_memory_storage() -> Storage:
    """A repository in the memory of this process, gone with it."""
    name = uuid.uuid4().hex
    return Storage(MemoryLocation(name, memory.memory_objects(name)))


def local_filesystem_storage(path: str | PathLike[str], *, durable: bool = True) -> Storage:
    """A repository in a directory, created with the repository.

    Safe for any number of processes that use icefloe; see `storage/drivers/local.py` for what is
    guaranteed. `durable=False` does not wait for the disk: faster, but a power failure may lose
    commits, or leave a repository that cannot be opened.

    Args:
        path: of the directory.
    """
    text = os.fspath(path)
    try:
        is_path = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_path = False
    if "://" in text:
        raise InvalidInputError(
            f"{text!r} is a URL, and local_filesystem_storage takes the path of a directory; use "
            f"storage_from_url({text!r})",
            ErrorKind.INVALID_PATH,
        )
    if not text or not is_path:
        raise InvalidInputError(f"{path!r} is not the path of a directory", ErrorKind.INVALID_PATH)
    return Storage(LocalLocation(os.path.abspath(text), durable))  # noqa: PTH100 - keeps symlinks


def http_storage(
    base_url: str,
    opts: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A repository below a URL of a web server, to be read only.

    `opts` are options of the HTTP client, such as `timeout` or `proxy_url`.

    Args:
        base_url: `http://` or `https://`, the folder of the repository.
        headers: sent with every request.
    """
    url = _checked_url("http_storage", base_url)
    if "?" in url or "#" in url:
        raise InvalidInputError(
            "http_storage got a URL with a query or fragment, which files below it cannot have",
            ErrorKind.CANNOT_PARSE_URL,
        )
    return Storage(HttpLocation(url, as_headers(opts), as_headers(headers)))


def redirect_storage(base_url: str) -> Storage:
    """The repository that a web address redirects to, opened anonymously.

    The address is asked once per process, when the storage is first used.

    Args:
        base_url: a URL that redirects to the place.
    """
    return Storage(RedirectLocation(_checked_url("redirect_storage", base_url)))


def _checked_url(function: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StorageError(
            f"{function} got a URL that starts with {parts.scheme!r}, expected 'http://host' or "
            "'https://host'",
            ErrorKind.CANNOT_PARSE_URL,
        )
    if "@" in parts.netloc:
        raise InvalidInputError(
            f"{function} got a URL with a user or password in it, which would be printed; use "
            "a header instead",
            ErrorKind.CANNOT_PARSE_URL,
        )
    return url
