"""Which containers a reader has authorised, and with which credentials.

The saved configuration of a repository is not trusted. It may say where chunks are, but not how the
reader's credentials are used. A chunk is read only if the reader has authorised exactly the prefix
of its container. If a saved container would send a secret, or the credentials of the machine, to a
host that it chooses, the reader has to name that host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from icefloe.config.container_set import ContainerSet, ContainerSource
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.on_demand import on_demand
from icefloe.records import record

if TYPE_CHECKING:
    from icefloe.config import containers as described
    from icefloe.config import stores
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.storage.identity import containers as given
    from icefloe.storage.identity.containers import AnyCredential
else:
    described = on_demand("icefloe.config.containers")
    stores = on_demand("icefloe.config.stores")
    given = on_demand("icefloe.storage.identity.containers")

Authorizations: TypeAlias = "Mapping[str, AnyCredential | None]"

_EXPECTED = {
    "S3": ("ContainerS3", "s3_anonymous_credentials() or s3_from_env_credentials()"),
    "S3Compatible": ("ContainerS3", "s3_credentials(...)"),
    "Tigris": ("ContainerS3", "s3_credentials(...)"),
    "Gcs": ("ContainerGcs", "gcs_credentials(...)"),
    "Azure": ("ContainerAzure", "azure_credentials(...)"),
    "Http": ("ContainerHttp", "credentials.HttpAccess"),
    "LocalFileSystem": ("ContainerLocalFileSystem", "credentials.LocalFileSystemAccess"),
}
"""By class of store: the class of its credential, and an example for messages."""


@record(frozen=True)
class VirtualAccess:
    """The effective containers and the reader's authorisations."""

    containers: ContainerSet = field(default_factory=lambda: ContainerSet([]))
    authorizations: Authorizations = field(default_factory=dict)
    are_own: bool = False
    """Whether the containers come from the reader, not from the saved configuration."""
    problems: tuple[str, ...] = ()
    """Why containers of the saved configuration cannot be used."""

    @classmethod
    def make(
        cls,
        containers: Mapping[str, VirtualChunkContainer] | None,
        authorizations: Mapping[str, AnyCredential | None] | None,
        *,
        are_own: bool,
    ) -> VirtualAccess:
        """Check the kind of each credential against its container.

        Raises:
            StorageError: a credential is of another kind than its container's store.
        """
        if not containers and not authorizations:
            return cls(are_own=are_own)
        usable, problems = described.usable_containers((containers or {}).values())
        known = given.containers_credentials({**authorizations}) if authorizations else {}
        access = cls(ContainerSet(usable), known, are_own, tuple(problems))
        for container in usable:
            if access.is_authorized(container):
                _check_kind(container, access.credential(container))
        return access

    def is_authorized(self, container: VirtualChunkContainer) -> bool:
        """Whether exactly this prefix was authorised. A trailing `/` is optional."""
        return self._key(container) is not None

    def credential(self, container: VirtualChunkContainer) -> AnyCredential | None:
        """The credential that the reader gave for a container."""
        key = self._key(container)
        if key is None:
            raise InvalidInputError(
                f"virtual chunks below {container.url_prefix!r}"
                + (f" (container {container.name!r})" if container.name else "")
                + " may not be read: the container is not authorised; pass "
                f"authorize_virtual_chunk_access={{{container.url_prefix!r}: ...}} with "
                f"{_expected(container)[1]} when you open the repository",
                ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            )
        return self.authorizations[key]

    def _key(self, container: VirtualChunkContainer) -> str | None:
        prefix = container.url_prefix
        if prefix in self.authorizations:
            return prefix
        bare = prefix.removesuffix("/")
        return bare if bare in self.authorizations else None

    def resolve(self, location: str) -> ContainerSource:
        """The container and key of a location; see `ContainerSet.resolve`."""
        return self.containers.resolve(location)

    def may_follow(self, url: str) -> bool:
        """Whether a redirect to this URL may be followed: it is below a prefix authorised for
        HTTP."""
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            return False
        for prefix, credential in self.authorizations.items():
            if prefix.startswith(("http://", "https://")) and (
                credential is None or isinstance(credential, given.ContainerHttp)
            ):
                allowed = urlsplit(prefix if prefix.endswith("/") else prefix + "/")
                if (parts.scheme, parts.netloc) == (allowed.scheme, allowed.netloc) and (
                    _is_plain_path(parts.path) and parts.path.startswith(allowed.path)
                ):
                    return True
        return False


def _is_plain_path(path: str) -> bool:
    """Whether no server can interpret the path as one above the prefix."""
    lowered = path.lower().replace("%2e", ".").replace("%2f", "/").replace("\\", "/")
    return ".." not in lowered.replace("%5c", "/").split("/")


def _expected(container: VirtualChunkContainer) -> tuple[type, str]:
    for store, (credential, example) in _EXPECTED.items():
        if isinstance(container.store, getattr(stores, store)):
            return getattr(given, credential), example
    raise InvalidInputError(
        f"no virtual chunk can be read from a {type(container.store).__name__} store",
        ErrorKind.BAD_PREFIX,
    )


def _check_kind(container: VirtualChunkContainer, credential: AnyCredential | None) -> None:
    expected, example = _expected(container)
    if isinstance(credential, expected):
        return
    if credential is None and not isinstance(container.store, stores.Azure):
        return
    raise StorageError(
        f"container {container.url_prefix!r} is a {type(container.store).__name__} store, which "
        f"{'None' if credential is None else type(credential).__name__} does not open; expected "
        f"{example}",
        ErrorKind.STORAGE_OTHER,
    )
