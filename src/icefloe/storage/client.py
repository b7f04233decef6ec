"""obstore clients: how they are made, what their errors mean, and when a request is tried again.

Clients are made when a driver is, never at import time; forks are noticed (`run.py`).
Errors become ours: they name the object and the storage, and no secrets.
"""

from __future__ import annotations

import ipaddress
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from obstore import exceptions as obstore
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from icefloe.config.repository import ResolvedRetries, ResolvedStorage
from icefloe.errors import ErrorKind, StorageError
from icefloe.observe import STORAGE
from icefloe.storage.calls import interruptibly
from icefloe.storage.driver import ConditionFailed, object_not_found
from icefloe.storage.locations import (
    AzureLocation,
    GcsLocation,
    Headers,
    HttpLocation,
    RemoteLocation,
    S3Location,
)
from icefloe.storage.run import check_obstore_is_ours, note_obstore_use, run_blocking
from icefloe.storage.signing import aws_profile_region, azure_sign_in, gcs_sign_in, s3_sign_in

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from icefloe.storage.locations import Attribution

ClientError = (obstore.BaseError, OSError, ValueError)
"""What obstore raises: its own tree, FileNotFoundError, and ValueError for paths and ranges."""

_SIGNED = re.compile(r"\?[^\s\"'<>]*")
_ANSWER = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_THROTTLED = re.compile(r"status code: (429|503)|SlowDown|TooManyRequests|ServerBusy")
_UNSATISFIABLE = re.compile(r"status code: 416|InvalidRange")
_NO_ANSWER = "Error performing"  # how the client begins once it has given up on a request
_CUT = re.compile("response body|invalid list response")
_NOT_SENT = re.compile(r"kind: Connect\b")
_NO_KEYS = re.compile(r"/latest/(api/token|meta-data/iam)")  # the last resort: the machine's role
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")

DEFINITE = (
    obstore.PermissionDeniedError,
    obstore.UnauthenticatedError,
    obstore.NotSupportedError,
    obstore.InvalidPathError,
    obstore.UnknownConfigurationKeyError,
    ValueError,
)
"""After these the request has certainly not been carried out."""


NO_AWS_KEYS = (
    "no AWS credentials were found; set AWS_PROFILE or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, pass access_key_id=... and secret_access_key=..., or "
    "anonymous=True for a public bucket"
)


class RequestRefused(StorageError):  # noqa: N818 - a StorageError to callers; the name tells us more
    """A StorageError after which nothing can have been written."""


class BucketMissing(RequestRefused):
    """There is no such bucket or container."""

    is_bucket_missing = True


class RequestNotSent(StorageError):  # noqa: N818 - see above
    """There was no connection: the server has not seen the request."""


class RangeNotSatisfiable(StorageError):  # noqa: N818 - see above
    """The object ends before the wanted range starts."""


def condition_failed(error: Exception) -> bool:
    """Whether a conditional request was answered with no."""
    return isinstance(
        error, obstore.AlreadyExistsError | obstore.PreconditionError | obstore.NotModifiedError
    )


def lacks_ranges(error: Exception) -> bool:
    """Whether a server has answered a request for part of an object with all of it."""
    return isinstance(error, obstore.NotSupportedError)


def broke_off(error: Exception) -> bool:
    """Whether an answer arrived that could not be used, for example because it was cut short."""
    return isinstance(error, obstore.GenericError) and _NO_ANSWER not in str(error)


def was_cut(error: Exception) -> bool:
    """Whether a response was cut short."""
    text = str(error)
    # A large object may be complete although the answer broke off. The client then finds no upload
    # to give up.
    is_upload_gone = isinstance(error, FileNotFoundError) and "uploadId=" in text
    return is_upload_gone or _CUT.search(text) is not None


def translated(
    error: Exception, action: str, key: str, location: str
) -> StorageError | ConditionFailed:
    """The exception to raise instead of `error`."""
    text = summary(error)
    if condition_failed(error):
        return ConditionFailed(key)
    if isinstance(error, FileNotFoundError) and not _NO_BUCKET.search(str(error)):
        return object_not_found(key, location)
    if _NO_KEYS.search(str(error)):
        text = NO_AWS_KEYS
    message = f"cannot {action} {repr(key) + ' in ' if key else ''}{location}: {text}"
    if _UNSATISFIABLE.search(str(error)):
        return RangeNotSatisfiable(message, ErrorKind.INVALID_OBJECT_SIZE)
    if _THROTTLED.search(str(error)):
        return StorageError(message, ErrorKind.THROTTLED)
    if _NO_BUCKET.search(str(error)):
        advice = "create the bucket first, or check its name, region and endpoint"
        return BucketMissing(f"{message}; {advice}", ErrorKind.OBJECT_STORE)
    if isinstance(error, DEFINITE):
        return RequestRefused(message, ErrorKind.OBJECT_STORE)
    if _NOT_SENT.search(str(error)):
        return RequestNotSent(message, ErrorKind.OBJECT_STORE)
    return StorageError(message, ErrorKind.OBJECT_STORE)


def summary(error: Exception) -> str:
    """What went wrong in one line, without the query strings that may hold signatures."""
    text = str(error).partition("\n\nDebug source")[0]
    answer = _ANSWER.search(text)
    first_line = _SIGNED.sub("", text.partition("<?xml")[0].partition("\n")[0]).strip(" :")
    if answer:
        return f"{first_line} ({': '.join(filter(None, answer.groups()))})"
    return first_line or type(error).__name__


# --- retries ------------------------------------------------------------------------------------

Result = TypeVar("Result")

MAX_SECONDS = 180.0
"""Upper limit of all retries of one operation; settings cannot raise it."""


def pauses(retries: ResolvedRetries) -> Iterator[float]:
    """Seconds to wait before each further try; ends when there should be none.

    The pauses grow twofold from `initial_backoff_ms` to `max_backoff_ms`, and each is drawn at
    random between nothing and that, so that those who collided once do not collide again.
    """
    deadline = time.monotonic() + MAX_SECONDS
    ceiling_ms = float(retries.initial_backoff_ms)
    for _ in range(retries.max_tries - 1):
        pause = random.uniform(0, min(ceiling_ms, retries.max_backoff_ms)) / 1000
        if time.monotonic() + pause > deadline:
            return
        yield pause
        ceiling_ms *= 2


async def retry_cut(
    request: Callable[[], Awaitable[Result]],
    retries: ResolvedRetries,
    sleep: Callable[[float], Awaitable[None]],
    progress: Callable[[], object] = lambda: None,
) -> Result:
    """The result of a request that may be repeated, tried again when its answer breaks off.

    The client retries requests itself, but not once an answer has begun. Tries count from the
    start again when `progress` has changed.
    """
    waits, before = pauses(retries), progress()
    while True:
        try:
            return await request()
        except ClientError as error:
            if not was_cut(error):
                raise
            if progress() != before:
                waits, before = pauses(retries), progress()
            pause = next(waits, None)
            if pause is None:
                raise
            STORAGE.info("trying again in %.2f s: %s", pause, summary(error))
        await sleep(pause)


def retry_cut_blocking(request: Callable[[], Result]) -> Result:
    """The same for a request that blocks, which Ctrl-C may end."""

    async def once() -> Result:
        return interruptibly(request)

    async def sleep(seconds: float) -> None:
        time.sleep(seconds)

    return run_blocking(retry_cut(once, ResolvedRetries(), sleep))


# --- connections --------------------------------------------------------------------------------

REQUEST_TIMEOUT = timedelta(minutes=10)
"""For one try including its body. The client's own 30 s are short for 100 MB on a slow line."""

Make = Callable[["ClientConfig", "RetryConfig"], "ObjectStore"]


@dataclass(frozen=True, slots=True)
class Connection:
    """The clients of one location; get them from here before each request."""

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
