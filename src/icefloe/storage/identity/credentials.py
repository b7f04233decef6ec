"""Who we are to a storage service: the credential types, and the functions that make them.

Names and signatures are Icechunk's. Unlike there, everything compares and pickles (a pickle
carries the secrets, a refreshable credential only its function), and no secret is in a `repr`.
How a service is given them is in `sign_in.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from icefloe.display.shown import MASK, Picture, Shown
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import record

Credential = TypeVar("Credential")


@record(frozen=True)
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


# --- S3 ----------------------------------------------------------------------------------------


@record(frozen=True, repr=False)
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
    """The ways to sign in to S3 services; make one of the variants."""

    __slots__ = ()

    FromEnv: ClassVar[type[S3FromEnv]]
    Anonymous: ClassVar[type[S3Anonymous]]
    Static: ClassVar[type[S3Static]]
    Refreshable: ClassVar[type[S3Refreshable]]


@record(frozen=True)
class S3FromEnv(S3Credentials):
    """Whatever the environment offers: variables, the AWS profile, the role of the machine."""


@record(frozen=True)
class S3Anonymous(S3Credentials):
    """Requests are not signed."""


@record(frozen=True)
class S3Static(S3Credentials):
    """One key pair for good."""

    credentials: S3StaticCredentials


class S3Refreshable(Refreshable[S3StaticCredentials], S3Credentials):
    """Key pairs from a function."""


S3Credentials.FromEnv = S3FromEnv
S3Credentials.Anonymous = S3Anonymous
S3Credentials.Static = S3Static
S3Credentials.Refreshable = S3Refreshable

AnyS3Credential = S3FromEnv | S3Anonymous | S3Static | S3Refreshable


# --- Google ------------------------------------------------------------------------------------


@record(frozen=True)
class GcsBearerCredential:
    """A bearer token and when it ends."""

    bearer: str = field(repr=False)
    expires_after: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_expiry(self.expires_after)


class GcsStaticCredentials:
    """The kinds of fixed credentials for Google; make one of the variants."""

    __slots__ = ()

    ServiceAccount: ClassVar[type[GcsServiceAccount]]
    ServiceAccountKey: ClassVar[type[GcsServiceAccountKey]]
    ApplicationCredentials: ClassVar[type[GcsApplicationCredentials]]
    BearerToken: ClassVar[type[GcsBearerToken]]


@record(frozen=True)
class GcsServiceAccount(GcsStaticCredentials):
    """The path of a service account file."""

    path: str


@record(frozen=True)
class GcsServiceAccountKey(GcsStaticCredentials):
    """The text of a service account file."""

    key: str = field(repr=False)


@record(frozen=True)
class GcsApplicationCredentials(GcsStaticCredentials):
    """The path of an application credentials file."""

    path: str


@record(frozen=True)
class GcsBearerToken(GcsStaticCredentials):
    """A token that is never renewed."""

    token: str = field(repr=False)


GcsStaticCredentials.ServiceAccount = GcsServiceAccount
GcsStaticCredentials.ServiceAccountKey = GcsServiceAccountKey
GcsStaticCredentials.ApplicationCredentials = GcsApplicationCredentials
GcsStaticCredentials.BearerToken = GcsBearerToken

AnyGcsStaticCredential = (
    GcsServiceAccount | GcsServiceAccountKey | GcsApplicationCredentials | GcsBearerToken
)


class GcsCredentials:
    """The ways to sign in to Google Cloud Storage; make one of the variants."""

    __slots__ = ()

    Anonymous: ClassVar[type[GcsAnonymous]]
    FromEnv: ClassVar[type[GcsFromEnv]]
    Static: ClassVar[type[GcsStatic]]
    Refreshable: ClassVar[type[GcsRefreshable]]


@record(frozen=True)
class GcsAnonymous(GcsCredentials):
    """Requests are not signed."""


@record(frozen=True)
class GcsFromEnv(GcsCredentials):
    """Application default credentials."""


@record(frozen=True)
class GcsStatic(GcsCredentials):
    """One credential for good."""

    credentials: AnyGcsStaticCredential


class GcsRefreshable(Refreshable[GcsBearerCredential], GcsCredentials):
    """Bearer tokens from a function."""


GcsCredentials.Anonymous = GcsAnonymous
GcsCredentials.FromEnv = GcsFromEnv
GcsCredentials.Static = GcsStatic
GcsCredentials.Refreshable = GcsRefreshable

AnyGcsCredential = GcsAnonymous | GcsFromEnv | GcsStatic | GcsRefreshable


# --- Azure -------------------------------------------------------------------------------------


class AzureStaticCredentials:
    """The kinds of fixed credentials for Azure; make one of the variants."""

    __slots__ = ()

    AccessKey: ClassVar[type[AzureAccessKey]]
    SasToken: ClassVar[type[AzureSasToken]]
    BearerToken: ClassVar[type[AzureBearerToken]]


class AzureRefreshableCredential(AzureStaticCredentials):
    """The same kinds, returned by a function and with an end."""

    __slots__ = ()


@record(frozen=True)
class AzureAccessKey(AzureRefreshableCredential):
    """The key of the storage account."""

    key: str = field(repr=False)
    expires_after: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_expiry(self.expires_after)


@record(frozen=True)
class AzureSasToken(AzureRefreshableCredential):
    """A shared access signature."""

    token: str = field(repr=False)
    expires_after: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_expiry(self.expires_after)


@record(frozen=True)
class AzureBearerToken(AzureRefreshableCredential):
    """An access token of Entra ID."""

    bearer: str = field(repr=False)
    expires_after: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_expiry(self.expires_after)


AzureStaticCredentials.AccessKey = AzureAccessKey
AzureStaticCredentials.SasToken = AzureSasToken
AzureStaticCredentials.BearerToken = AzureBearerToken

AnyAzureStaticCredential = AzureAccessKey | AzureSasToken | AzureBearerToken


class AzureCredentials:
    """The ways to sign in to Azure; make one of the variants."""

    __slots__ = ()

    Anonymous: ClassVar[type[AzureAnonymous]]
    FromEnv: ClassVar[type[AzureFromEnv]]
    Static: ClassVar[type[AzureStatic]]
    Refreshable: ClassVar[type[AzureRefreshable]]


@record(frozen=True)
class AzureAnonymous(AzureCredentials):
    """Requests are not signed."""


@record(frozen=True)
class AzureFromEnv(AzureCredentials):
    """Whatever the environment offers."""


@record(frozen=True)
class AzureStatic(AzureCredentials):
    """One credential for good."""

    credentials: AnyAzureStaticCredential


class AzureRefreshable(Refreshable[AnyAzureStaticCredential], AzureCredentials):
    """Credentials from a function."""


AzureCredentials.Anonymous = AzureAnonymous
AzureCredentials.FromEnv = AzureFromEnv
AzureCredentials.Static = AzureStatic
AzureCredentials.Refreshable = AzureRefreshable

AnyAzureCredential = AzureAnonymous | AzureFromEnv | AzureStatic | AzureRefreshable


def has_expired(expires_after: datetime | None, margin: timedelta = timedelta(0)) -> bool:
    """Whether a credential with this end is of no use any more, or soon will not be."""
    return expires_after is not None and expires_after <= datetime.now(UTC) + margin
