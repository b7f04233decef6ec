"""The functions people call to make credentials. The types are in `credentials.py`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.identity.credentials import (
    AnyAzureCredential,
    AnyAzureStaticCredential,
    AnyGcsCredential,
    AnyGcsStaticCredential,
    AnyS3Credential,
    AzureAccessKey,
    AzureAnonymous,
    AzureBearerToken,
    AzureFromEnv,
    AzureRefreshable,
    AzureSasToken,
    AzureStatic,
    GcsAnonymous,
    GcsApplicationCredentials,
    GcsBearerCredential,
    GcsBearerToken,
    GcsFromEnv,
    GcsRefreshable,
    GcsServiceAccount,
    GcsServiceAccountKey,
    GcsStatic,
    S3Anonymous,
    S3FromEnv,
    S3Refreshable,
    S3Static,
    S3StaticCredentials,
)

Credential = TypeVar("Credential")


def _one_way(function: str, **given: object) -> str | None:
    """The single way to sign in that was asked for, None for none; several are refused."""
    ways = [name for name, value in given.items() if value]
    if len(ways) > 1:
        raise InvalidInputError(
            f"{function} got {' and '.join(ways)}, which exclude each other; keep one of them",
            ErrorKind.INVALID_CREDENTIALS,
        )
    return ways[0] if ways else None


def _incomplete(function: str, expected: str) -> InvalidInputError:
    return InvalidInputError(f"{function} needs {expected}", ErrorKind.INVALID_CREDENTIALS)


def _first(
    get_credentials: Callable[[], Credential], scatter_initial_credentials: bool
) -> Credential | None:
    """A credential to be sent along with pickles, so that copies need not ask for one at once."""
    return get_credentials() if scatter_initial_credentials else None


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: datetime | None = None,
) -> S3Static:
    """Sign in to S3 services with a key pair.

    Arguments as in `s3_credentials`.
    """
    return S3Static(
        S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    )


def s3_anonymous_credentials() -> S3Anonymous:
    """Send unsigned requests to S3 services."""
    return S3Anonymous()


def s3_from_env_credentials() -> S3FromEnv:
    """Sign in to S3 services with what the environment offers."""
    return S3FromEnv()


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,
) -> S3Refreshable:
    """Sign in to S3 services with key pairs from a function.

    With `scatter_initial_credentials` it is called now, and the result is part of every pickle.

    Args:
        get_credentials: a function that returns `S3StaticCredentials`.
    """
    return S3Refreshable(get_credentials, _first(get_credentials, scatter_initial_credentials))


def s3_credentials(
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyS3Credential:
    """Credentials for S3 services; from the environment unless an argument says otherwise.

    Args:
        access_key_id: with `secret_access_key`: the keys to sign with.
        secret_access_key: see `access_key_id`.
        session_token: of temporary keys.
        expires_after: when such keys end; with a time zone.
        anonymous: do not sign: for public buckets.
        from_env: take the credentials from the environment, which is also what happens without any:
            variables, the AWS profile, the role of the machine.
        get_credentials: a function that returns `S3StaticCredentials`, called when they are needed
            or about to end. It is pickled with the storage.
        scatter_initial_credentials: call it now, and send the result along in pickles.
    """
    has_keys = any((access_key_id, secret_access_key, session_token, expires_after))
    way = _one_way(
        "s3_credentials",
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        keys=has_keys,
    )
    if way == "anonymous":
        return S3Anonymous()
    if get_credentials is not None:
        return s3_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if way == "keys":
        if not access_key_id or not secret_access_key:
            raise _incomplete("s3_credentials", "both access_key_id and secret_access_key")
        return s3_static_credentials(
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            session_token=session_token,
            expires_after=expires_after,
        )
    if from_env is False:
        raise _incomplete("s3_credentials", "keys, a function or anonymous when from_env is False")
    return S3FromEnv()


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> AnyGcsStaticCredential:
    """One fixed credential for Google.

    Arguments as in `gcs_credentials`.
    """
    _one_way(
        "gcs_static_credentials",
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
    )
    if service_account_file is not None:
        return GcsServiceAccount(service_account_file)
    if service_account_key is not None:
        return GcsServiceAccountKey(service_account_key)
    if application_credentials is not None:
        return GcsApplicationCredentials(application_credentials)
    if bearer_token is not None:
        return GcsBearerToken(bearer_token)
    raise _incomplete("gcs_static_credentials", "one of its arguments")


def gcs_anonymous_credentials() -> GcsAnonymous:
    """Send unsigned requests to Google."""
    return GcsAnonymous()


def gcs_from_env_credentials() -> GcsFromEnv:
    """Sign in to Google with what the environment offers."""
    return GcsFromEnv()


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,
) -> GcsRefreshable:
    """Sign in to Google with tokens from a function; see `s3_refreshable_credentials`.

    Arguments as in `gcs_credentials`.
    """
    return GcsRefreshable(get_credentials, _first(get_credentials, scatter_initial_credentials))


def gcs_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyGcsCredential:
    """Credentials for Google; from the environment unless an argument says otherwise.

    Args:
        service_account_file: the path of a JSON key.
        service_account_key: such a key as text.
        application_credentials: the path of what `gcloud auth application-default login` wrote.
        bearer_token: an OAuth token.
        from_env: take them from the environment.
        anonymous: do not sign.
        get_credentials: a function that returns `GcsBearerCredential`.
        scatter_initial_credentials: call it now, and send the result along in pickles.
    """
    fixed = {
        "service_account_file": service_account_file,
        "service_account_key": service_account_key,
        "application_credentials": application_credentials,
        "bearer_token": bearer_token,
    }
    way = _one_way(
        "gcs_credentials",
        **fixed,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
    )
    if way == "anonymous":
        return GcsAnonymous()
    if get_credentials is not None:
        return gcs_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if way in fixed:
        return GcsStatic(gcs_static_credentials(**fixed))
    if from_env is False:
        raise _incomplete("gcs_credentials", "another way to sign in when from_env is False")
    return GcsFromEnv()


def azure_static_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
) -> AnyAzureStaticCredential:
    """One fixed credential for Azure.

    Arguments as in `azure_credentials`.
    """
    _one_way(
        "azure_static_credentials",
        access_key=access_key,
        sas_token=sas_token,
        bearer_token=bearer_token,
    )
    if access_key is not None:
        return AzureAccessKey(access_key)
    if sas_token is not None:
        return AzureSasToken(sas_token)
    if bearer_token is not None:
        return AzureBearerToken(bearer_token)
    raise _incomplete("azure_static_credentials", "one of its arguments")


def azure_anonymous_credentials() -> AzureAnonymous:
    """Send unsigned requests to Azure."""
    return AzureAnonymous()


def azure_from_env_credentials() -> AzureFromEnv:
    """Sign in to Azure with what the environment offers."""
    return AzureFromEnv()


def azure_refreshable_credentials(
    get_credentials: Callable[[], AnyAzureStaticCredential],
    scatter_initial_credentials: bool = False,
) -> AzureRefreshable:
    """Sign in to Azure with credentials from a function; see `s3_refreshable_credentials`.

    Arguments as in `azure_credentials`.
    """
    return AzureRefreshable(get_credentials, _first(get_credentials, scatter_initial_credentials))


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AnyAzureStaticCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyAzureCredential:
    """Credentials for Azure; from the environment unless an argument says otherwise.

    Args:
        access_key: the key of the account.
        sas_token: a shared access signature.
        bearer_token: an OAuth token.
        from_env: take them from the environment.
        anonymous: do not sign.
        get_credentials: a function that returns a static credential.
        scatter_initial_credentials: call it now, and send the result along in pickles.
    """
    fixed = {"access_key": access_key, "sas_token": sas_token, "bearer_token": bearer_token}
    way = _one_way(
        "azure_credentials",
        **fixed,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
    )
    if way == "anonymous":
        return AzureAnonymous()
    if get_credentials is not None:
        return azure_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if way in fixed:
        return AzureStatic(azure_static_credentials(**fixed))
    if from_env is False:
        raise _incomplete("azure_credentials", "another way to sign in when from_env is False")
    return AzureFromEnv()
