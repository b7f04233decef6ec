"""What virtual chunk containers may be read with: a credential per kind of store.

Names are Icechunk's. Containers themselves are in `icefloe.config`, which holds no credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import record
from icefloe.storage.identity.credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AnyS3Credential,
)


class Credentials:
    """What a virtual chunk container may be read with; make one of the variants."""

    __slots__ = ()

    S3: ClassVar[type[ContainerS3]]
    Gcs: ClassVar[type[ContainerGcs]]
    Azure: ClassVar[type[ContainerAzure]]
    LocalFileSystemAccess: ClassVar[type[ContainerLocalFileSystem]]
    HttpAccess: ClassVar[type[ContainerHttp]]


@record(frozen=True)
class ContainerS3(Credentials):
    """Sign in to S3."""

    credentials: AnyS3Credential


@record(frozen=True)
class ContainerGcs(Credentials):
    """Sign in to Google."""

    credentials: AnyGcsCredential


@record(frozen=True)
class ContainerAzure(Credentials):
    """Sign in to Azure."""

    credentials: AnyAzureCredential


@record(frozen=True)
class ContainerLocalFileSystem(Credentials):
    """Permission to read local files."""


@record(frozen=True)
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
    """The argument `authorize_virtual_chunk_access` wants: credentials by URL prefix.

    Args:
        m: prefixes of virtual chunks, with credentials or None.
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
