"""Following a web address to the storage it stands for."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import IO
from urllib.parse import parse_qs, urljoin, urlsplit

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.identity.credentials import GcsAnonymous, S3Anonymous
from icefloe.storage.places.locations import GcsLocation, HttpLocation, RemoteLocation, S3Location
from icefloe.storage.places.services import r2_endpoint, tigris_endpoint

MAX_REDIRECTS = 10
TIMEOUT_SECONDS = 30.0


class _Stay(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller, because most of them lead out of the web."""

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
    for _ in range(MAX_REDIRECTS):
        target = urljoin(url, _next_location(url, base_url))
        found = _as_location(target, base_url)
        if found is not None:
            return found
        url = target
    raise _bad(base_url, f"still a redirect after {MAX_REDIRECTS} of them")


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
        _Stay(),
    ):
        opener.add_handler(handler)
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as answer:
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
    match parts.scheme:
        case "s3":
            if region is None:
                raise _bad(base_url, f"{_shown(url)} has no parameter 'region'")
            return S3Location(parts.netloc, prefix, S3Anonymous(), region=region)
        case "r2":
            account = options.get("account_id")
            if account is None:
                raise _bad(base_url, f"{_shown(url)} has no parameter 'account_id'")
            return S3Location(
                parts.netloc,
                prefix,
                S3Anonymous(),
                kind="R2",
                region=region or "auto",
                endpoint_url=r2_endpoint(account),
                is_path_style=True,
            )
        case "tigris":
            return S3Location(
                parts.netloc,
                prefix,
                S3Anonymous(),
                kind="Tigris",
                region=region or "auto",
                endpoint_url=tigris_endpoint(),
                can_write=False,
            )
        case "gs" | "gcs":
            return GcsLocation(parts.netloc, prefix, GcsAnonymous())
        case "http+icechunk" | "http+ic" | "https+icechunk" | "https+ic":
            scheme = parts.scheme.partition("+")[0]
            return HttpLocation(f"{scheme}://{parts.netloc}{parts.path}")
        case _:
            return None
