"""The xarray engine `icefloe`: `xr.open_dataset("s3://bucket/prefix@main", engine="icefloe")`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar

import xarray
from xarray import Dataset, DataTree
from xarray.backends.common import BackendEntrypoint, datatree_from_dict_with_io_cleanup
from xarray.backends.zarr import ZarrBackendEntrypoint

from icefloe.api.addresses import is_address, parse_address
from icefloe.api.open_store import Credentials, Source, open_store
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import FormatError, IcechunkError
from icefloe.paths import is_internal
from icefloe.store.zarr_store import IcechunkStore

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
        """Whether a repository is meant: an address that says so, or a folder that has one.

        A URL may be anything, and is not asked.
        """
        if isinstance(filename_or_obj, str | PathLike):
            text = fspath(filename_or_obj)
            return isinstance(text, str) and (is_address(text) or _is_folder_of_repository(text))
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
        store = open_store(filename_or_obj, ref, storage_options, authorize_virtual_chunk_access)
        found: Dataset = _ZARR.open_dataset(store, **options, consolidated=False, zarr_format=3)
        return found

    def open_datatree(  # type: ignore[override]
        self, filename_or_obj: Source, **options: Any
    ) -> DataTree:
        """Open a group and all groups below it, with the options of `open_groups_as_dict`."""
        groups = self.open_groups_as_dict(filename_or_obj, **options)
        return datatree_from_dict_with_io_cleanup(groups)

    def open_groups_as_dict(  # type: ignore[override]
        self,
        filename_or_obj: Source,
        *,
        ref: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        **options: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, by path; they need not fit together.

        icefloe's own tables (`.icefloe`) are left out, unless `group` names one of them.
        """
        store = open_store(filename_or_obj, ref, storage_options, authorize_virtual_chunk_access)
        found: dict[str, Dataset] = _ZARR.open_groups_as_dict(
            store, **options, consolidated=False, zarr_format=3
        )
        for path in filter(is_internal, list(found)):
            found.pop(path).close()
        return found


def _is_folder_of_repository(text: str) -> bool:
    address = parse_address(text)
    if "://" in address.url or not Path(address.url).is_dir():
        return False
    try:
        return Repository.exists(address.storage())
    except FormatError:
        return True  # a damaged one, and opening it says what is wrong
    except IcechunkError:
        return False


def open_version(repo: Repository, ref: str | None, **options: Any) -> Dataset:
    """A version of a repository that is open already."""
    source: Any = open_store(repo, ref)
    return xarray.open_dataset(source, engine=IcefloeBackendEntrypoint, **options)


def open_version_tree(repo: Repository, ref: str | None, **options: Any) -> DataTree:
    """The same as a tree."""
    source: Any = open_store(repo, ref)
    return xarray.open_datatree(source, engine=IcefloeBackendEntrypoint, **options)
