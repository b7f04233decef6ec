"""Credentials in the form each obstore client wants.

Keys and tokens go in through a provider function instead of the client's options: options are
completed from environment variables, and half a credential from each place signs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.identity import credentials as given
from icefloe.storage.identity.aws_profile import find_aws_profile
from icefloe.storage.identity.credentials import Refreshable, has_expired

Credential = TypeVar("Credential")
Provider = Callable[[], Any]
_SOON = timedelta(minutes=5)
"""Before its end a credential is not handed out any more."""

SignIn = tuple[dict[str, Any], Provider | None]
"""Options for the client, and a provider of credentials."""


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
    """Asks for credentials anew each time; the client only asks when it needs others.

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
