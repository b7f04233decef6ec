"""Locations -> obstore clients. The only module that makes them.

Clients are made when a driver is, never at import time; forks are noticed (`process_forks.py`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from icefloe.config.resolved import ResolvedStorage
from icefloe.errors import ErrorKind, StorageError
from icefloe.records import record
from icefloe.storage.client.backoff import MAX_SECONDS
from icefloe.storage.client.failures import ClientError, summary
from icefloe.storage.client.sign_in import azure_sign_in, gcs_sign_in, s3_sign_in
from icefloe.storage.identity.aws_profile import aws_profile_region
from icefloe.storage.places.locations import (
    AzureLocation,
    GcsLocation,
    Headers,
    HttpLocation,
    RemoteLocation,
    S3Location,
)
from icefloe.storage.process_forks import check_obstore_is_ours, note_obstore_use

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from icefloe.storage.identity.attribution import Attribution

REQUEST_TIMEOUT = timedelta(minutes=10)
"""For one try including its body. The client's own 30 s are short for 100 MB on a slow line."""

Make = Callable[["ClientConfig", "RetryConfig"], "ObjectStore"]


@record(frozen=True)
class Connection:
    """The clients of one location; ask for them anew before each request."""

    location: str
    can_write: bool
    can_list: bool
    encodes_keys: bool
    """Whether Icechunk spells keys there as `keys.encode_key` does."""
    has_generations: bool
    """Whether versions are told apart by a number besides the ETag."""
    lists_ranges: bool
    """Whether the service starts a listing at any key. Others are read from their beginning."""
    _reader: ObjectStore
    _writer: ObjectStore
    _conditional_writer: ObjectStore

    def reader(self) -> ObjectStore:
        check_obstore_is_ours()
        return self._reader

    def writer(self) -> ObjectStore:
        check_obstore_is_ours()
        return self._writer

    def conditional_writer(self) -> ObjectStore:
        """One that sends every request once: see `conditional.py` for why."""
        check_obstore_is_ours()
        return self._conditional_writer


def connect(
    location: RemoteLocation, settings: ResolvedStorage, attribution: Attribution | None = None
) -> Connection:
    """Clients for `location`. No request is made yet.

    Raises:
        StorageError: an option or credential cannot be used as it is.
    """
    note_obstore_use()
    read_headers, write_headers = _headers(location)
    agent = user_agent() if attribution is None else attribution.header(user_agent())
    try:
        make = _maker(location)
        retries, once = _retries(settings), _retries(settings, is_once=True)
        reader = make(_client_options(location, settings, read_headers, agent), retries)
        writing = _client_options(location, settings, write_headers, agent)
        writer = reader if read_headers == write_headers else make(writing, retries)
        conditional_writer = make(writing, once)
    except (*ClientError, TypeError) as error:
        raise StorageError(
            f"cannot connect to {location.url}: {summary(error)}", ErrorKind.STORAGE_CONFIG
        ) from error
    is_http = isinstance(location, HttpLocation)
    return Connection(
        location=location.url,
        can_write=location.can_write if isinstance(location, S3Location) else not is_http,
        can_list=not is_http,
        encodes_keys=not isinstance(location, S3Location),
        has_generations=isinstance(location, GcsLocation),
        lists_ranges=isinstance(location, S3Location | GcsLocation),
        _reader=reader,
        _writer=writer,
        _conditional_writer=conditional_writer,
    )


def _headers(location: RemoteLocation) -> tuple[Headers, Headers]:
    if isinstance(location, HttpLocation):
        return location.headers, location.headers
    if isinstance(location, AzureLocation):
        return (), ()
    return location.read_headers, location.write_headers


def _maker(location: RemoteLocation) -> Make:
    if isinstance(location, S3Location):
        return _s3_maker(location)
    if isinstance(location, GcsLocation):
        return _gcs_maker(location)
    if isinstance(location, AzureLocation):
        return _azure_maker(location)
    url = location.base_url
    return lambda client, retries: HTTPStore(url, client_options=client, retry_config=retries)


def _s3_maker(location: S3Location) -> Make:
    config, provider = s3_sign_in(location.credentials)
    is_path_style = location.is_path_style
    if location.endpoint_url:
        is_path_style, config["endpoint"] = endpoint_of(location)
    config["virtual_hosted_style_request"] = not is_path_style
    region = location.region or aws_profile_region()
    if region:
        config["region"] = region
    if location.requester_pays:
        config["request_payer"] = True
    if location.checksum_algorithm:
        config["checksum_algorithm"] = location.checksum_algorithm
    return _bound(S3Store, location.bucket, location.prefix, config, provider)


def endpoint_of(location: S3Location) -> tuple[bool, str]:
    """Whether to use path style, and the endpoint; in the other style it names the bucket."""
    url = (location.endpoint_url or "").rstrip("/")
    parts = urlsplit(url)
    if location.is_path_style or _is_address(parts.hostname or ""):
        return True, url
    if "." in location.bucket and parts.scheme == "https":
        return True, url  # no certificate covers bucket names with dots
    return False, f"{parts.scheme}://{location.bucket}.{parts.netloc}{parts.path}"


def _is_address(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _gcs_maker(location: GcsLocation) -> Make:
    config, provider = gcs_sign_in(location.credentials)
    return _bound(
        GCSStore, location.bucket, location.prefix, {**dict(location.config), **config}, provider
    )


def _azure_maker(location: AzureLocation) -> Make:
    config, provider = azure_sign_in(location.credentials)
    config = {**dict(location.config), **config, "account_name": location.account}
    return _bound(AzureStore, location.container, location.prefix, config, provider)


def _bound(
    store: Callable[..., ObjectStore],
    container: str,
    prefix: str,
    config: dict[str, Any],
    provider: Any,
) -> Make:
    options: dict[str, Any] = {"prefix": prefix or None, "config": config}
    if provider is not None:
        options["credential_provider"] = provider
    return lambda client, retries: store(
        container, client_options=client, retry_config=retries, **options
    )


def _client_options(
    location: RemoteLocation, settings: ResolvedStorage, headers: Headers, agent: str
) -> ClientConfig:
    timeouts = settings.timeouts
    options: dict[str, Any] = {"user_agent": agent, "timeout": REQUEST_TIMEOUT}
    if isinstance(location, S3Location):
        options["allow_http"] = location.allow_http
        if location.stream_timeout_seconds:
            options["read_timeout"] = timedelta(seconds=location.stream_timeout_seconds)
    if isinstance(location, HttpLocation):
        options["allow_http"] = location.base_url.startswith("http:")
        options |= dict(location.options)
    for name, value_ms in (
        ("connect_timeout", timeouts.connect_timeout_ms),
        ("read_timeout", timeouts.read_timeout_ms),
        ("timeout", timeouts.operation_attempt_timeout_ms),
    ):
        if value_ms is not None:
            options[name] = timedelta(milliseconds=value_ms)
    if headers:
        options["default_headers"] = dict(headers)
    return options  # type: ignore[return-value]  # a TypedDict filled by name


@cache
def user_agent() -> str:
    """What requests say about the program that makes them."""
    try:
        return f"icefloe/{version('icefloe')}"
    except PackageNotFoundError:  # used from a source tree that is not installed
        return "icefloe"


def _retries(settings: ResolvedStorage, *, is_once: bool = False) -> RetryConfig:
    retries = settings.retries
    longest_ms = settings.timeouts.operation_timeout_ms
    longest_seconds = MAX_SECONDS if longest_ms is None else longest_ms / 1000
    return {
        "max_retries": 0 if is_once else retries.max_tries - 1,
        "retry_timeout": timedelta(seconds=longest_seconds),
        "backoff": {
            "init_backoff": timedelta(milliseconds=retries.initial_backoff_ms),
            "max_backoff": timedelta(milliseconds=retries.max_backoff_ms),
            "base": 2,
        },
    }
