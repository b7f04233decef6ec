"""Where a repository can be: plain descriptions of each kind of storage.

They compare, hash and pickle, know the settings that are right for their kind, and print without
secrets. Two that have the same `place` lead to the same objects. Nothing here connects anywhere;
see `client.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from icefloe.config.repository import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
)
from icefloe.display import ShownAsCode
from icefloe.errors import ErrorKind, InternalError, InvalidInputError

if TYPE_CHECKING:
    from icefloe.credentials import (
        AnyAzureCredential,
        AnyGcsCredential,
        AnyS3Credential,
    )
    from icefloe.storage.memory import MemoryObjects

_HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CLIENT = re.compile(f"{_HEADER_NAME}(/{_HEADER_NAME})?")
_HEADER_VALUE = r"[\t\x20-\x7e\x80-\U0010ffff]*"

Headers = tuple[tuple[str, str], ...]
"""HTTP headers, or other text options, in a form that can be hashed."""


Shown = dict[str, str | None]
"""What a storage shows of itself, without secrets; empty values are left out."""

Place = tuple[str | None, ...]
"""Which objects these are, apart from how one signs in to them."""


def as_headers(*several: Mapping[str, str] | None) -> Headers:
    """Mappings merged, later ones winning, and sorted by name."""
    merged: dict[str, str] = {}
    for headers in several:
        merged |= headers or {}
    for name, value in merged.items():
        if not re.fullmatch(_HEADER_NAME, name) or not re.fullmatch(_HEADER_VALUE, value):
            raise InvalidInputError(
                f"invalid HTTP header {name!r}: a name has letters, digits and some signs, a value "
                "no line breaks or other control characters",
                ErrorKind.STORAGE_CONFIG,
            )
    return tuple(sorted(merged.items()))


def normal_prefix(prefix: str | None) -> str:
    """A prefix without slashes at its ends; InvalidInputError if no key could start with it.

    >>> normal_prefix("/a/b/"), normal_prefix(None)
    ('a/b', '')
    """
    text = (prefix or "").strip("/")
    segments = text.split("/")
    if text and ("" in segments or "." in segments or ".." in segments or "\0" in text):
        raise InvalidInputError(
            f"prefix {prefix!r}: expected names joined by '/', none of them empty, '.' or '..'",
            ErrorKind.BAD_PREFIX,
        )
    return text


class _Location:
    """What most kinds of storage have in common."""

    @property
    def kind(self) -> str:
        raise NotImplementedError

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def place(self) -> Place:
        return (self.kind, *self.shown().values())

    def shown(self) -> Shown:
        return {"url": self.url}

    def default_settings(self) -> StorageSettings:
        return StorageSettings()


@dataclass(frozen=True)
class MemoryLocation(_Location):
    """Objects in the memory of one process, under a name that is known only there."""

    kind: ClassVar[str] = "in-memory"

    name: str
    objects: MemoryObjects = field(repr=False, compare=False)

    @property
    def url(self) -> str:
        return f"memory://{self.name}"

    @property
    def place(self) -> Place:
        return (self.kind, self.name)

    def shown(self) -> Shown:
        return {}

    def default_settings(self) -> StorageSettings:
        return StorageSettings(
            concurrency=StorageConcurrencySettings(5, 1), retries=StorageRetriesSettings(1, 0, 0)
        )

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _memory_location, (self.name,)


def _memory_location(name: str) -> MemoryLocation:
    """Find the objects again, when unpickled in the process they are in."""
    from icefloe.storage import memory

    objects = memory.find_memory_objects(name)
    if objects is None:
        raise InternalError(
            f"in-memory storage {name!r} belongs to another process (or is gone): its objects "
            "cannot be pickled; use local_filesystem_storage to share a repository",
            ErrorKind.PICKLE,
        )
    return MemoryLocation(name, objects)


@dataclass(frozen=True)
class LocalLocation(_Location):
    """Files below a directory; `is_durable` waits for the disk at each commit."""

    kind: ClassVar[str] = "local filesystem"

    path: str
    is_durable: bool = True

    @property
    def url(self) -> str:
        return self.path

    def shown(self) -> Shown:
        return {"path": self.path}

    def default_settings(self) -> StorageSettings:
        # Conditional updates are on, unlike in Icechunk: see `local.py`.
        return StorageSettings(
            concurrency=StorageConcurrencySettings(5, 4096),
            retries=StorageRetriesSettings(1, 0, 0),
            unsafe_use_metadata=False,
        )


@dataclass(frozen=True)
class S3Location(_Location):
    """A bucket of a service that speaks S3, and a prefix in it."""

    bucket: str
    prefix: str
    credentials: AnyS3Credential
    kind: str = "S3"
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    is_path_style: bool = False
    stream_timeout_seconds: int | None = None
    requester_pays: bool = False
    checksum_algorithm: str | None = None
    can_write: bool = True
    read_headers: Headers = field(default=(), repr=False)
    write_headers: Headers = field(default=(), repr=False)

    @property
    def url(self) -> str:
        return "/".join(filter(None, (f"s3://{self.bucket}", self.prefix)))

    @property
    def place(self) -> Place:
        return ("S3", self.endpoint_url, self.bucket, self.prefix)

    def shown(self) -> Shown:
        return {
            "bucket": self.bucket,
            "prefix": self.prefix,
            "region": self.region,
            "endpoint_url": self.endpoint_url,
            "allow_http": str(self.allow_http or ""),
            "force_path_style": str(self.is_path_style or ""),
        }


@dataclass(frozen=True)
class GcsLocation(_Location):
    """A bucket of Google Cloud Storage and a prefix in it."""

    kind: ClassVar[str] = "GCS"

    bucket: str
    prefix: str
    credentials: AnyGcsCredential
    config: Headers = field(default=(), repr=False)
    read_headers: Headers = field(default=(), repr=False)
    write_headers: Headers = field(default=(), repr=False)

    @property
    def url(self) -> str:
        return "/".join(filter(None, (f"gs://{self.bucket}", self.prefix)))

    def shown(self) -> Shown:
        return {"bucket": self.bucket, "prefix": self.prefix}


@dataclass(frozen=True)
class AzureLocation(_Location):
    """A container of an Azure storage account and a prefix in it."""

    kind: ClassVar[str] = "Azure"

    account: str
    container: str
    prefix: str
    credentials: AnyAzureCredential
    config: Headers = field(default=(), repr=False)

    @property
    def url(self) -> str:
        return "/".join(filter(None, (f"az://{self.account}/{self.container}", self.prefix)))

    def shown(self) -> Shown:
        return {"account": self.account, "container": self.container, "prefix": self.prefix}


@dataclass(frozen=True)
class HttpLocation(_Location):
    """Files on a web server, to be read only. The URL has no user, password or query."""

    kind: ClassVar[str] = "HTTP"

    base_url: str
    options: Headers = field(default=(), repr=False)
    headers: Headers = field(default=(), repr=False)

    @property
    def url(self) -> str:
        return self.base_url


@dataclass(frozen=True)
class RedirectLocation(_Location):
    """A web address that answers with the URL of the storage; asked when it is first used."""

    kind: ClassVar[str] = "redirect"

    base_url: str = field(repr=False)  # its query may be a secret

    @property
    def url(self) -> str:
        return self.base_url.partition("?")[0]

    @property
    def place(self) -> Place:
        return (self.kind, self.base_url)


RemoteLocation = S3Location | GcsLocation | AzureLocation | HttpLocation
TargetLocation = MemoryLocation | LocalLocation | RemoteLocation
"""Where objects are."""
Location = TargetLocation | RedirectLocation


# --- services that speak S3 without being Amazon's -----------------------------------------------


def r2_endpoint(account_id: str) -> str:
    """Where the buckets of a Cloudflare account are."""
    return f"https://{account_id}.r2.cloudflarestorage.com"


def tigris_endpoint() -> str:
    """Where Tigris is, wherever you are."""
    return "https://t3.storage.dev"


def hf_endpoint(namespace: str) -> str:
    """Where the buckets of a user or an organisation at Hugging Face are."""
    return f"https://s3.hf.co/{namespace}"


_MOST_BYTES = 128


@dataclass(frozen=True, repr=False)
class Attribution(ShownAsCode):
    """Labels that go into the User-Agent header of every request of a repository.

    `client` is the program, as `name` or `name/version`; `workload` says what the requests are for,
    `principal` on whose behalf they are made.

    >>> labels = icefloe.Attribution(client="weatherlib/0.9", workload="ingest")
    >>> repo = icefloe.Repository.open(repo.storage, attribution=labels)
    """

    client: str | None = None
    workload: str | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        for name in ("client", "workload", "principal"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"attribution `{name}` must be str or None, found {value!r}")
            if len(value.encode()) > _MOST_BYTES:
                raise InvalidInputError(f"attribution `{name}` is longer than {_MOST_BYTES} bytes")
            _check_characters(name, value)

    def _arguments_(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("client", "workload", "principal")]

    def header(self, agent: str) -> str:
        """The User-Agent `agent`, as requests name the program, with these labels added to it.

        >>> Attribution(client="weatherlib/0.9", workload="ingest").header("icefloe/1")
        'weatherlib/0.9 icefloe/1 (workload=ingest)'
        """
        labels = [
            f"{name}={value}"
            for name, value in (("workload", self.workload), ("principal", self.principal))
            if value
        ]
        comment = f"({'; '.join(labels)})" if labels else None
        return " ".join(filter(None, (self.client, agent, comment)))


def _check_characters(name: str, value: str) -> None:
    if name == "client":
        if not _CLIENT.fullmatch(value):
            raise InvalidInputError(
                f"attribution `client` must be `name` or `name/version` in token characters, got "
                f'"{value}"'
            )
        return
    for character in value:
        if not " " <= character <= "~" or character in '()\\;="':
            raise InvalidInputError(
                f"attribution `{name}` contains the forbidden character {character!r}; allowed is "
                'printable ASCII but for ( ) \\ ; = "'
            )
