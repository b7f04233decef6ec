"""From an authorised container to a reader of its objects.

This module enforces that a hostile configuration cannot misuse a reader's credentials; see
`virtual.py` for the principle. `are_own` means that the reader supplied the container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote, urlsplit

from icefloe import credentials as given
from icefloe.assets.virtual import VirtualAccess
from icefloe.config import stores
from icefloe.config.containers import Url, VirtualChunkContainer, parse_url
from icefloe.config.repository import StorageSettings
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.calls import Calls
from icefloe.storage.client import connect, endpoint_of
from icefloe.storage.external import ExternalFiles, ExternalReader
from icefloe.storage.locations import (
    AzureLocation,
    GcsLocation,
    RemoteLocation,
    S3Location,
    tigris_endpoint,
)
from icefloe.storage.remote import ObstoreDriver
from icefloe.storage.signing import s3_signer
from icefloe.storage.web import WebOptions, WebReader

# Client options that only tune a connection. Others choose hosts, proxies, keys or trust.
_TUNING = re.compile(
    r"(connect_|read_)?timeout|user_agent|http[12]_.*|pool_.*|default_content_type|"
    r"randomize_addresses|allow_http"
)
_RESERVED_HEADER = re.compile(
    r"host|range|if-.*|connection|content-length|transfer-encoding|te|upgrade|expect|proxy-.*|"
    r"accept-encoding",
    re.IGNORECASE,
)
_AMAZON = re.compile(r"https://([a-z0-9-]+\.)*amazonaws\.com(\.cn)?/?", re.IGNORECASE)
_DURATION = re.compile(
    r"\s*([0-9]+)\s*(ms|millis|milliseconds|s|sec|secs|seconds?|m|min|minutes?)?"
)


def make_reader(
    access: VirtualAccess, container: VirtualChunkContainer, calls: Calls
) -> ExternalReader:
    """A reader for everything below the container's prefix.

    Raises:
        InvalidInputError: it is not authorised, or needs more than was authorised.
    """
    credential = access.credential(container)
    prefix, store, are_own = parse_url(container.url_prefix), container.store, access.are_own
    if isinstance(store, stores.LocalFileSystem):
        return ExternalFiles(prefix.path)
    if isinstance(store, stores.Http):
        return _web(access, container, store, prefix, calls)
    if isinstance(store, stores.Gcs):
        return _obstore(_gcs(container, store, prefix, credential, are_own), calls)
    if isinstance(store, stores.Azure):
        return _obstore(_azure(container, store, prefix, credential, are_own), calls)
    assert isinstance(store, stores.S3 | stores.S3Compatible | stores.Tigris)
    location = _s3(container, store, prefix, credential, are_own)
    endpoint = location.endpoint_url
    if endpoint is None or are_own or _is_well_known(store, endpoint):
        return _obstore(location, calls)
    return _s3_by_hand(location, endpoint, calls)


def _obstore(location: RemoteLocation, calls: Calls) -> ExternalReader:
    settings = location.default_settings().resolved()
    # Foreign keys are used verbatim, without the encoding of our own keys.
    connection = replace(connect(location, settings), encodes_keys=False)
    return ObstoreDriver(connection, settings, calls)


# -- S3


def _s3(
    container: VirtualChunkContainer,
    store: stores.S3 | stores.S3Compatible | stores.Tigris,
    prefix: Url,
    credential: object,
    are_own: bool,
) -> S3Location:
    options = store.opts if isinstance(store, stores.Tigris) else store.options
    endpoint = options.endpoint_url
    if endpoint is None and isinstance(store, stores.Tigris):
        endpoint = tigris_endpoint()
    identity: given.AnyS3Credential
    if isinstance(credential, given.ContainerS3):
        identity = credential.credentials
    elif are_own and not options.anonymous:
        identity = given.S3FromEnv()
    else:
        identity = given.S3Anonymous()
    is_from_env = isinstance(identity, given.S3FromEnv)
    if is_from_env and not (are_own or endpoint is None or _is_well_known(store, endpoint)):
        raise _not_named(container, f"its endpoint {endpoint!r}", "the environment's credentials")
    return S3Location(
        prefix.authority,
        "",
        identity,
        region=options.region,
        endpoint_url=endpoint,
        allow_http=options.allow_http,
        is_path_style=options.force_path_style,
        stream_timeout_seconds=options.network_stream_timeout_seconds,
        requester_pays=options.requester_pays,
        can_write=False,
    )


def _is_well_known(store: stores.ObjectStoreConfig, endpoint: str) -> bool:
    if isinstance(store, stores.Tigris) and endpoint == tigris_endpoint():
        return True
    return _AMAZON.fullmatch(endpoint) is not None


def _s3_by_hand(location: S3Location, endpoint: str, calls: Calls) -> ExternalReader:
    """Uses our own HTTP requests, because obstore follows an endpoint to other hosts."""
    is_path_style, url = endpoint_of(location)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise StorageError(f"endpoint {endpoint!r} is no web address", ErrorKind.STORAGE_CONFIG)
    if parts.scheme == "http" and not location.allow_http:
        raise StorageError(
            f"endpoint {endpoint!r} is not encrypted, and the container does not allow_http",
            ErrorKind.STORAGE_CONFIG,
        )
    folder = parts.path.strip("/")
    bucket = quote(location.bucket, safe="") if is_path_style else ""
    return WebReader(
        f"{parts.scheme}://{parts.netloc}",
        WebOptions(timeout_seconds=float(location.stream_timeout_seconds or 60)),
        location.default_settings().resolved().retries,
        calls,
        may_follow=lambda url: False,
        sign=s3_signer(location),
        folder="/".join(filter(None, (folder, bucket))),
    )


# -- Google and Azure


def _gcs(
    container: VirtualChunkContainer,
    store: stores.Gcs,
    prefix: Url,
    credential: object,
    are_own: bool,
) -> GcsLocation:
    identity: given.AnyGcsCredential = given.GcsAnonymous()
    if isinstance(credential, given.ContainerGcs):
        identity = credential.credentials
    options = _service_options(container, store.opts, are_own)
    return GcsLocation(prefix.authority, "", identity, options)


def _azure(
    container: VirtualChunkContainer,
    store: stores.Azure,
    prefix: Url,
    credential: object,
    are_own: bool,
) -> AzureLocation:
    if not isinstance(credential, given.ContainerAzure):
        raise InvalidInputError(
            f"container {container.url_prefix!r} needs Azure credentials",
            ErrorKind.INVALID_CREDENTIALS,
        )
    account = store.opts.get("account")
    if not account or not re.fullmatch("[A-Za-z0-9-]+", account):
        raise StorageError(
            f"container {container.url_prefix!r}: option 'account' is {account!r}, expected the "
            "name of a storage account",
            ErrorKind.STORAGE_CONFIG,
        )
    others = {name: value for name, value in store.opts.items() if name != "account"}
    options = _service_options(container, others, are_own)
    return AzureLocation(account, prefix.authority, "", credential.credentials, options)


def _service_options(
    container: VirtualChunkContainer, options: Mapping[str, str], are_own: bool
) -> tuple[tuple[str, str], ...]:
    """Options for the service: only those of the caller. A saved configuration has no effect."""
    if are_own:
        return tuple(sorted(options.items()))
    choices = [name for name in options if not _TUNING.fullmatch(name)]
    if choices:
        raise _not_named(container, f"its option {min(choices)!r}", "requests")
    return ()


# -- the web


def _web(
    access: VirtualAccess,
    container: VirtualChunkContainer,
    store: stores.Http,
    prefix: Url,
    calls: Calls,
) -> WebReader:
    headers = dict(store.headers)
    for name, value in headers.items():
        if _RESERVED_HEADER.fullmatch(name) or re.search(r"[\r\n\0]", name + value):
            raise StorageError(
                f"container {container.url_prefix!r}: header {name!r} is not for a container to "
                "set",
                ErrorKind.STORAGE_CONFIG,
            )
    options = WebOptions(headers=headers)
    for name, value in store.opts.items():
        if name in ("timeout", "read_timeout"):
            options = replace(options, timeout_seconds=_seconds(container, name, value))
        elif name == "user_agent":
            options = replace(options, headers={"User-Agent": value, **options.headers})
        elif _TUNING.fullmatch(name):
            continue
        elif not access.are_own:
            raise _not_named(container, f"its option {name!r}", "requests")
        elif name == "proxy_url":
            options = replace(options, proxy_url=value)
        elif name == "allow_invalid_certificates":
            options = replace(options, checks_certificates=value.lower() != "true")
        else:
            raise StorageError(
                f"container {container.url_prefix!r}: unknown client option {name!r}",
                ErrorKind.STORAGE_CONFIG,
            )
    retries = StorageSettings().resolved().retries
    origin = f"{prefix.scheme}://{prefix.authority}"
    return WebReader(origin, options, retries, calls, access.may_follow)


def _seconds(container: VirtualChunkContainer, name: str, text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise StorageError(
            f"container {container.url_prefix!r}: option {name!r} is {text!r}, expected a duration "
            "such as '30s'",
            ErrorKind.STORAGE_CONFIG,
        )
    unit = (found[2] or "s").lower()
    factor = 1e-3 if unit.startswith(("ms", "mill")) else 60.0 if unit.startswith("m") else 1.0
    return int(found[1]) * factor


def _not_named(container: VirtualChunkContainer, what: str, gets: str) -> InvalidInputError:
    return InvalidInputError(
        f"container {container.url_prefix!r} of the saved configuration: {what} would decide where "
        f"{gets} go; if you trust it, open the repository with a config that has this container",
        ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
    )
