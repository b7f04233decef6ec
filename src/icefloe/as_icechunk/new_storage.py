"""`Storage.new_s3` and the other class methods: one for each kind of storage, from options.

icefloe has only functions (`s3_storage`, ...), because what makes a storage lies above the class.
The original's class methods are put on the class here, where a program asks for the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icefloe.config import S3Options
from icefloe.errors import InternalError
from icefloe.storage.constructors import cloud, common, s3
from icefloe.storage.identity.credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AnyS3Credential,
)
from icefloe.storage.places.locations import AzureLocation, GcsLocation, S3Location
from icefloe.storage.spec import Storage

Headers = Mapping[str, str] | None


def _new_s3(
    _cls: type[Storage],
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> Storage:
    """A bucket of S3, or of a service that speaks it."""
    storage = s3.s3_storage(
        bucket=bucket,
        prefix=prefix,
        legacy_rooted_keys=legacy_rooted_keys,
        force_path_style=config.force_path_style,
        requester_pays=config.requester_pays,
        **_options(config),
        **_all_headers(read_headers, write_headers, headers),
    )
    return _signed_in(storage, credentials)


def _new_s3_object_store(
    cls: type[Storage],
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    *,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> Storage:
    """The same as `new_s3`: here there is only one client for S3."""
    named = _all_headers(read_headers, write_headers, headers)
    return _new_s3(cls, config, bucket, prefix, credentials, **named)


def _new_tigris(
    _cls: type[Storage],
    config: S3Options,
    bucket: str,
    prefix: str | None,
    use_weak_consistency: bool,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> Storage:
    """A bucket of Tigris."""
    storage = s3.tigris_storage(
        bucket=bucket,
        prefix=prefix,
        use_weak_consistency=use_weak_consistency,
        legacy_rooted_keys=legacy_rooted_keys,
        **_options(config),
        **_all_headers(read_headers, write_headers, headers),
    )
    return _signed_in(storage, credentials)


def _new_r2(
    _cls: type[Storage],
    config: S3Options,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> Storage:
    """A bucket of Cloudflare R2."""
    storage = s3.r2_storage(
        bucket=bucket,
        prefix=prefix,
        account_id=account_id,
        legacy_rooted_keys=legacy_rooted_keys,
        **_options(config),
        **_all_headers(read_headers, write_headers, headers),
    )
    return _signed_in(storage, credentials)


def _new_hf(
    _cls: type[Storage],
    config: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> Storage:
    """A storage bucket of Hugging Face."""
    seconds = config.network_stream_timeout_seconds
    storage = s3.hf_storage(
        bucket=bucket,
        prefix=prefix,
        namespace=namespace,
        from_env=True,
        legacy_rooted_keys=legacy_rooted_keys,
        network_stream_timeout_seconds=60 if seconds is None else seconds,
        **_all_headers(read_headers, write_headers, headers),
    )
    return _signed_in(storage, credentials)


def _new_gcs(
    _cls: type[Storage],
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
    read_headers: Headers = None,
    write_headers: Headers = None,
    headers: Headers = None,
) -> Storage:
    """A bucket of Google Cloud Storage."""
    storage = cloud.gcs_storage(
        bucket=bucket,
        prefix=prefix,
        from_env=True,
        config=config,
        **_all_headers(read_headers, write_headers, headers),
    )
    return _signed_in(storage, credentials)


def _new_azure_blob(
    _cls: type[Storage],
    account: str,
    container: str,
    prefix: str,
    credentials: AnyAzureCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
) -> Storage:
    """A container of Azure blob storage."""
    storage = cloud.azure_storage(
        account=account, container=container, prefix=prefix, from_env=True, config=config
    )
    return _signed_in(storage, credentials)


def _new_http(
    _cls: type[Storage],
    base_url: str,
    config: Mapping[str, str] | None = None,
    headers: Headers = None,
) -> Storage:
    """Files below a URL of a web server."""
    return common.http_storage(base_url, config, headers)


def _new_redirect(_cls: type[Storage], base_url: str) -> Storage:
    """The repository that a web address redirects to."""
    return common.redirect_storage(base_url)


def _new_in_memory(_cls: type[Storage]) -> Storage:
    """The memory of this process."""
    return common.in_memory_storage()


def _new_local_filesystem(_cls: type[Storage], path: str) -> Storage:
    """A directory."""
    return common.local_filesystem_storage(path)


def _options(config: S3Options) -> dict[str, Any]:
    seconds = config.network_stream_timeout_seconds
    return {
        "region": config.region,
        "endpoint_url": config.endpoint_url,
        "allow_http": config.allow_http,
        "anonymous": config.anonymous or None,
        "network_stream_timeout_seconds": 60 if seconds is None else seconds,
        "checksum_algorithm": config.checksum_algorithm,
    }


def _all_headers(read: Headers, write: Headers, both: Headers) -> dict[str, Any]:
    return {"read_headers": read, "write_headers": write, "headers": both}


def _signed_in(
    storage: Storage, credentials: AnyS3Credential | AnyGcsCredential | AnyAzureCredential | None
) -> Storage:
    location = storage.location
    if credentials is None:
        return storage
    if not isinstance(location, S3Location | GcsLocation | AzureLocation):
        raise InternalError(f"{location!r} takes no credentials")
    return Storage(replace(location, credentials=credentials))  # type: ignore[arg-type]


def put_on_class() -> None:
    """Give `Storage` the class methods of the original."""
    for function in (
        _new_s3,
        _new_s3_object_store,
        _new_tigris,
        _new_r2,
        _new_hf,
        _new_gcs,
        _new_azure_blob,
        _new_http,
        _new_redirect,
        _new_in_memory,
        _new_local_filesystem,
    ):
        setattr(Storage, function.__name__.removeprefix("_"), classmethod(function))
