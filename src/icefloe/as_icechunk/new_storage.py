"""`Storage.new_s3` and the other class methods: one for each kind of storage, from options.

icefloe has only functions (`s3_storage`, ...), because what makes a storage lies above the class.
The original's class methods are put on the class here, where a program asks for the original.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from icefloe.config.stores import S3Options
from icefloe.credentials import AnyAzureCredential, AnyGcsCredential, AnyS3Credential
from icefloe.errors import InternalError
from icefloe.storage import constructors, spec
from icefloe.storage.constructors import HeaderOptions, options_of
from icefloe.storage.locations import AzureLocation, GcsLocation, S3Location
from icefloe.storage.spec import Storage


@options_of(constructors.s3_storage)
def _new_s3(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    **headers: Unpack[HeaderOptions],
) -> Storage:
    """A bucket of S3, or of a service that speaks it."""
    storage = constructors.s3_storage(
        bucket=bucket,
        prefix=prefix,
        legacy_rooted_keys=legacy_rooted_keys,
        force_path_style=config.force_path_style,
        requester_pays=config.requester_pays,
        **_options(config),
        **headers,
    )
    return _signed_in(storage, credentials)


@options_of(constructors.s3_storage)
def _new_s3_object_store(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    **headers: Unpack[HeaderOptions],
) -> Storage:
    """The same as `new_s3`: here there is only one client for S3."""
    return _new_s3(config, bucket, prefix, credentials, **headers)


@options_of(constructors.s3_storage)
def _new_tigris(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    use_weak_consistency: bool,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    **headers: Unpack[HeaderOptions],
) -> Storage:
    """A bucket of Tigris."""
    storage = constructors.tigris_storage(
        bucket=bucket,
        prefix=prefix,
        use_weak_consistency=use_weak_consistency,
        legacy_rooted_keys=legacy_rooted_keys,
        **_options(config),
        **headers,
    )
    return _signed_in(storage, credentials)


@options_of(constructors.s3_storage)
def _new_r2(
    config: S3Options,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    **headers: Unpack[HeaderOptions],
) -> Storage:
    """A bucket of Cloudflare R2."""
    storage = constructors.r2_storage(
        bucket=bucket,
        prefix=prefix,
        account_id=account_id,
        legacy_rooted_keys=legacy_rooted_keys,
        **_options(config),
        **headers,
    )
    return _signed_in(storage, credentials)


@options_of(constructors.s3_storage)
def _new_hf(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    **headers: Unpack[HeaderOptions],
) -> Storage:
    """A storage bucket of Hugging Face."""
    seconds = config.network_stream_timeout_seconds
    storage = constructors.hf_storage(
        bucket=bucket,
        prefix=prefix,
        namespace=namespace,
        from_env=True,
        legacy_rooted_keys=legacy_rooted_keys,
        network_stream_timeout_seconds=60 if seconds is None else seconds,
        **headers,
    )
    return _signed_in(storage, credentials)


@options_of(constructors.s3_storage)
def _new_gcs(
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
    **headers: Unpack[HeaderOptions],
) -> Storage:
    """A bucket of Google Cloud Storage."""
    storage = constructors.gcs_storage(
        bucket=bucket,
        prefix=prefix,
        from_env=True,
        config=config,
        **headers,
    )
    return _signed_in(storage, credentials)


def _new_azure_blob(
    account: str,
    container: str,
    prefix: str,
    credentials: AnyAzureCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
) -> Storage:
    """A container of Azure blob storage."""
    storage = constructors.azure_storage(
        account=account, container=container, prefix=prefix, from_env=True, config=config
    )
    return _signed_in(storage, credentials)


def _new_http(
    base_url: str,
    config: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """Files below a URL of a web server."""
    return spec.http_storage(base_url, config, headers)


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
    methods: dict[str, Callable[..., Storage]] = {
        "new_s3": _new_s3,
        "new_s3_object_store": _new_s3_object_store,
        "new_tigris": _new_tigris,
        "new_r2": _new_r2,
        "new_hf": _new_hf,
        "new_gcs": _new_gcs,
        "new_azure_blob": _new_azure_blob,
        "new_http": _new_http,
        "new_redirect": spec.redirect_storage,
        "new_in_memory": spec.in_memory_storage,
        "new_local_filesystem": spec.local_filesystem_storage,
    }
    for name, method in methods.items():
        setattr(Storage, name, staticmethod(method))
