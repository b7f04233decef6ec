"""Credentials in the form each client wants, and signatures of our own.

Keys and tokens go into obstore's clients through a provider function instead of their options:
options are completed from environment variables, and half a credential from each place signs
nothing.

The profiles that the AWS tools share have keys, or say how to get them: single sign-on, a role to
assume, a program to run. botocore knows all of them (the extra `aws`). obstore knows variables and
the roles of machines, which need no further package.

Reads that must not go through a client that follows redirects are signed here: signature version
4, for GET requests without a body.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from icefloe import credentials as given
from icefloe.credentials import Refreshable, S3Anonymous, has_expired
from icefloe.errors import ErrorKind, InternalError, InvalidInputError, StorageError
from icefloe.storage.locations import S3Location

_OTHER_WAYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that go before a profile, as with the AWS tools."""

_PROFILE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_GOOD_FOR = timedelta(minutes=9)
"""botocore hands out nothing that ends within ten minutes, but does not say when it ends."""

Credential = TypeVar("Credential")
Provider = Callable[[], Any]
_SOON = timedelta(minutes=5)
"""Before its end a credential is not handed out any more."""

SignIn = tuple[dict[str, Any], Provider | None]
"""Options for the client, and a provider of credentials."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = hashlib.sha256(b"").hexdigest()


def s3_sign_in(credentials: given.AnyS3Credential) -> SignIn:
    """How to sign requests to an S3 service."""
    if isinstance(credentials, given.S3Anonymous):
        return {"skip_signature": True}, None
    if isinstance(credentials, given.S3FromEnv):
        return {}, find_aws_profile()
    if isinstance(credentials, given.S3Static):
        fixed = credentials.credentials
        return {"skip_signature": False}, lambda: _s3_form(fixed)
    return {"skip_signature": False}, _refreshed(credentials, given.S3StaticCredentials, _s3_form)


def _s3_form(credential: given.S3StaticCredentials) -> dict[str, Any]:
    return {
        "access_key_id": credential.access_key_id,
        "secret_access_key": credential.secret_access_key,
        "token": credential.session_token,
        "expires_at": credential.expires_after,
    }


def gcs_sign_in(credentials: given.AnyGcsCredential) -> SignIn:
    """How to sign requests to Google."""
    if isinstance(credentials, given.GcsAnonymous):
        return {"skip_signature": True}, None
    if isinstance(credentials, given.GcsFromEnv):
        return {}, None
    if isinstance(credentials, given.GcsRefreshable):
        return {}, _refreshed(
            credentials,
            given.GcsBearerCredential,
            lambda found: _token_form(found.bearer, found.expires_after),
        )
    fixed = credentials.credentials
    if isinstance(fixed, given.GcsServiceAccount):
        return {"service_account": fixed.path}, None
    if isinstance(fixed, given.GcsServiceAccountKey):
        return {"service_account_key": fixed.key}, None
    if isinstance(fixed, given.GcsApplicationCredentials):
        return {"application_credentials": fixed.path}, None
    return {}, lambda: _token_form(fixed.token, None)


def azure_sign_in(credentials: given.AnyAzureCredential) -> SignIn:
    """How to sign requests to Azure."""
    if isinstance(credentials, given.AzureAnonymous):
        return {"skip_signature": True}, None
    if isinstance(credentials, given.AzureFromEnv):
        return {}, None
    if isinstance(credentials, given.AzureStatic):
        fixed = credentials.credentials
        return {}, lambda: _azure_form(fixed)
    kinds = (given.AzureAccessKey, given.AzureSasToken, given.AzureBearerToken)
    return {}, _refreshed(credentials, kinds, _azure_form)


def _azure_form(credential: given.AnyAzureStaticCredential) -> dict[str, Any]:
    if isinstance(credential, given.AzureAccessKey):
        return {"access_key": credential.key, "expires_at": credential.expires_after}
    if isinstance(credential, given.AzureSasToken):
        return {"sas_token": credential.token, "expires_at": credential.expires_after}
    return _token_form(credential.bearer, credential.expires_after)


def _token_form(token: str, expires_at: datetime | None) -> dict[str, Any]:
    return {"token": token, "expires_at": expires_at}


def _refreshed(
    refreshable: Refreshable[Credential],
    expected: type[Credential] | tuple[type[Credential], ...],
    form: Callable[[Credential], dict[str, Any]],
) -> Provider:
    """Gets new credentials each time; the client only asks when it needs others.

    The one that came along in a pickle is handed out to every client until it is about to expire.
    """
    kinds = expected if isinstance(expected, tuple) else (expected,)

    def provide() -> dict[str, Any]:
        found: Any = refreshable.current
        if found is None or has_expired(found.expires_after, _SOON):
            found = _ask(refreshable.get_credentials)
        if not isinstance(found, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise InvalidInputError(
                f"get_credentials returned {type(found).__name__}, expected {names}",
                ErrorKind.INVALID_CREDENTIALS,
            )
        return form(found)

    return provide


def _ask(get_credentials: Callable[[], Any]) -> Any:
    if not callable(get_credentials):
        raise InvalidInputError(
            f"get_credentials: a {type(get_credentials).__name__} object is not callable",
            ErrorKind.INVALID_CREDENTIALS,
        )
    return get_credentials()


# --- AWS profiles --------------------------------------------------------------------------------


def find_aws_profile() -> Callable[[], dict[str, Any]] | None:
    """A function that returns the profile's credentials, or None if there is no profile to use.

    Raises:
        StorageError: the profile does not exist, or its credentials cannot be had.
    """
    if any(name in os.environ for name in _OTHER_WAYS) or not _has_profiles():
        return None
    session = _session()
    profile = _profile_name()
    try:
        found = session.get_credentials()
    except _troubles() as error:
        raise _failed(profile, error, _is_sso(session)) from error
    if found is None:
        return None  # files without keys: the machine may have a role

    def provide() -> dict[str, Any]:
        try:
            keys = found.get_frozen_credentials()
        except _troubles() as error:
            raise _failed(profile, error, _is_sso(session)) from error
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _GOOD_FOR,
        }

    provide()  # what is wrong with a profile is said here, not inside a request
    return provide


def aws_profile_region() -> str | None:
    """The region of the profile, unless an environment variable names one."""
    if "AWS_REGION" in os.environ or "AWS_DEFAULT_REGION" in os.environ:
        return None
    if not _file("AWS_CONFIG_FILE", "~/.aws/config").exists() or find_spec("botocore") is None:
        return None
    found: str | None = _session().get_config_variable("region")
    return found


def _has_profiles() -> bool:
    """Whether a profile is named, or there are files with profiles.

    Raises:
        StorageError: there are keys in them, and no package to read them with.
    """
    keys = _file("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    named = _profile_name()
    if find_spec("botocore") is None:
        if named is None and not keys.exists():
            return False
        what = f"AWS_PROFILE is {named!r}" if named else f"the AWS keys are in {keys}"
        raise StorageError(
            f"{what}, and AWS profiles are read with botocore, which is not installed: "
            "pip install 'icefloe[aws]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ErrorKind.STORAGE_CONFIG,
        )
    config = _file("AWS_CONFIG_FILE", "~/.aws/config")
    return named is not None or keys.exists() or config.exists()


def _file(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable, default)).expanduser()


def _profile_name() -> str | None:
    return next((os.environ[name] for name in _PROFILE if os.environ.get(name)), None)


def _session() -> Any:
    """The botocore session of the files as they are now, with a profile that exists."""
    files = [
        _file("AWS_CONFIG_FILE", "~/.aws/config"),
        _file("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ]
    states = tuple((str(path), path.stat().st_mtime_ns if path.exists() else 0) for path in files)
    with _lock:
        session = _session_of(_profile_name(), states)
    profile = _profile_name()
    try:
        known = sorted(session.available_profiles)
    except _troubles() as error:
        raise _failed(profile, error) from error
    if profile is not None and profile not in known:
        listed = ", ".join(known) or "none"
        raise StorageError(
            f"there is no AWS profile {profile!r} (AWS_PROFILE) in {files[0]} or {files[1]}; "
            f"the profiles there are: {listed}",
            ErrorKind.STORAGE_CONFIG,
        )
    return session


_lock = threading.Lock()


@lru_cache(maxsize=8)
def _session_of(profile: str | None, states: tuple[tuple[str, int], ...]) -> Any:
    """Shared by all clients, so that they share what a sign-in returned."""
    return import_module("botocore.session").Session()


def _troubles() -> Any:
    """What botocore raises; OSError is a program of the profile that cannot be run."""
    errors = import_module("botocore.exceptions")
    return errors.BotoCoreError, errors.ClientError, OSError


def _is_sso(session: Any) -> bool:
    return any(name.startswith("sso_") for name in session.get_scoped_config())


def _failed(profile: str | None, error: Exception, is_sso: bool = False) -> StorageError:
    name = profile or "default"
    advice = f"; sign in with: aws sso login --profile {name}" if is_sso else ""
    return StorageError(
        f"the credentials of the AWS profile {name!r} cannot be had: {error}{advice}",
        ErrorKind.STORAGE_CONFIG,
    )


# --- S3 signatures -------------------------------------------------------------------------------


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
    """The credential in use, renewed when it is about to end."""

    def __init__(self, provider: Callable[[], Any]) -> None:
        self._provider = provider
        self._found: Mapping[str, Any] | None = None

    def get(self) -> Mapping[str, Any]:
        found = self._found
        if found is None or has_expired(found.get("expires_at"), timedelta(minutes=1)):
            found = self._found = self._provider()
        return found


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
