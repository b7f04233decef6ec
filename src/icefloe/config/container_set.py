"""Which virtual chunk container a location belongs to.

A prefix counts only at segment boundaries (it ends with `/`), bucket and host are compared as
they are written, and a path is compared percent-decoded, because decoded it is what is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple

if TYPE_CHECKING:
    from icefloe.config import virtual_urls
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.config.virtual_urls import Url
else:
    virtual_urls = on_demand("icefloe.config.virtual_urls")


class ContainerSource(NamedTuple):
    """The object a location leads to, and the container it is read through."""

    container: VirtualChunkContainer
    url: Url


class ContainerSet:
    """Containers that can be read through; of several that match, the longest prefix counts."""

    def __init__(self, containers: Iterable[VirtualChunkContainer]) -> None:
        self._containers = tuple(sorted(containers, key=lambda each: -len(each.url_prefix)))
        self._prefixes = [virtual_urls.parse(each.url_prefix) for each in self._containers]
        self._by_name = {
            each.name: (each, prefix)
            for each, prefix in zip(self._containers, self._prefixes, strict=True)
            if each.name is not None
        }

    def __iter__(self) -> Iterator[VirtualChunkContainer]:
        return iter(self._containers)

    def __len__(self) -> int:
        return len(self._containers)

    def names(self) -> list[str]:
        """Names that `vcc://` locations can use."""
        return list(self._by_name)

    def expand(self, location: str) -> str:
        """The absolute URL of a location; only `vcc://` ones change."""
        if not location.startswith(f"{virtual_urls.VCC}://"):
            return location
        container, rest = self._named(location)
        return container.url_prefix + rest

    def resolve(self, location: str) -> ContainerSource:
        """Find the container of a location.

        Raises:
            InvalidInputError: there is none, kind `no-container-for-virtual-chunk`, or the
                location is no URL, kind `invalid-virtual-ref`.
        """
        stored = virtual_urls.stored_location(location)
        if stored.startswith(f"{virtual_urls.VCC}://"):
            container, rest = self._named(stored)
            url = virtual_urls.parse(container.url_prefix + rest)
            if not _covers(self._by_name[container.name or ""][1], url):
                raise _no_container(f"{location!r} leads out of {container.url_prefix!r}")
            return ContainerSource(container, url)
        url = virtual_urls.parse(stored)
        for container, prefix in zip(self._containers, self._prefixes, strict=True):
            if _covers(prefix, url):
                return ContainerSource(container, url)
        raise _no_container(
            f"{location!r} lies below no container's prefix; edit the repository configuration: "
            "add a container for it with RepositoryConfig.set_virtual_chunk_container"
        )

    def _named(self, location: str) -> tuple[VirtualChunkContainer, str]:
        name, slash, rest = location.partition("://")[2].partition("/")
        found = self._by_name.get(name)
        if found is None or not slash:
            known = ", ".join(map(repr, self._by_name)) or "none"
            raise _no_container(
                f"{location!r}: no container is called {name!r}; names in the configuration: "
                f"{known}"
                if found is None
                else f"{location!r}: expected '/' and a path behind the container's name"
            )
        return found[0], rest


def _covers(prefix: Url, url: Url) -> bool:
    return (
        prefix.scheme == url.scheme
        and prefix.authority == url.authority
        and url.path.startswith(prefix.path)
    )


def _no_container(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"virtual chunk location {problem}", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    )
