"""Web servers that may be hostile: parts of their files, and the storages they redirect to.

obstore follows redirects to any host and takes our headers along, which must not happen with
addresses that come out of other people's repositories. So these requests are made here, on
connections of our own, and a redirect is followed only if the caller allows its target.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from typing import IO
from urllib.parse import SplitResult, parse_qs, quote, urljoin, urlsplit

from icefloe.config.repository import ResolvedRetries
from icefloe.credentials import GcsAnonymous, S3Anonymous
from icefloe.errors import ErrorKind, StorageError
from icefloe.observe import STORAGE, StorageCall
from icefloe.storage.calls import Calls
from icefloe.storage.client import pauses
from icefloe.storage.driver import ConditionFailed, Readable, Span, object_not_found
from icefloe.storage.external import ANY_ETAG, Unchanged, bare_etag
from icefloe.storage.locations import (
    GcsLocation,
    HttpLocation,
    RemoteLocation,
    S3Location,
    r2_endpoint,
    tigris_endpoint,
)
from icefloe.storage.run import repair_after_fork

MAX_REDIRECTS = 5
_MAX_STORAGE_REDIRECTS = 10
_TIMEOUT_SECONDS = 30.0
_MAX_IDLE = 32
_SKIP_BYTES = 1 << 20
_TRY_AGAIN = frozenset({408, 429, 499, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What a path keeps as it is; `quote` always keeps letters, digits and "_.-~".
_KEPT_IN_PATH = "/!$&'()*+,;=:@"

Sign = Callable[[str, str], Mapping[str, str]]
"""(host with port, path as sent) -> headers that prove who we are."""


@dataclass(frozen=True, slots=True)
class WebOptions:
    """How to talk to a server."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 60.0
    proxy_url: str | None = None
    checks_certificates: bool = True


_Idle = dict[tuple[str, str], list[http.client.HTTPConnection]]
"""Idle connections, by scheme and host."""


class _TransientError(Exception):
    """The same request may well succeed when it is tried again."""


class WebReader:
    """See `icefloe.storage.external.ExternalReader`.

    `origin` is scheme, host and port; keys are paths below `folder`, which is quoted already.
    """

    def __init__(
        self,
        origin: str,
        options: WebOptions,
        retries: ResolvedRetries,
        calls: Calls,
        may_follow: Callable[[str], bool],
        *,
        folder: str = "",
        sign: Sign | None = None,
    ) -> None:
        self._origin = urlsplit(origin)
        self._options = options
        self._retries = retries
        self._calls = calls
        self._may_follow = may_follow
        self._folder = f"/{folder}/" if folder else "/"
        self._sign = sign
        # A signature covers the path in one spelling, with everything encoded that can be.
        self._kept = _KEPT_IN_PATH if sign is None else "/"
        self._lock = threading.Lock()
        self._idle: _Idle = {}
        weakref.finalize(self, _close_all, self._idle)
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        # Two processes on one connection would read each other's answers.
        self._lock = threading.Lock()
        _close_all(self._idle)

    async def get_if_unchanged(self, key: str, span: Span, condition: Unchanged) -> Readable:
        """See `icefloe.storage.external.ExternalReader`."""
        path = self._folder + quote(key, safe=self._kept)
        start = f"{self._origin.scheme}://{self._origin.netloc}{path}"
        waits = pauses(self._retries)
        while True:
            try:
                with StorageCall("get", key, self._origin.netloc) as request:
                    request.nbytes = span.length
                    return await self._calls.call(lambda: self._read(start, key, span, condition))
            except _TransientError as trouble:
                pause = next(waits, None)
                if pause is None:
                    raise StorageError(f"cannot read {start}: {trouble}") from trouble
                STORAGE.info("reading %s again in %.2f s: %s", start, pause, trouble)
                await self._calls.sleep(pause)

    def _read(self, start: str, key: str, span: Span, condition: Unchanged) -> bytes:
        url = start
        for _ in range(MAX_REDIRECTS + 1):
            target = urlsplit(url)
            is_home = (target.scheme, target.netloc) == (self._origin.scheme, self._origin.netloc)
            found = self._ask(target, key, span, condition, is_home=is_home)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
            if not self._may_follow(url):
                raise StorageError(
                    f"{start} redirects to {url.partition('?')[0]}, which is not authorised; "
                    "authorise a prefix of it to follow"
                )
        raise StorageError(f"{start} is still a redirect after {MAX_REDIRECTS} of them")

    def _ask(
        self, url: SplitResult, key: str, span: Span, condition: Unchanged, *, is_home: bool
    ) -> bytes | str:
        """The bytes, or where we are sent instead."""
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        headers = {"Accept-Encoding": "identity", **_conditions(condition)}
        if is_home:  # headers of this server go to no other
            headers |= self._options.headers
            if self._sign is not None:
                headers |= self._sign(url.netloc, path)
        headers["Range"] = f"bytes={span.start}-{span.start + span.length - 1}"
        connection, answer = self._take(url), None
        is_clean = False
        try:
            target = f"http://{url.netloc}{path}" if self._is_proxied(url) else path
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            if answer.status in _REDIRECTS:
                where = answer.getheader("Location")
                if not where:
                    raise StorageError(f"{url.geturl()} redirects to nowhere ({answer.status})")
                return where
            data = _body(answer, url.geturl(), key, span, condition)
            is_clean = True
            return data
        except (OSError, http.client.HTTPException) as error:
            raise _TransientError(f"{type(error).__name__}: {error}") from error
        finally:
            if answer is not None:
                is_clean = is_clean and answer.isclosed()
                answer.close()
            self._give_back(url, connection, is_clean=is_clean)

    def _take(self, url: SplitResult) -> http.client.HTTPConnection:
        with self._lock:
            idle = self._idle.get((url.scheme, url.netloc))
            if idle:
                return idle.pop()
        return self._connect(url)

    def _give_back(
        self, url: SplitResult, connection: http.client.HTTPConnection, *, is_clean: bool
    ) -> None:
        if is_clean:
            with self._lock:
                idle = self._idle.setdefault((url.scheme, url.netloc), [])
                if len(idle) < _MAX_IDLE:
                    idle.append(connection)
                    return
        connection.close()

    def _proxy(self, url: SplitResult) -> SplitResult | None:
        proxy = self._options.proxy_url
        if proxy is None and not urllib.request.proxy_bypass(url.hostname or ""):
            proxy = urllib.request.getproxies().get(url.scheme)
        return None if proxy is None else urlsplit(proxy if "://" in proxy else f"http://{proxy}")

    def _is_proxied(self, url: SplitResult) -> bool:
        return url.scheme == "http" and self._proxy(url) is not None

    def _connect(self, url: SplitResult) -> http.client.HTTPConnection:
        proxy, timeout = self._proxy(url), self._options.timeout_seconds
        place = proxy or url
        try:
            host, port = place.hostname or "", place.port
        except ValueError as error:
            raise StorageError(f"{place.netloc!r} is no host: {error}") from error
        if url.scheme == "https":
            context = ssl.create_default_context()
            if not self._options.checks_certificates:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            secure = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
            if proxy is not None:
                secure.set_tunnel(url.hostname or "", url.port or 443)
            return secure
        return http.client.HTTPConnection(host, port, timeout=timeout)


def _close_all(idle: _Idle) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
    idle.clear()


def _conditions(condition: Unchanged) -> dict[str, str]:
    """A weak ETag never matches in a request, so that one is only compared afterwards."""
    etag = condition.etag
    if etag is not None and not etag.startswith("W/"):
        return {"If-Match": ANY_ETAG if etag == ANY_ETAG else f'"{bare_etag(etag)}"'}
    if etag is None and condition.last_modified is not None:
        when = datetime.fromtimestamp(condition.last_modified, UTC)
        return {"If-Unmodified-Since": format_datetime(when, usegmt=True)}
    return {}


def _body(
    answer: http.client.HTTPResponse, url: str, key: str, span: Span, condition: Unchanged
) -> bytes:
    """The wanted bytes of an answer, whether the server knows ranges or not."""
    status = answer.status
    if status in _TRY_AGAIN:
        raise _TransientError(f"the server answered {status} {answer.reason}")
    if status == http.client.PRECONDITION_FAILED:
        raise ConditionFailed(f"{url} has changed")
    if status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise _too_short(url, span, answer.getheader("Content-Range", "").rpartition("/")[2])
    if status in (http.client.NOT_FOUND, http.client.GONE):
        raise object_not_found(key, url)
    if status not in (http.client.OK, http.client.PARTIAL_CONTENT):
        raise StorageError(f"cannot read {url}: the server answered {status} {answer.reason}")
    if answer.getheader("Content-Encoding", "identity") != "identity":
        raise StorageError(
            f"cannot read {url}: the server sends it encoded as "
            f"{answer.getheader('Content-Encoding')!r}, so that offsets mean something else"
        )
    condition.check(url, answer.getheader("ETag"), _moment(answer.getheader("Last-Modified")))
    if status == http.client.OK:
        _skip(answer, url, span)
    else:
        announced = answer.getheader("Content-Range", "").strip().removeprefix("bytes").strip()
        if announced.partition("-")[0] != str(span.start):
            raise StorageError(
                f"cannot read {url}: asked for {span.length} bytes from {span.start}, the server "
                f"sent {announced!r}"
            )
    data = answer.read(span.length)
    if len(data) < span.length:
        raise _too_short(url, span, str(span.start + len(data)))
    return data


def _skip(answer: http.client.HTTPResponse, url: str, span: Span) -> None:
    todo = span.start
    while todo:
        skipped = len(answer.read(min(todo, _SKIP_BYTES)))
        if not skipped:
            raise _too_short(url, span, str(span.start - todo))
        todo -= skipped


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _too_short(url: str, span: Span, size: str) -> StorageError:
    return StorageError(
        f"{url} has {size or 'fewer'} bytes, expected at least {span.start + span.length} to read "
        f"{span.length} from {span.start}",
        ErrorKind.INVALID_OBJECT_SIZE,
    )


# --- redirects to storages -----------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: targets such as `s3://` are handled by the caller."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def resolve_redirect(base_url: str) -> RemoteLocation:
    """The storage `base_url` leads to, opened anonymously.

    Raises:
        StorageError: no redirect, too many, or to something that is no storage (bad-redirect).
    """
    url = base_url
    for _ in range(_MAX_STORAGE_REDIRECTS):
        target = urljoin(url, _next_location(url, base_url))
        found = _as_location(target, base_url)
        if found is not None:
            return found
        url = target
    raise _bad(base_url, f"still a redirect after {_MAX_STORAGE_REDIRECTS} of them")


def _shown(url: str) -> str:
    """Without the query, which may be a secret."""
    return url.partition("?")[0]


def _bad(base_url: str, reason: str) -> StorageError:
    return StorageError(
        f"{_shown(base_url)} does not lead to a storage: {reason}; expected a "
        "redirect to an s3, gs, r2, tigris or http+icechunk URL",
        ErrorKind.BAD_REDIRECT,
    )


def _next_location(url: str, base_url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise _bad(base_url, f"{_shown(url)} is none")
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.ProxyHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _NoRedirect(),
    ):
        opener.add_handler(handler)
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS) as answer:
            raise _bad(base_url, f"{_shown(url)} answered {answer.status} and no Location")
    except urllib.error.HTTPError as error:
        with error:
            location: str | None = error.headers.get("Location")
            if location is None:
                raise _bad(
                    base_url, f"{_shown(url)} answered {error.code} and no Location"
                ) from None
            return location
    except OSError as error:
        raise _bad(base_url, f"{_shown(url)} could not be asked ({error})") from error


def _as_location(url: str, base_url: str) -> RemoteLocation | None:
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    prefix = parts.path.strip("/")
    region = options.get("region")
    in_bucket = partial(S3Location, parts.netloc, prefix, S3Anonymous())
    elsewhere = partial(in_bucket, region=region or "auto")
    match parts.scheme:
        case "s3":
            if region is None:
                raise _bad(base_url, f"{_shown(url)} has no parameter 'region'")
            return in_bucket(region=region)
        case "r2":
            account = options.get("account_id")
            if account is None:
                raise _bad(base_url, f"{_shown(url)} has no parameter 'account_id'")
            return elsewhere(kind="R2", endpoint_url=r2_endpoint(account), is_path_style=True)
        case "tigris":
            return elsewhere(kind="Tigris", endpoint_url=tigris_endpoint(), can_write=False)
        case "gs" | "gcs":
            return GcsLocation(parts.netloc, prefix, GcsAnonymous())
        case "http+icechunk" | "http+ic" | "https+icechunk" | "https+ic":
            scheme = parts.scheme.partition("+")[0]
            return HttpLocation(f"{scheme}://{parts.netloc}{parts.path}")
        case _:
            return None
