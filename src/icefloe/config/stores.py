"""Where virtual chunks live: the kinds of object store and their options.

Descriptions only: nothing here connects anywhere or holds a credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import nonmember
from pathlib import PurePath
from typing import Any, ClassVar, get_args

from icefloe.config.containers import ObjectStoreConfig
from icefloe.config.section import U32, Flag, NumberOrNone, Option, Section, Text
from icefloe.display import MASK, NamedNumber

__all__ = [
    "S3",
    "AnyObjectStoreConfig",
    "Azure",
    "ChecksumAlgorithm",
    "Gcs",
    "Http",
    "InMemory",
    "LocalFileSystem",
    "ObjectStoreConfig",
    "S3Compatible",
    "S3Options",
    "Tigris",
    "azure_store",
    "gcs_store",
    "http_store",
    "local_filesystem_store",
    "s3_store",
]


class ChecksumAlgorithm(NamedNumber):
    """The checksum sent along with S3 writes, for services that refuse the client's own choice."""

    shown_in = nonmember("storage")

    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4


@dataclass(repr=False)
class S3Options(Section):
    """How to reach an S3 service. `anonymous` leaves requests unsigned.

    >>> options = icefloe.S3Options(region="eu-west-1", anonymous=True)
    """

    shown_in = "storage"

    region: Text = Option(str)
    endpoint_url: Text = Option(str)
    allow_http: Flag = Option(bool, initial=False, written_after="anonymous")
    anonymous: Flag = Option(bool, initial=False)
    force_path_style: Flag = Option(bool, initial=False)
    network_stream_timeout_seconds: NumberOrNone = Option(U32)
    requester_pays: Flag = Option(bool, initial=False)
    checksum_algorithm: Option[ChecksumAlgorithm | None, ChecksumAlgorithm | None] = Option(
        ChecksumAlgorithm
    )


@dataclass(frozen=True, repr=False)
class InMemory(ObjectStoreConfig):
    """Known to the format, but nothing outside a process can point into its memory."""


@dataclass(frozen=True, repr=False)
class LocalFileSystem(ObjectStoreConfig):
    """Files below the directory `path`."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"file"})

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | PurePath):
            raise TypeError(f"LocalFileSystem path must be str or Path, found {self.path!r}")
        object.__setattr__(self, "path", str(self.path))


class _StoreWithTexts(ObjectStoreConfig):
    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            texts = _string_map(f"{type(self).__name__} {name}", value)
            object.__setattr__(self, name, texts)


class _StoreWithS3Options(ObjectStoreConfig):
    def __post_init__(self) -> None:
        for value in vars(self).values():
            if not isinstance(value, S3Options):
                raise TypeError(f"{type(self).__name__} needs S3Options, found {value!r}")


@dataclass(frozen=True, repr=False)
class Http(_StoreWithTexts):
    """A web server; `opts` are client options, `headers` go with every request."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"http", "https"})

    opts: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may say who you are

    def _values_(self) -> dict[str, Any]:
        return {"opts": self.opts, "headers": dict.fromkeys(self.headers, MASK)}


@dataclass(frozen=True, repr=False)
class S3Compatible(_StoreWithS3Options):
    """A service that speaks S3 but is not Amazon's."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"s3"})

    options: S3Options


@dataclass(frozen=True, repr=False)
class S3(_StoreWithS3Options):
    """Amazon S3."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"s3"})

    options: S3Options


@dataclass(frozen=True, repr=False)
class Gcs(_StoreWithTexts):
    """Google Cloud Storage."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"gs", "gcs"})

    opts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Azure(_StoreWithTexts):
    """Azure blob storage; reading needs the option `account`."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"az", "azure", "abfs"})

    opts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Tigris(_StoreWithS3Options):
    """Tigris, an S3 service with its own URL scheme."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"s3", "tigris"})

    opts: S3Options


AnyObjectStoreConfig = InMemory | LocalFileSystem | Http | S3Compatible | S3 | Gcs | Azure | Tigris

for _variant in get_args(AnyObjectStoreConfig):
    setattr(ObjectStoreConfig, _variant.__name__, _variant)


def local_filesystem_store(path: str) -> LocalFileSystem:
    """Describe the files below the directory `path`.

    >>> store = icefloe.local_filesystem_store("/data/archive")
    """
    return LocalFileSystem(path)


def http_store(
    opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> Http:
    """Describe a web server, with options of the client (`opts`).

    The `headers` are stored in the repository, so keep secrets out.

    >>> store = icefloe.http_store(headers={"User-Agent": "weather study"})
    """
    return Http(opts or {}, headers or {})


def s3_store(
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    anonymous: bool = False,
    s3_compatible: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
) -> S3Compatible | S3:
    """Describe Amazon S3, or another service that speaks it when `s3_compatible` is set.

    Args:
        region: of the bucket.
        endpoint_url: of a service other than AWS.
        allow_http: allow an endpoint without encryption.
        anonymous: do not sign.
        force_path_style: put the bucket into the path instead of the host name.
        network_stream_timeout_seconds: give up when nothing comes for so long.
        requester_pays: accept the costs of requests.
        checksum_algorithm: kept for Icechunk; reading sends none.

    >>> store = icefloe.s3_store(region="eu-west-1", anonymous=True)
    >>> container = icefloe.VirtualChunkContainer("s3://archive/", store)
    """
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
        checksum_algorithm=checksum_algorithm,
    )
    return S3Compatible(options) if s3_compatible else S3(options)


def gcs_store(opts: Mapping[str, str] | None = None) -> Gcs:
    """Describe Google Cloud Storage, with options of the client (`opts`).

    >>> store = icefloe.gcs_store()
    """
    return Gcs(opts or {})


def azure_store(*, account: str, config: Mapping[str, str] | None = None) -> Azure:
    """Describe the Azure storage account `account`; `config` has further options.

    >>> store = icefloe.azure_store(account="weather")
    """
    return Azure({"account": account, **(config or {})})


def _string_map(name: str, value: object) -> dict[str, str]:
    """A copy of `value`, None being an empty map; TypeError unless all of it is text."""
    entries = {} if value is None else value
    if not isinstance(entries, Mapping):
        raise TypeError(f"{name} must be a mapping of str to str, found {value!r}")
    for key, entry in entries.items():
        if not isinstance(key, str) or not isinstance(entry, str):
            raise TypeError(f"{name} must map str to str, found {key!r}: {entry!r}")
    return dict(entries)
