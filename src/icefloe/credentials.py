"""Who we are to a storage service: credentials, and the functions that make them.

Names and signatures are Icechunk's. Unlike there, everything compares and pickles (a pickle
carries the secrets, a refreshable credential only its function), and no secret is in a `repr`.
How a service is given them is in `storage/signing.py`. Containers of virtual chunks are in
`icefloe.config`, which holds no credentials.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar, get_args

from icefloe.display import MASK, Picture, Shown
from icefloe.errors import ErrorKind, InvalidInputError

__all__ = [
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyS3Credential",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "Credentials",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "HttpAccess",
    "LocalFileSystemAccess",
    "S3Credentials",
    "S3StaticCredentials",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "containers_credentials",
    "gcs_anonymous_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
]

Credential = TypeVar("Credential")


@dataclass(frozen=True)
class Refreshable(Generic[Credential]):
    """A function that returns a credential whenever one is needed or about to expire.

    `get_credentials` must be picklable for the storage to be; Icechunk's form, the pickled
    function as bytes, is accepted too. `current` is used first, until it expires.
    """

    # Not hashed: an object that can be called need not have a hash.
    get_credentials: Callable[[], Credential] = field(repr=False, hash=False)
    current: Credential | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        function: Any = self.get_credentials
        if isinstance(function, bytes):
            object.__setattr__(self, "get_credentials", pickle.loads(function))


def _check_expiry(expires_after: datetime | None) -> None:
    if expires_after is not None and expires_after.tzinfo is None:
        raise InvalidInputError(
            f"expires_after is {expires_after!r}, expected a time with a time zone "
            "(datetime.now(UTC) + ...)",
            ErrorKind.INVALID_CREDENTIALS,
        )


def has_expired(expires_after: datetime | None, margin: timedelta = timedelta(0)) -> bool:
    """Whether a credential with this end is of no use any more, or soon will not be."""
    return expires_after is not None and expires_after <= datetime.now(UTC) + margin


@dataclass(frozen=True, slots=True)
class _Expiring:
    """A credential that may end."""

    expires_after: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_expiry(self.expires_after)


@dataclass(frozen=True, repr=False)
class S3StaticCredentials(Shown):
    """A key pair, with a session token if it is a temporary one.

    >>> print(S3StaticCredentials("AKIA1", "topsecret"), end="")
    <icefloe.S3StaticCredentials>
    access_key_id: AKIA****
    secret_access_key: ****
    session_token: None
    expires_after: None
    """

    shown_in: ClassVar[str] = "credentials"

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_after: datetime | None = None

    def __post_init__(self) -> None:
        _check_expiry(self.expires_after)

    def _picture_(self) -> Picture:
        fields = {
            "access_key_id": f"{self.access_key_id[:4]}{MASK}",
            "secret_access_key": MASK,
            "session_token": "None" if self.session_token is None else MASK,
            "expires_after": str(self.expires_after),
        }
        return Picture(self._title_(), list(fields.items()))


class S3Credentials:
    """The ways to sign in to S3 services; make one of the variants.

    >>> credentials = S3Credentials.FromEnv()
    """

    __slots__ = ()

    FromEnv: ClassVar[type[S3FromEnv]]
    Anonymous: ClassVar[type[S3Anonymous]]
    Static: ClassVar[type[S3Static]]
    Refreshable: ClassVar[type[S3Refreshable]]


@dataclass(frozen=True)
class S3FromEnv(S3Credentials):
    """Whatever the environment offers: variables, the AWS profile, the role of the machine."""


@dataclass(frozen=True)
class S3Anonymous(S3Credentials):
    """Requests are not signed."""


@dataclass(frozen=True)
class S3Static(S3Credentials):
    """One key pair for good."""

    credentials: S3StaticCredentials


class S3Refreshable(Refreshable[S3StaticCredentials], S3Credentials):
    """Key pairs from a function."""


AnyS3Credential = S3FromEnv | S3Anonymous | S3Static | S3Refreshable


@dataclass(frozen=True)
class GcsBearerCredential(_Expiring):
    """A bearer token and when it ends.

    >>> token = GcsBearerCredential("token", expires_after=datetime.now(UTC))
    """

    bearer: str = field(repr=False)


class GcsStaticCredentials:
    """The kinds of fixed credentials for Google; make one of the variants.

    >>> credentials = GcsStaticCredentials.ServiceAccount("/keys/account.json")
    """

    __slots__ = ()

    ServiceAccount: ClassVar[type[GcsServiceAccount]]
    ServiceAccountKey: ClassVar[type[GcsServiceAccountKey]]
    ApplicationCredentials: ClassVar[type[GcsApplicationCredentials]]
    BearerToken: ClassVar[type[GcsBearerToken]]


@dataclass(frozen=True)
class GcsServiceAccount(GcsStaticCredentials):
    """The path of a service account file."""

    path: str


@dataclass(frozen=True)
class GcsServiceAccountKey(GcsStaticCredentials):
    """The text of a service account file."""

    key: str = field(repr=False)


@dataclass(frozen=True)
class GcsApplicationCredentials(GcsStaticCredentials):
    """The path of an application credentials file."""

    path: str


@dataclass(frozen=True)
class GcsBearerToken(GcsStaticCredentials):
    """A token that is never renewed."""

    token: str = field(repr=False)


AnyGcsStaticCredential = (
    GcsServiceAccount | GcsServiceAccountKey | GcsApplicationCredentials | GcsBearerToken
)


class GcsCredentials:
    """The ways to sign in to Google Cloud Storage; make one of the variants.

    >>> credentials = GcsCredentials.FromEnv()
    """

    __slots__ = ()

    Anonymous: ClassVar[type[GcsAnonymous]]
    FromEnv: ClassVar[type[GcsFromEnv]]
    Static: ClassVar[type[GcsStatic]]
    Refreshable: ClassVar[type[GcsRefreshable]]


@dataclass(frozen=True)
class GcsAnonymous(GcsCredentials):
    """Requests are not signed."""


@dataclass(frozen=True)
class GcsFromEnv(GcsCredentials):
    """Application default credentials."""


@dataclass(frozen=True)
class GcsStatic(GcsCredentials):
    """One credential for good."""

    credentials: AnyGcsStaticCredential


class GcsRefreshable(Refreshable[GcsBearerCredential], GcsCredentials):
    """Bearer tokens from a function."""


AnyGcsCredential = GcsAnonymous | GcsFromEnv | GcsStatic | GcsRefreshable


class AzureStaticCredentials:
    """The kinds of fixed credentials for Azure; make one of the variants.

    >>> token = AzureStaticCredentials.SasToken("token")
    """

    __slots__ = ()

    AccessKey: ClassVar[type[AzureAccessKey]]
    SasToken: ClassVar[type[AzureSasToken]]
    BearerToken: ClassVar[type[AzureBearerToken]]


@dataclass(frozen=True)
class AzureRefreshableCredential(_Expiring, AzureStaticCredentials):
    """The same kinds, returned by a function and with an end.

    >>> token = AzureRefreshableCredential.BearerToken("token", expires_after=datetime.now(UTC))
    """


@dataclass(frozen=True)
class AzureAccessKey(AzureRefreshableCredential):
    """The key of the storage account."""

    key: str = field(repr=False)


@dataclass(frozen=True)
class AzureSasToken(AzureRefreshableCredential):
    """A shared access signature."""

    token: str = field(repr=False)


@dataclass(frozen=True)
class AzureBearerToken(AzureRefreshableCredential):
    """An access token of Entra ID."""

    bearer: str = field(repr=False)


AnyAzureStaticCredential = AzureAccessKey | AzureSasToken | AzureBearerToken


class AzureCredentials:
    """The ways to sign in to Azure; make one of the variants.

    >>> credentials = AzureCredentials.FromEnv()
    """

    __slots__ = ()

    Anonymous: ClassVar[type[AzureAnonymous]]
    FromEnv: ClassVar[type[AzureFromEnv]]
    Static: ClassVar[type[AzureStatic]]
    Refreshable: ClassVar[type[AzureRefreshable]]


@dataclass(frozen=True)
class AzureAnonymous(AzureCredentials):
    """Requests are not signed."""


@dataclass(frozen=True)
class AzureFromEnv(AzureCredentials):
    """Whatever the environment offers."""


@dataclass(frozen=True)
class AzureStatic(AzureCredentials):
    """One credential for good."""

    credentials: AnyAzureStaticCredential


class AzureRefreshable(Refreshable[AnyAzureStaticCredential], AzureCredentials):
    """Credentials from a function."""


AnyAzureCredential = AzureAnonymous | AzureFromEnv | AzureStatic | AzureRefreshable


for _base, _prefix, _variants in (
    (S3Credentials, "S3", AnyS3Credential),
    (GcsStaticCredentials, "Gcs", AnyGcsStaticCredential),
    (GcsCredentials, "Gcs", AnyGcsCredential),
    (AzureStaticCredentials, "Azure", AnyAzureStaticCredential),
    (AzureCredentials, "Azure", AnyAzureCredential),
):
    for _variant in get_args(_variants):
        setattr(_base, _variant.__name__.removeprefix(_prefix), _variant)


# --- functions -----------------------------------------------------------------------------------


def _one_way(function: str, **given: object) -> str | None:
    """The single way to sign in that was given, None for none; several are refused."""
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

    >>> credentials = icefloe.s3_static_credentials(
    ...     access_key_id="AKIA1", secret_access_key="secret"
    ... )
    """
    return S3Static(
        S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    )


def s3_anonymous_credentials() -> S3Anonymous:
    """Send unsigned requests to S3 services.

    >>> credentials = icefloe.s3_anonymous_credentials()
    """
    return S3Anonymous()


def s3_from_env_credentials() -> S3FromEnv:
    """Sign in to S3 services with what the environment offers.

    >>> credentials = icefloe.s3_from_env_credentials()
    """
    return S3FromEnv()


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,
) -> S3Refreshable:
    """Sign in to S3 services with the `S3StaticCredentials` that `get_credentials` returns.

    With `scatter_initial_credentials` it is called now, and the result is part of every pickle.

    >>> def sign_in():
    ...     return icefloe.S3StaticCredentials("AKIA1", "secret", expires_after=datetime.now(UTC))
    >>> credentials = icefloe.s3_refreshable_credentials(sign_in)
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

    >>> credentials = icefloe.s3_credentials(access_key_id="AKIA1", secret_access_key="secret")
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

    >>> credentials = icefloe.gcs_static_credentials(bearer_token="token")
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
    """Send unsigned requests to Google.

    >>> credentials = icefloe.gcs_anonymous_credentials()
    """
    return GcsAnonymous()


def gcs_from_env_credentials() -> GcsFromEnv:
    """Sign in to Google with what the environment offers.

    >>> credentials = icefloe.gcs_from_env_credentials()
    """
    return GcsFromEnv()


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,
) -> GcsRefreshable:
    """Sign in to Google with tokens from a function; see `s3_refreshable_credentials`.

    Arguments as in `gcs_credentials`.

    >>> credentials = icefloe.gcs_refreshable_credentials(lambda: GcsBearerCredential("token"))
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

    >>> credentials = icefloe.gcs_credentials(service_account_file="/keys/account.json")
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

    >>> credentials = icefloe.azure_static_credentials(sas_token="token")
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
    """Send unsigned requests to Azure.

    >>> credentials = icefloe.azure_anonymous_credentials()
    """
    return AzureAnonymous()


def azure_from_env_credentials() -> AzureFromEnv:
    """Sign in to Azure with what the environment offers.

    >>> credentials = icefloe.azure_from_env_credentials()
    """
    return AzureFromEnv()


def azure_refreshable_credentials(
    get_credentials: Callable[[], AnyAzureStaticCredential],
    scatter_initial_credentials: bool = False,
) -> AzureRefreshable:
    """Sign in to Azure with credentials from a function; see `s3_refreshable_credentials`.

    Arguments as in `azure_credentials`.

    >>> def sign_in():
    ...     return AzureRefreshableCredential.BearerToken("token", expires_after=None)
    >>> credentials = icefloe.azure_refreshable_credentials(sign_in)
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

    >>> credentials = icefloe.azure_credentials(sas_token="token")
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


# --- containers of virtual chunks ----------------------------------------------------------------


class Credentials:
    """What a virtual chunk container may be read with; make one of the variants.

    >>> access = Credentials.S3(icefloe.s3_credentials(anonymous=True))
    """

    __slots__ = ()

    S3: ClassVar[type[ContainerS3]]
    Gcs: ClassVar[type[ContainerGcs]]
    Azure: ClassVar[type[ContainerAzure]]
    LocalFileSystemAccess: ClassVar[type[ContainerLocalFileSystem]]
    HttpAccess: ClassVar[type[ContainerHttp]]


@dataclass(frozen=True)
class ContainerS3(Credentials):
    """Sign in to S3."""

    credentials: AnyS3Credential


@dataclass(frozen=True)
class ContainerGcs(Credentials):
    """Sign in to Google."""

    credentials: AnyGcsCredential


@dataclass(frozen=True)
class ContainerAzure(Credentials):
    """Sign in to Azure."""

    credentials: AnyAzureCredential


@dataclass(frozen=True)
class ContainerLocalFileSystem(Credentials):
    """Permission to read local files."""


@dataclass(frozen=True)
class ContainerHttp(Credentials):
    """Permission to read from web servers."""


Credentials.S3 = ContainerS3
Credentials.Gcs = ContainerGcs
Credentials.Azure = ContainerAzure
Credentials.LocalFileSystemAccess = ContainerLocalFileSystem
Credentials.HttpAccess = ContainerHttp

AnyCredential = (
    ContainerS3 | ContainerGcs | ContainerAzure | ContainerLocalFileSystem | ContainerHttp
)

LocalFileSystemAccess = ContainerLocalFileSystem()
"""Lets a `file://` container be read."""

HttpAccess = ContainerHttp()
"""Lets an `http(s)://` container be read."""


def containers_credentials(
    m: Mapping[str, AnyS3Credential | AnyGcsCredential | AnyAzureCredential | AnyCredential | None],
) -> dict[str, AnyCredential | None]:
    """What the argument `authorize_virtual_chunk_access` wants.

    `m` has prefixes of the URLs of virtual chunks, with credentials or None.

    >>> access = icefloe.containers_credentials({"s3://archive/": icefloe.s3_credentials()})
    >>> repo = repo.reopen(authorize_virtual_chunk_access=access)
    """
    return {prefix: _for_container(prefix, credential) for prefix, credential in m.items()}


def _for_container(prefix: str, credential: object) -> AnyCredential | None:
    if credential is None or isinstance(credential, AnyCredential):
        return credential
    if isinstance(credential, AnyS3Credential):
        return ContainerS3(credential)
    if isinstance(credential, AnyGcsCredential):
        return ContainerGcs(credential)
    if isinstance(credential, AnyAzureCredential):
        return ContainerAzure(credential)
    raise InvalidInputError(
        f"container {prefix!r}: {type(credential).__name__} is not a credential; make one with "
        "s3_credentials, gcs_credentials or azure_credentials",
        ErrorKind.INVALID_CREDENTIALS,
    )
