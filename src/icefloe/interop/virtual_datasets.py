"""Writing the virtual datasets of VirtualiZarr: references to chunks in files that stay.

A virtual variable has a `ManifestArray`: the metadata of a Zarr array, and one column each for the
location, offset and length of its chunks. The columns go into the session as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import zarr
from xarray import Dataset, DataTree, Variable
from xarray.backends.zarr import ZarrStore, encode_zarr_attr_value
from zarr.core.buffer import default_buffer_prototype
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.core.sync import sync

from icefloe.api.session import Session
from icefloe.errors import InvalidInputError
from icefloe.interop.xarray_objects import (
    Region,
    datasets_of,
    is_virtual,
    join_path,
    to_icechunk,
)

_INLINED = "__inlined__"
"""The location of chunks whose bytes VirtualiZarr has in memory."""
_ENCODING = ("_FillValue", "missing_value", "scale_factor", "add_offset")
"""The encoding of a variable that readers need; the codecs are in the metadata of its array."""


def virtual_to_icechunk(
    obj: Dataset | DataTree,
    session: Session,
    *,
    group: str | None = None,
    mode: Literal["w", "w-", "a"] | None = None,
    append_dim: str | None = None,
    region: Region = None,
    write_inherited_coords: bool = False,
    validate_containers: bool = True,
    last_updated_at: datetime | None = None,
) -> None:
    """Write a virtual dataset or tree to a group of a session; commit the session afterwards.

    Virtual variables become references. Variables with values are written as `to_icechunk` does.

    Args:
        obj: what `virtualizarr.open_virtual_dataset` or `open_virtual_datatree` returned.
        session: a writable session, or a fork of one.
        group: where in the hierarchy.
        mode: "w" replaces what is there, "w-" refuses to, "a" adds variables. The default is "w-".
        append_dim: the dimension to append along. Existing arrays must end with a whole chunk.
        region: which part of existing arrays to write. It must begin at a chunk.
        write_inherited_coords: write the coordinates that groups of a tree inherit there too.
        validate_containers: refuse references that no virtual chunk container covers.
        last_updated_at: files that change later cannot be read through the references. The default
            is now.

    Raises:
        InvalidInputError: a container is missing, or arrays do not fit together. The session may
            have some of the variables then; discard its changes.

    >>> import virtualizarr
    >>> from obspec_utils.registry import ObjectStoreRegistry
    >>> dataset = virtualizarr.open_virtual_dataset(
    ...     "s3://archive/a.nc", ObjectStoreRegistry(), virtualizarr.parsers.HDFParser()
    ... )  # doctest: +SKIP
    >>> icefloe.xarray.virtual_to_icechunk(dataset, session)  # doctest: +SKIP
    """
    if not isinstance(session, Session):
        raise TypeError(
            f"virtual_to_icechunk(): session is a {type(session).__name__}, expected a Session; "
            "pass repository.writable_session(...), not its store"
        )
    if mode is not None and (append_dim is not None or region is not None):
        raise ValueError(f"mode is {mode!r}, with append_dim or region expected None")
    # Times are kept in whole seconds, and a file may have been written a moment ago.
    when = last_updated_at or datetime.now(UTC) + timedelta(seconds=1)
    open_mode: Any = "r+" if append_dim or region else (mode or "w-")
    for path, dataset, _ in datasets_of(obj, None, write_inherited_coords):
        name = join_path(group, path)
        opened = zarr.open_group(
            session.store, path=name, mode=open_mode, zarr_format=3, use_consolidated=False
        )
        writer = _Group(session, name, opened, append_dim, validate_containers, when)
        writer.write(dataset, region)
        if open_mode in ("w", "w-"):
            open_mode = "a"  # the first group has replaced or refused what was there


@dataclass(frozen=True, slots=True)
class _Group:
    """One group that a virtual dataset is written to."""

    session: Session
    name: str
    group: zarr.Group
    append_dim: str | None
    validate_containers: bool
    when: datetime

    def write(self, dataset: Dataset, region: Region) -> None:
        slices: Mapping[Hashable, slice] = {}
        if region is not None:
            target = ZarrStore(self.group, mode="r+", write_region=region, append_dim=None)
            dataset = target._validate_and_autodetect_region(dataset)
            slices = target._write_region or {}
        virtual = {name: each for name, each in dataset.variables.items() if is_virtual(each)}
        values = dataset.drop_vars(list(virtual))
        values.attrs = {}
        if values.variables and (self.append_dim is None or self.append_dim in values.dims):
            to_icechunk(
                values,
                self.session,
                group=self.name,
                mode=None if self.append_dim is not None or region is not None else "a",
                append_dim=self.append_dim,
                region=slices or None,  # type: ignore[arg-type]
            )
        for name, variable in virtual.items():
            self._write_variable(str(name), variable, slices)
        attributes = _encoded(dataset.attrs)
        if dataset.coords:
            attributes["coordinates"] = " ".join(map(str, dataset.coords))
        if attributes:
            self.group.update_attributes(attributes)

    def _write_variable(
        self, name: str, variable: Variable, slices: Mapping[Hashable, slice]
    ) -> None:
        data: Any = variable._data
        path = f"{self.name}/{name}" if self.name else name
        names = tuple(map(str, variable.dims))
        metadata = replace(
            data.metadata,
            dimension_names=names,
            chunk_key_encoding=DefaultChunkKeyEncoding(separator="/"),
            attributes=_attributes(variable),
        )
        found = self.group.get(name)
        start = [0] * len(names)
        if self.append_dim in names or slices:
            if not isinstance(found, zarr.Array):
                raise InvalidInputError(f"{path!r}: there is no such array to add chunks to")
            _require_same(found, metadata, but_shape=True)
            start = self._start(found, metadata, slices)
        elif isinstance(found, zarr.Array):
            _require_same(found, metadata, but_shape=False)
            found.update_attributes(dict(metadata.attributes))
        else:
            (document,) = metadata.to_buffer_dict(default_buffer_prototype()).values()
            sync(self.session.store.set(f"{path}/zarr.json", document))
        self._write_chunks(path, data.manifest, start)

    def _start(
        self,
        found: zarr.Array[Any],
        metadata: ArrayV3Metadata,
        slices: Mapping[Hashable, slice],
    ) -> list[int]:
        """The first chunk along each dimension. Makes room when appending."""
        names, shape, start = metadata.dimension_names or (), list(found.shape), []
        for axis, (name, size) in enumerate(zip(names, found.metadata.chunks, strict=True)):
            first = slices[name].start or 0 if name in slices else 0
            if name == self.append_dim:
                first = found.shape[axis]
                shape[axis] += metadata.shape[axis]
            elif name not in slices and found.shape[axis] != metadata.shape[axis]:
                raise InvalidInputError(
                    f"{found.path!r}: {name} has {metadata.shape[axis]} entries, expected "
                    f"{found.shape[axis]}, as in the array that is there"
                )
            if first % size:
                raise InvalidInputError(
                    f"{found.path!r}: chunks along {name} begin at multiples of {size}, not at "
                    f"{first}; references cannot share a chunk"
                )
            start.append(first // size)
        if tuple(shape) != found.shape:
            found.resize(tuple(shape))
        return start

    def _write_chunks(self, path: str, manifest: Any, start: list[int]) -> None:
        store = self.session.store
        locations = np.where(manifest._paths == _INLINED, "", manifest._paths).ravel()
        for index, value in getattr(manifest, "_inlined", {}).items():  # not in older versions
            at = "/".join(str(one + first) for one, first in zip(index, start, strict=True))
            chunk = default_buffer_prototype().buffer.from_bytes(value)
            sync(store.set(f"{path}/c/{at}" if at else f"{path}/c", chunk))
        if not (locations != "").any():
            return
        missing = store.set_virtual_refs_arr(
            path,
            manifest.shape_chunk_grid,
            locations.tolist(),
            manifest._offsets.ravel(),
            manifest._lengths.ravel(),
            validate_containers=self.validate_containers,
            arr_offset=start if any(start) else None,
            checksum=self.when,
        )
        if missing:
            first = locations.reshape(manifest.shape_chunk_grid)[
                tuple(at - low for at, low in zip(missing[0], start, strict=True))
            ]
            raise InvalidInputError(
                f"{path!r}: no virtual chunk container of the repository covers {first}; add one "
                "with config.set_virtual_chunk_container, or pass validate_containers=False"
            )


def _attributes(variable: Variable) -> dict[str, Any]:
    kept = {key: each for key, each in variable.encoding.items() if key in _ENCODING}
    return _encoded({**kept, **variable.attrs})


def _encoded(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    encode: Any = encode_zarr_attr_value
    return {str(key): encode(each) for key, each in attributes.items()}


def _require_same(found: zarr.Array[Any], metadata: ArrayV3Metadata, *, but_shape: bool) -> None:
    """Refuse references to chunks that the metadata of an array does not fit."""
    mine, theirs = metadata.to_dict(), found.metadata.to_dict()
    ignored = {"attributes", "storage_transformers", "consolidated_metadata"}
    ignored |= {"shape"} if but_shape else set()
    unequal = sorted(
        key for key in (mine.keys() | theirs.keys()) - ignored if mine.get(key) != theirs.get(key)
    )
    if unequal:
        raise InvalidInputError(
            f"{found.path!r} exists with another {', '.join(unequal)}: "
            f"{theirs.get(unequal[0])!r:.100}, the chunks have {mine.get(unequal[0])!r:.100}"
        )
