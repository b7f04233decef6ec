"""A group of a repository, described the way a source is: what an ingest appends to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.errors import GroupNotFoundError

from icefloe.api.named_numbers import ChunkType
from icefloe.api.session import Session
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.formats.zarr_source import describe_v3, name_dimensions
from icefloe.virtual.ingest.keep_ledger import read_ledger
from icefloe.virtual.model.description import (
    GroupDescription,
    Json,
    SourceDescription,
    SourceVersion,
    VariableDescription,
    wants_values,
    with_values,
)
from icefloe.virtual.planning.arrangement import Existing
from icefloe.virtual.planning.ledger import LEDGER_GROUP
from icefloe.virtual.planning.plan import IngestOptions


def require_group(store: IcechunkStore, options: IngestOptions, *, append: bool) -> Existing | None:
    """What is added to; None for a group that is new or empty.

    Raises:
        AlreadyExistsError: the group has arrays, and `append` is not set.
    """
    existing = describe_existing(store, options.group, options.concat_dims)
    if existing is not None and not append:
        raise AlreadyExistsError(
            f"group {'/' + options.group!r} has arrays already ({sorted(existing.documents)}); "
            "append to it (append=True, --append), or use another group"
        )
    return existing


def describe_existing(
    store: IcechunkStore, group: str, concat_dims: tuple[str, ...] | None
) -> Existing | None:
    """What a group holds; None when it is not there or has no arrays."""
    prefix = group.strip("/")
    try:
        root = zarr.open_group(store, path=prefix, mode="r", zarr_format=3)
    except (FileNotFoundError, GroupNotFoundError):
        return None
    except zarr.errors.ContainsArrayError as error:
        raise InvalidInputError(
            f"{prefix!r} is an array, expected a group to ingest into", ErrorKind.NOT_A_GROUP
        ) from error
    groups = {"": GroupDescription(dict(root.attrs))}
    variables, documents = {}, {}
    for path, node in root.members(max_depth=None):
        if path.split("/")[0] == LEDGER_GROUP:
            continue
        if isinstance(node, zarr.Group):
            groups[path] = GroupDescription(dict(node.attrs))
            continue
        document = read_document(store, "/".join(filter(None, (prefix, path))))
        variable, _ = describe_v3(path, document, document.get("attributes") or {})
        if wants_values(variable, concat_dims):
            variable = _with_values(variable, node, store.session)
        variables[path], documents[path] = variable, document
    if not variables:
        return None
    name_dimensions(groups, variables)
    description = SourceDescription(
        f"the group {'/' + prefix!r}", "icefloe", SourceVersion(0), groups, variables
    )
    return Existing(description, documents, read_ledger(store, group))


def _with_values(
    variable: VariableDescription, node: zarr.Array[Any], session: Session
) -> VariableDescription:
    try:
        values = np.asarray(node[...])
    except Exception:
        if variable.is_coordinate or not _is_virtual(node, session):
            raise
        # References that may not be read here, or to a file that is no longer what it was, which
        # can fail in any way: the values are then not compared.
        return variable
    return with_values(variable, values.astype(object) if values.dtype.kind == "T" else values)


def _is_virtual(node: zarr.Array[Any], session: Session) -> bool:
    return session.chunk_type(f"/{node.path}", (0,) * node.ndim) is ChunkType.virtual


def read_document(store: IcechunkStore, path: str) -> dict[str, Json]:
    """The zarr.json of a node that is there."""
    data = sync(store.get(f"{path}/zarr.json", default_buffer_prototype()))
    assert data is not None
    document: dict[str, Json] = json.loads(data.to_bytes())
    return document
