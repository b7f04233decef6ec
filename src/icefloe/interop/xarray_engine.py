"""The xarray engine `icefloe`: `xr.open_dataset("s3://bucket/prefix@main", engine="icefloe")`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, ClassVar

from xarray import Dataset, DataTree
from xarray.backends.common import BackendEntrypoint
from xarray.backends.zarr import ZarrBackendEntrypoint

from icefloe.api.addresses import is_address, parse_address, resolve_ref
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import InvalidInputError
from icefloe.storage.identity.containers import AnyCredential
from icefloe.store.zarr_store import IcechunkStore

Source = str | PathLike[str] | Repository | Session | IcechunkStore
Credentials = Mapping[str, AnyCredential | None]

_DECODERS = (
    "mask_and_scale",
    "decode_times",
    "concat_characters",
    "use_cftime",
    "decode_timedelta",
    "decode_coords",
)

_ZARR: Any = ZarrBackendEntrypoint()  # its type knows nothing of Zarr stores


class IcefloeBackendEntrypoint(BackendEntrypoint):
    """Opens a version of a repository as xarray's Zarr backend opens a Zarr store."""

    description: ClassVar[str] = "Open Icechunk repositories by path or URL, with @ref"
    supports_groups: ClassVar[bool] = True
    # xarray looks here for what it may pass, because methods that take **options hide it.
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        *_DECODERS,
        "drop_variables",
        "group",
        "ref",
        "storage_options",
        "authorize_virtual_chunk_access",
        "use_zarr_fill_value_as_mask",
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether nothing but a repository can be meant; a plain path or URL may be anything."""
        if isinstance(filename_or_obj, str):
            return is_address(filename_or_obj)
        return isinstance(filename_or_obj, Repository | Session | IcechunkStore)

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: Source,
        *,
        ref: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        **options: Any,
    ) -> Dataset:
        """Open one group. `ref` is a branch, a tag or a snapshot, for sources that name none.

        `storage_options` are arguments of the storage, such as `region` or `anonymous`.
        """
        store = find_store(filename_or_obj, ref, storage_options, authorize_virtual_chunk_access)
        found: Dataset = _ZARR.open_dataset(store, **options, consolidated=False, zarr_format=3)
        return found

    def open_datatree(  # type: ignore[override]
        self,
        filename_or_obj: Source,
        *,
        ref: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        **options: Any,
    ) -> DataTree:
        """Open a group and all groups below it."""
        store = find_store(filename_or_obj, ref, storage_options, authorize_virtual_chunk_access)
        found: DataTree = _ZARR.open_datatree(store, **options, consolidated=False, zarr_format=3)
        return found

    def open_groups_as_dict(  # type: ignore[override]
        self,
        filename_or_obj: Source,
        *,
        ref: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        **options: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, by path; they need not fit together."""
        store = find_store(filename_or_obj, ref, storage_options, authorize_virtual_chunk_access)
        found: dict[str, Dataset] = _ZARR.open_groups_as_dict(
            store, **options, consolidated=False, zarr_format=3
        )
        return found


def find_store(
    source: Source,
    ref: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    authorize: Credentials | None = None,
) -> IcechunkStore:
    """The Zarr store of a version that a person may name in many ways."""
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
            address.storage(**(storage_options or {})), authorize_virtual_chunk_access=authorize
        )
    return repo.readonly_session(**resolve_ref(repo, ref)).store  # type: ignore[arg-type]
