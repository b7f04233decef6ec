"""Virtual chunk containers for sources that a person has named, and what they are read with."""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import commonpath

from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.stores import (
    ObjectStoreConfig,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.records import record
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.storage.identity.containers import (
    AnyCredential,
    ContainerAzure,
    ContainerGcs,
    ContainerHttp,
    ContainerLocalFileSystem,
    ContainerS3,
)
from icefloe.storage.places.locations import AzureLocation, GcsLocation, S3Location
from icefloe.virtual.places.access import SourceAccess, local_path, split_location


@record(frozen=True)
class SourceContainer:
    """A container for the folder of some sources, and the credential of their reader."""

    container: VirtualChunkContainer
    credential: AnyCredential


def containers_of(locations: Iterable[str], access: SourceAccess) -> list[SourceContainer]:
    """One container for each bucket, host or top directory: the folder its sources are all in."""
    by_root: dict[str, list[str]] = {}
    for location in locations:
        is_file = local_path(location) is not None
        root = "/".join(location.split("/")[:4]) if is_file else split_location(location)[0]
        by_root.setdefault(root, []).append(location)
    return [container_for(_folder(some), access) for some in by_root.values()]


def container_for(prefix: str, access: SourceAccess) -> SourceContainer:
    """A container for a URL that ends with a slash, reached as sources there are."""
    store, credential = _store(prefix, access)
    container = VirtualChunkContainer(prefix, store)
    container.validate()
    return SourceContainer(container, credential)


def _folder(locations: list[str]) -> str:
    scheme, _, _ = locations[0].partition("://")
    parents = [
        location.partition("://")[2].rstrip("/").rpartition("/")[0] for location in locations
    ]
    return f"{scheme}://{commonpath(parents).rstrip('/')}/"


def _store(prefix: str, access: SourceAccess) -> tuple[ObjectStoreConfig, AnyCredential]:
    path = local_path(prefix)
    if path is not None:
        return local_filesystem_store(str(path)), ContainerLocalFileSystem()
    root, _ = split_location(prefix)
    place = storage_from_url(root, **access.options).location
    if isinstance(place, S3Location):
        store = s3_store(
            region=place.region,
            endpoint_url=place.endpoint_url,
            allow_http=place.allow_http,
            s3_compatible=place.endpoint_url is not None,
            force_path_style=place.is_path_style,
        )
        return store, ContainerS3(place.credentials)
    if isinstance(place, GcsLocation):
        return gcs_store(), ContainerGcs(place.credentials)
    if isinstance(place, AzureLocation):
        return azure_store(account=place.account), ContainerAzure(place.credentials)
    return http_store(), ContainerHttp()
