"""Repositories in buckets of services that speak S3; others are in `common.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from urllib.parse import urlsplit

from icefloe.config.stores import ChecksumAlgorithm
from icefloe.errors import ErrorKind, InternalError, InvalidInputError, StorageError
from icefloe.storage.identity.credentials import S3StaticCredentials
from icefloe.storage.identity.functions import s3_credentials
from icefloe.storage.places.locations import S3Location, as_headers, normal_prefix
from icefloe.storage.places.services import hf_endpoint, r2_endpoint, tigris_endpoint
from icefloe.storage.spec import Storage

_CHECKSUMS = {
    ChecksumAlgorithm.Sha256: "SHA256",
    ChecksumAlgorithm.Crc64Nvme: "CRC64NVME",
}


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A repository in a bucket of Amazon S3, or of a service that speaks it (`endpoint_url`).

    Credentials come from the environment unless an argument says otherwise. Extra headers are
    not part of the signature, which Amazon demands of headers that start with `x-amz-`.

    Args:
        bucket: its name.
        prefix: the folder of the repository in it; needed to create one.
        region: of the bucket; that of the environment or profile unless given.
        allow_http: allow an endpoint without encryption.
        access_key_id: with `secret_access_key`: the keys to sign with.
        secret_access_key: see `access_key_id`.
        session_token: of temporary keys.
        expires_after: when such keys end; with a time zone.
        anonymous: do not sign: for public buckets.
        from_env: take the credentials from the environment, which is also what happens without any:
            variables, the AWS profile, the role of the machine.
        get_credentials: a function that returns `S3StaticCredentials`, called when they are needed
            or about to end. It is pickled with the storage.
        scatter_initial_credentials: call it now, and send the result along in pickles.
        force_path_style: put the bucket into the path instead of the host name.
        network_stream_timeout_seconds: give up when nothing comes for so long.
        requester_pays: accept the costs of requests.
        checksum_algorithm: what is sent along with objects for the service to check.
        legacy_rooted_keys: not supported; True is refused with what to do.
        read_headers: sent with requests that read.
        write_headers: sent with requests that write.
        headers: sent with all requests.
    """
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
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


def s3_object_store_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    force_path_style: bool = False,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """The same as `s3_storage`: here there is only one client for S3."""
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        force_path_style=force_path_style,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A repository in a bucket of Cloudflare R2.

    The service is found by `account_id` or `endpoint_url`. Without `bucket` the prefix starts
    with it: `prefix="bucket/rest"`.

    Other arguments as in `s3_storage`.

    Args:
        region: `auto` unless given.
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
        allow_http=allow_http,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
        force_path_style=True,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        checksum_algorithm=checksum_algorithm,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )
    return _as_service(storage, "R2")


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A repository in a bucket of Tigris.

    Its copies around the world agree only when asked to, which needs the bucket's `region`. With
    `use_weak_consistency` they are not asked, and the repository can only be read.

    Other arguments as in `s3_storage`.

    Args:
        endpoint_url: that of Tigris unless given.
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
    storage = s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region or "auto",
        endpoint_url=endpoint_url or tigris_endpoint(),
        allow_http=allow_http,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        checksum_algorithm=checksum_algorithm,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers={
            **consistent,
            **({"Cache-Control": "no-cache"} if consistent else {}),
            **(headers or {}),
            **(read_headers or {}),
        },
        write_headers={**consistent, **(headers or {}), **(write_headers or {})},
    )
    return _as_service(storage, "Tigris", can_write=not use_weak_consistency)


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A repository in a storage bucket of Hugging Face, which `namespace` owns.

    The keys are those that Hugging Face makes for its S3 gateway, not an access token.

    Other arguments as in `s3_storage`.
    """
    storage = s3_storage(
        bucket=bucket,
        prefix=prefix,
        region="us-east-1",
        endpoint_url=hf_endpoint(namespace),
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
        force_path_style=True,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )
    return _as_service(storage, "Hugging Face")


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
