"""Signing S3 reads ourselves, where they must not go through a client that follows redirects.

Signature version 4, for GET requests without a body.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from icefloe.errors import ErrorKind, InternalError
from icefloe.storage.client.sign_in import s3_sign_in
from icefloe.storage.identity.credentials import S3Anonymous
from icefloe.storage.places.locations import S3Location

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = hashlib.sha256(b"").hexdigest()


def s3_signer(location: S3Location) -> Callable[[str, str], Mapping[str, str]]:
    """A function of host and path that gives the headers of a signed request.

    Anonymous requests have none; what the environment is signed in with is not for this.
    """
    payer = {"x-amz-request-payer": "requester"} if location.requester_pays else {}
    if isinstance(location.credentials, S3Anonymous):
        return lambda host, path: payer
    _, provider = s3_sign_in(location.credentials)
    if provider is None:
        raise InternalError("only explicit credentials can be signed with here", ErrorKind.UNKNOWN)
    region = location.region or "us-east-1"
    keys = _Current(provider)

    def sign(host: str, path: str) -> Mapping[str, str]:
        return signed_headers(keys.get(), region, host, path, datetime.now(UTC), payer)

    return sign


class _Current:
    """The credential in use, asked for again when it is about to end."""

    def __init__(self, provider: Callable[[], Any]) -> None:
        self._provider = provider
        self._found: Mapping[str, Any] | None = None

    def get(self) -> Mapping[str, Any]:
        found = self._found
        if found is None or _ends_soon(found.get("expires_at")):
            found = self._found = self._provider()
        return found


def _ends_soon(expires_at: datetime | None) -> bool:
    return expires_at is not None and (expires_at - datetime.now(UTC)).total_seconds() < 60


def signed_headers(
    keys: Mapping[str, Any],
    region: str,
    host: str,
    path: str,
    now: datetime,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Headers for a GET of `path`, percent-encoded and without a query, on `host`."""
    instant, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"x-amz-content-sha256": _NO_BODY, "x-amz-date": instant, **(extra or {})}
    if keys.get("token"):
        headers["x-amz-security-token"] = keys["token"]
    covered = sorted({"host": host, **headers}.items())
    names = ";".join(name for name, _ in covered)
    lines = [f"{name}:{value.strip()}" for name, value in covered]
    request = "\n".join(["GET", path, "", *lines, "", names, _NO_BODY])
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join([_ALGORITHM, instant, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{keys['secret_access_key']}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={keys['access_key_id']}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )
    return headers
