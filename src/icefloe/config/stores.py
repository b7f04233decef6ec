"""Where virtual chunks live: the kinds of object store and their options.

Descriptions only: nothing here connects anywhere or holds a credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import nonmember
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from icefloe.config.section import OptionalU32, Section
from icefloe.display.shown import MASK, NamedNumber, Picture, ShownAsCode, qualified
from icefloe.on_demand import on_demand
from icefloe.records import record

if TYPE_CHECKING:
    from icefloe.display import rendering
else:
    rendering = on_demand("icefloe.display.rendering")


class ChecksumAlgorithm(NamedNumber):
    """The checksum sent along with S3 writes, for services that refuse the client's own choice."""

    shown_in = nonmember("storage")

    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4


@record()
class S3Options(Section):
    """How to reach an S3 service. `anonymous` leaves requests unsigned."""

    shown_in = "storage"

    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    force_path_style: bool = False
    network_stream_timeout_seconds: OptionalU32 = None
    requester_pays: bool = False
    checksum_algorithm: ChecksumAlgorithm | None = None


class ObjectStoreConfig(ShownAsCode):
    """A kind of object store with its options; make one of the variants.

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
            if isinstance(value, S3Options):
                fields += value._picture_().fields
            else:
                fields.append((name, rendering.as_value(value)))
        return Picture(self._title_(), fields)

    InMemory: ClassVar[type[InMemory]]
    LocalFileSystem: ClassVar[type[LocalFileSystem]]
    Http: ClassVar[type[Http]]
    S3Compatible: ClassVar[type[S3Compatible]]
    S3: ClassVar[type[S3]]
    Gcs: ClassVar[type[Gcs]]
    Azure: ClassVar[type[Azure]]
    Tigris: ClassVar[type[Tigris]]


@record(frozen=True)
class InMemory(ObjectStoreConfig):
    """Known to the format, but nothing outside a process can point into its memory."""


@record(frozen=True)
class LocalFileSystem(ObjectStoreConfig):
    """Files below the directory `path`."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"file"})

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | PurePath):
            raise TypeError(f"LocalFileSystem path must be str or Path, found {self.path!r}")
        object.__setattr__(self, "path", str(self.path))


@record(frozen=True)
class Http(ObjectStoreConfig):
    """A web server; `opts` are client options, `headers` go with every request."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"http", "https"})

    opts: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may say who you are

    def _values_(self) -> dict[str, Any]:
        return {"opts": self.opts, "headers": dict.fromkeys(self.headers, MASK)}

    def __post_init__(self) -> None:
        object.__setattr__(self, "opts", _string_map("Http opts", self.opts))
        object.__setattr__(self, "headers", _string_map("Http headers", self.headers))


@record(frozen=True)
class S3Compatible(ObjectStoreConfig):
    """A service that speaks S3 but is not Amazon's."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"s3"})

    options: S3Options

    def __post_init__(self) -> None:
        _require_s3_options(self, self.options)


@record(frozen=True)
class S3(ObjectStoreConfig):
    """Amazon S3."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"s3"})

    options: S3Options

    def __post_init__(self) -> None:
        _require_s3_options(self, self.options)


@record(frozen=True)
class Gcs(ObjectStoreConfig):
    """Google Cloud Storage."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"gs", "gcs"})

    opts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "opts", _string_map("Gcs opts", self.opts))


@record(frozen=True)
class Azure(ObjectStoreConfig):
    """Azure blob storage; reading needs the option `account`."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"az", "azure", "abfs"})

    opts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "opts", _string_map("Azure opts", self.opts))


@record(frozen=True)
class Tigris(ObjectStoreConfig):
    """Tigris, an S3 service with its own URL scheme."""

    url_schemes: ClassVar[frozenset[str]] = frozenset({"s3", "tigris"})

    opts: S3Options

    def __post_init__(self) -> None:
        _require_s3_options(self, self.opts)


ObjectStoreConfig.InMemory = InMemory
ObjectStoreConfig.LocalFileSystem = LocalFileSystem
ObjectStoreConfig.Http = Http
ObjectStoreConfig.S3Compatible = S3Compatible
ObjectStoreConfig.S3 = S3
ObjectStoreConfig.Gcs = Gcs
ObjectStoreConfig.Azure = Azure
ObjectStoreConfig.Tigris = Tigris

AnyObjectStoreConfig = InMemory | LocalFileSystem | Http | S3Compatible | S3 | Gcs | Azure | Tigris


def local_filesystem_store(path: str) -> LocalFileSystem:
    """Describe the files below the directory `path`."""
    return LocalFileSystem(path)


def http_store(
    opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> Http:
    """Describe a web server; `headers` are stored in the repository, so keep secrets out.

    Args:
        opts: options of the client.
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
    """Describe Google Cloud Storage.

    Args:
        opts: options of the client.
    """
    return Gcs(opts or {})


def azure_store(*, account: str, config: Mapping[str, str] | None = None) -> Azure:
    """Describe the Azure storage account `account`; `config` has further options."""
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


def _require_s3_options(store: ObjectStoreConfig, value: object) -> None:
    if not isinstance(value, S3Options):
        raise TypeError(f"{type(store).__name__} needs S3Options, found {value!r}")
