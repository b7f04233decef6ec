"""The Zarr store of a version that a person may name in many ways."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from icefloe.api.addresses import parse_address, resolve_ref
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.credentials import AnyCredential
from icefloe.errors import InvalidInputError
from icefloe.store.zarr_store import IcechunkStore

Source = str | PathLike[str] | Repository | Session | IcechunkStore
Credentials = Mapping[str, AnyCredential | None]


def open_store(
    source: Source,
    ref: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    authorize_virtual_chunk_access: Credentials | None = None,
) -> IcechunkStore:
    """A read-only Zarr store: `zarr.open(icefloe.open_store("s3://bucket/prefix@main"))`.

    Args:
        source: a path or a URL, with `@ref` if wanted; a Zarr URL pipeline such as
            `s3://bucket/prefix|icechunk:@branch.main`; or a repository. The stores of sessions
            are returned as they are.
        ref: a branch, a tag or a snapshot, for sources that name none; `main` if not given.
        storage_options: arguments of the storage, such as `region` or `anonymous`.
        authorize_virtual_chunk_access: as for `Repository.open`.

    >>> zarr.open_group(icefloe.open_store("weather@v1"), mode="r")["t2m"].shape
    (4, 8, 8)
    """
    if isinstance(source, IcechunkStore | Session):
        if ref is not None:
            raise InvalidInputError(
                f"ref={ref!r}: {source!r} is at a version already; open the repository instead"
            )
        return source if isinstance(source, IcechunkStore) else source.store
    if isinstance(source, Repository):
        repo = source
    else:
        address = parse_address(fspath(source))
        if ref is not None and address.ref is not None:
            raise InvalidInputError(
                f"{source!r} names {address.ref!r} and ref is {ref!r}; give one of them"
            )
        ref = ref or address.ref
        repo = Repository.open(
            address.storage(**(storage_options or {})),
            authorize_virtual_chunk_access=authorize_virtual_chunk_access,
        )
    return repo.readonly_session(**resolve_ref(repo, ref)).store  # type: ignore[arg-type]
