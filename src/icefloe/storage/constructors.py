"""Repositories in buckets: S3 and S3-compatible services, Google Cloud Storage, Azure.

Names and arguments are Icechunk's. None of these functions makes a request. Others are in
`spec.py`; URLs are in `urls.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict, TypeVar, Unpack, cast, get_args
from urllib.parse import urlsplit

from icefloe.config.stores import ChecksumAlgorithm
from icefloe.credentials import (
    GcsBearerCredential,
    S3StaticCredentials,
    azure_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.errors import ErrorKind, InternalError, InvalidInputError, StorageError
from icefloe.storage.locations import (
    AzureLocation,
    GcsLocation,
    S3Location,
    as_headers,
    hf_endpoint,
    normal_prefix,
    r2_endpoint,
    tigris_endpoint,
)
from icefloe.storage.spec import Storage

Function = TypeVar("Function", bound=Callable[..., Storage])

_CHECKSUMS = {
    ChecksumAlgorithm.Sha256: "SHA256",
    ChecksumAlgorithm.Crc64Nvme: "CRC64NVME",
}


# Shared options, declared once; what they mean is said by `s3_storage` and by the functions that
# make credentials.


class HeaderOptions(TypedDict, total=False):
    """Headers of requests that read, of those that write, and of all."""

    read_headers: Mapping[str, str] | None
    write_headers: Mapping[str, str] | None
    headers: Mapping[str, str] | None


class _S3Keys(TypedDict, total=False):
    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None
    expires_after: datetime | None
    from_env: bool | None


class _S3Refreshable(_S3Keys, total=False):
    get_credentials: Callable[[], S3StaticCredentials] | None
    scatter_initial_credentials: bool


class _S3SignIn(_S3Refreshable, total=False):
    anonymous: bool | None


class _HfOptions(_S3Refreshable, HeaderOptions, total=False):
    network_stream_timeout_seconds: int
    legacy_rooted_keys: bool | None


class _ServiceOptions(_HfOptions, total=False):
    allow_http: bool
    anonymous: bool | None
    checksum_algorithm: ChecksumAlgorithm | None


class _ObjectStoreOptions(_S3Keys, HeaderOptions, total=False):
    region: str | None
    endpoint_url: str | None
    allow_http: bool
    anonymous: bool | None
    force_path_style: bool


class _GcsSignIn(TypedDict, total=False):
    service_account_file: str | None
    service_account_key: str | None
    application_credentials: str | None
    bearer_token: str | None
    anonymous: bool | None
    from_env: bool | None
    get_credentials: Callable[[], GcsBearerCredential] | None
    scatter_initial_credentials: bool


class _AzureSignIn(TypedDict, total=False):
    access_key: str | None
    sas_token: str | None
    bearer_token: str | None
    from_env: bool | None
    anonymous: bool | None


def options_of(declared: Callable[..., object]) -> Callable[[Function], Function]:
    """Show the `**options: Unpack[...]` of a function as arguments, as `declared` has them.

    Type checkers read the `TypedDict`; `inspect.signature` shows the same. Others are refused.
    """

    def show(function: Function) -> Function:
        signature = inspect.signature(function, eval_str=True)
        *own, options = signature.parameters.values()
        (names,) = get_args(options.annotation)
        known = inspect.signature(declared, eval_str=True).parameters
        shown = signature.replace(
            parameters=[*own, *(known[name] for name in names.__annotations__)]
        )

        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            for name in options.keys() - shown.parameters.keys():
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}"
                )
            return function(*arguments, **options)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        return cast(Function, checked)

    return show


@options_of(s3_credentials)
def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    **sign_in: Unpack[_S3SignIn],
) -> Storage:
    """A repository in a bucket of Amazon S3, or of a service that speaks it (`endpoint_url`).

    Credentials come from the environment unless an argument says otherwise; these arguments are
    those of `s3_credentials`. Extra headers are not part of the signature, which Amazon demands of
    headers that start with `x-amz-`.

    Args:
        bucket: its name.
        prefix: the folder of the repository in it; needed to create one.
        region: of the bucket; that of the environment or profile unless given.
        allow_http: allow an endpoint without encryption.
        force_path_style: put the bucket into the path instead of the host name.
        network_stream_timeout_seconds: give up when nothing comes for so long.
        requester_pays: accept the costs of requests.
        checksum_algorithm: what is sent along with objects for the service to check.
        legacy_rooted_keys: not supported; True is refused with what to do.
        read_headers: sent with requests that read.
        write_headers: sent with requests that write.
        headers: sent with all requests.

    >>> storage = icefloe.s3_storage(bucket="climate", prefix="era5", region="eu-west-1")
    """
    credentials = s3_credentials(**sign_in)
    _check_endpoint(endpoint_url, allow_http)
    _check_layout(legacy_rooted_keys, prefix)
    return Storage(
        S3Location(
            _checked_bucket(bucket),
            normal_prefix(prefix),
            credentials,
            region=region,
            endpoint_url=endpoint_url,
            allow_http=allow_http,
            is_path_style=force_path_style,
            stream_timeout_seconds=network_stream_timeout_seconds or None,
            requester_pays=requester_pays,
            checksum_algorithm=_checksum(checksum_algorithm),
            read_headers=as_headers(headers, read_headers),
            write_headers=as_headers(headers, write_headers),
        )
    )


@options_of(s3_storage)
def s3_object_store_storage(
    *, bucket: str, prefix: str | None, **options: Unpack[_ObjectStoreOptions]
) -> Storage:
    """The same as `s3_storage`: here there is only one client for S3."""
    return s3_storage(bucket=bucket, prefix=prefix, **options)


@options_of(s3_storage)
def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    **options: Unpack[_ServiceOptions],
) -> Storage:
    """A repository in a bucket of Cloudflare R2.

    The service is found by `account_id` or `endpoint_url`. Without `bucket` the prefix starts
    with it: `prefix="bucket/rest"`. The `region` is `auto` unless given.

    Other arguments as in `s3_storage` and `s3_credentials`.

    >>> storage = icefloe.r2_storage(account_id="0123abcd", bucket="climate", prefix="era5")
    """
    if endpoint_url is None and account_id is None:
        raise StorageError("r2_storage needs account_id or endpoint_url", ErrorKind.STORAGE_CONFIG)
    if bucket is None:
        bucket, _, prefix = normal_prefix(prefix).partition("/")
    storage = s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region or "auto",
        endpoint_url=endpoint_url or r2_endpoint(account_id or ""),
        force_path_style=True,
        **options,
    )
    return _as_service(storage, "R2")


@options_of(s3_storage)
def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    **options: Unpack[_ServiceOptions],
) -> Storage:
    """A repository in a bucket of Tigris.

    Its copies around the world agree only when asked to, which needs the bucket's `region`. With
    `use_weak_consistency` they are not asked, and the repository can only be read. The
    `endpoint_url` is that of Tigris unless given.

    Other arguments as in `s3_storage` and `s3_credentials`.

    >>> storage = icefloe.tigris_storage(bucket="climate", prefix="era5", region="fra")
    """
    consistent: dict[str, str] = {}
    if not use_weak_consistency:
        if region is None:
            raise StorageError(
                "tigris_storage needs the region of the bucket to read what was written last; "
                "name it, or set use_weak_consistency=True to read only",
                ErrorKind.STORAGE_OTHER,
            )
        consistent = {"X-Tigris-Regions": region, "X-Tigris-Consistent": "true"}
    fresh = {**consistent, "Cache-Control": "no-cache"} if consistent else {}
    headers = options.pop("headers", None) or {}
    options["read_headers"] = {**fresh, **headers, **(options.get("read_headers") or {})}
    options["write_headers"] = {**consistent, **headers, **(options.get("write_headers") or {})}
    storage = s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region or "auto",
        endpoint_url=endpoint_url or tigris_endpoint(),
        **options,
    )
    return _as_service(storage, "Tigris", can_write=not use_weak_consistency)


@options_of(s3_storage)
def hf_storage(
    *, bucket: str, prefix: str | None, namespace: str, **options: Unpack[_HfOptions]
) -> Storage:
    """A repository in a storage bucket of Hugging Face, which `namespace` owns.

    The keys are those that Hugging Face makes for its S3 gateway, not an access token.

    Other arguments as in `s3_storage` and `s3_credentials`.

    >>> storage = icefloe.hf_storage(namespace="climate", bucket="data", prefix="era5")
    """
    storage = s3_storage(
        bucket=bucket,
        prefix=prefix,
        region="us-east-1",
        endpoint_url=hf_endpoint(namespace),
        force_path_style=True,
        **options,
    )
    return _as_service(storage, "Hugging Face")


@options_of(gcs_credentials)
def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    config: Mapping[str, str] | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    **sign_in: Unpack[_GcsSignIn],
) -> Storage:
    """A repository in a bucket of Google Cloud Storage; `config` has further client options.

    Other arguments as in `gcs_credentials`.

    Args:
        bucket: its name.
        prefix: the folder of the repository in it.
        read_headers: sent with requests that read.
        write_headers: sent with requests that write.
        headers: sent with all requests.

    >>> storage = icefloe.gcs_storage(bucket="climate", prefix="era5", anonymous=True)
    """
    return Storage(
        GcsLocation(
            bucket,
            normal_prefix(prefix),
            gcs_credentials(**sign_in),
            as_headers(config),
            as_headers(headers, read_headers),
            as_headers(headers, write_headers),
        )
    )


@options_of(azure_credentials)
def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str,
    config: Mapping[str, str] | None = None,
    **sign_in: Unpack[_AzureSignIn],
) -> Storage:
    """A repository in a container of Azure blob storage; `config` has further client options.

    Other arguments as in `azure_credentials`.

    Args:
        account: the storage account.
        container: its name.
        prefix: the folder of the repository in it.

    >>> storage = icefloe.azure_storage(account="climate", container="era5", prefix="v1")
    """
    credentials = azure_credentials(**sign_in)
    return Storage(
        AzureLocation(account, container, normal_prefix(prefix), credentials, as_headers(config))
    )


def _as_service(storage: Storage, kind: str, *, can_write: bool = True) -> Storage:
    location = storage.location
    if not isinstance(location, S3Location):
        raise InternalError(f"{kind} is an S3 service, found {location!r}")
    return Storage(replace(location, kind=kind, can_write=can_write))


def _checked_bucket(bucket: str) -> str:
    if "@" in bucket:
        raise InvalidInputError(
            "a bucket name has no '@'; credentials are arguments of their own",
            ErrorKind.STORAGE_CONFIG,
        )
    if not bucket or "/" in bucket:
        raise InvalidInputError(
            f"{bucket!r} is not a bucket name; what follows the first '/' is the prefix",
            ErrorKind.STORAGE_CONFIG,
        )
    return bucket


def _check_endpoint(endpoint_url: str | None, allow_http: bool) -> None:
    if endpoint_url is None:
        return
    parts = urlsplit(endpoint_url)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        raise InvalidInputError(
            f"endpoint_url starts with {parts.scheme!r}, expected 'https://host' or 'http://host', "
            "without user or password",
            ErrorKind.CANNOT_PARSE_URL,
        )
    if parts.scheme == "http" and not allow_http:
        raise InvalidInputError(
            f"endpoint_url {endpoint_url!r} is not encrypted; set allow_http=True if that is meant",
            ErrorKind.STORAGE_CONFIG,
        )


def _check_layout(legacy_rooted_keys: bool | None, prefix: str | None) -> None:
    if legacy_rooted_keys and prefix:
        raise InvalidInputError(
            f"legacy_rooted_keys=True needs an empty prefix, found {prefix!r}",
            ErrorKind.STORAGE_CONFIG,
        )
    if legacy_rooted_keys:
        raise InvalidInputError(
            "legacy_rooted_keys=True: keys that start with '/' (buckets written without a prefix "
            "before Icechunk 2.1) cannot be read here; copy the bucket with a prefix first",
            ErrorKind.UNIMPLEMENTED,
        )


def _checksum(algorithm: ChecksumAlgorithm | None) -> str | None:
    if algorithm is None:
        return None
    if algorithm not in _CHECKSUMS:
        names = ", ".join(known.name for known in _CHECKSUMS)
        raise InvalidInputError(
            f"checksum_algorithm {algorithm!r} is not available, only {names}",
            ErrorKind.STORAGE_CONFIG,
        )
    return _CHECKSUMS[algorithm]
