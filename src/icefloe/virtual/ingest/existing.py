"""A group of a repository, described the way a source is: what an ingest appends to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.errors import GroupNotFoundError

from icefloe.api.named_numbers import ChunkType
from icefloe.api.session import Session
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.format.snapshot.nodes import Node
from icefloe.repo.session_view import all_chunks, find_chunk
from icefloe.repo.workspace import Workspace
from icefloe.storage.run import run_blocking
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.formats.zarr_source import describe_v3, name_dimensions
from icefloe.virtual.ingest.fields import check_fields
from icefloe.virtual.ingest.keep_ledger import read_ledger
from icefloe.virtual.model.description import (
    IN_REPOSITORY,
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
from icefloe.virtual.planning.plan import IngestOptions, IngestPlan


def require_group(
    existing: Existing | None,
    options: IngestOptions,
    sources: Sequence[SourceDescription] | None,
    *,
    append: bool,
) -> Existing | None:
    """What is added to; None for a group that is new or empty.

    Groups below it that no source has are other data. Before the `sources` are known (None) they
    may still be the same.

    Raises:
        AlreadyExistsError: the group has arrays, and `append` is not set.
    """
    if existing is None:
        return None
    if not existing.is_ingested:
        if sources is None:
            return existing
        groups = existing.description.groups.keys() - {""}
        if not any(groups & source.groups.keys() for source in sources):
            return None
    if not append:
        raise AlreadyExistsError(
            f"group {'/' + options.group!r} has arrays already ({sorted(existing.documents)}); "
            "append to it (append=True, --append), or use another group"
        )
    return existing


def require_free(session: Session, plan: IngestPlan) -> None:
    """Refuse to write over nodes that the group was not made of.

    Raises:
        AlreadyExistsError: names one of them.
    """
    view = session.workspace.state.view
    others = _ingested_below(plan.options.group, view.all_paths())
    arrays = [array.target for array in plan.arrays if array.old_shape is None]
    for target in [*arrays, *plan.groups]:
        names = target.split("/")
        above = ["/".join(names[:depth]) for depth in range(1, len(names))]
        found = [(path, view.find_node(f"/{path}")) for path in [*above, target]]
        taken = [path for path, node in found if node is not None and node.array is not None]
        owner = _owner(target, others)
        if owner is not None:
            reason = f"the group {'/' + owner!r} was ingested by itself"
        elif taken:
            reason = f"{'/' + taken[0]!r} is an array"
        elif target in arrays and found[-1][1] is not None:
            reason = "that is a group"
        else:
            continue
        raise AlreadyExistsError(
            f"files have {'/' + target!r}, but in the repository {reason}; ingest them into "
            "another group, or leave it out with variables=[...]"
        )


def _ingested_below(group: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Groups below this one that have a ledger of their own."""
    prefix = f"{group}/" if group else ""
    found = (path.strip("/") for path in paths if path.endswith(f"/{LEDGER_GROUP}"))
    owners = (path.rpartition("/")[0] for path in found if path != LEDGER_GROUP)
    return tuple(owner for owner in owners if owner.startswith(prefix))


def _owner(path: str, groups: Iterable[str]) -> str | None:
    return next((group for group in groups if f"{path}/".startswith(f"{group}/")), None)


def read_made_with(session: Session, group: str, *, names_mode: bool) -> dict[str, Json]:
    """What the first ingest into a group was told; empty for a group that is new or empty.

    A group without such a record is virtual if it has references.

    Raises:
        InvalidInputError: its mode is not known, and this ingest does not name one.
    """
    view = session.workspace.state.view
    others = (*_ingested_below(group, view.all_paths()), f"{group}/{LEDGER_GROUP}".strip("/"))
    arrays = [
        node
        for node in (view.all_nodes(f"/{group}") if view.find_node(f"/{group}") else ())
        if node.array is not None and _owner(node.path.strip("/"), others) is None
    ]
    ledger = read_ledger(session.store, group)
    depth = len(group.split("/")) if group else 0
    is_own = ledger.versions or any(node.path.count("/") == depth + 1 for node in arrays)
    if not arrays or not is_own:  # what is in groups below may be other data
        return {}
    made = dict(ledger.made_with)
    check_fields({name: value for name, value in made.items() if name != "preprocess"})
    if made.get("mode") == "native" or (names_mode and "mode" in made):
        return made
    has_references = run_blocking(_has_references(session.workspace, arrays))
    if made.get("mode") == "virtual" and not has_references:
        raise InvalidInputError(
            f"group {'/' + group!r} was made with mode='virtual' and has no references to files; "
            "say how to go on: mode='native' copies values, mode='virtual' refers to files"
        )
    return {**made, "mode": "virtual" if has_references else "native"}


async def _has_references(workspace: Workspace, arrays: Sequence[Node]) -> bool:
    handle, state = workspace
    view = state.view
    for node in arrays:  # the first chunk takes one manifest
        ndim = 0 if node.array is None else len(node.array.shape)
        ref = await find_chunk(handle, view, node, (0,) * ndim)
        if ref is not None and ref.kind == ChunkKind.VIRTUAL:
            return True
    for node in arrays:
        refs = await all_chunks(handle, view, node)
        if bool((refs.kind == ChunkKind.VIRTUAL).any()):
            return True
    return False


def describe_existing(
    store: IcechunkStore, group: str, concat_dims: tuple[str, ...] | None
) -> Existing | None:
    """What a group holds; None when it is not there or has no arrays.

    Groups below it that were ingested by themselves are not part of it.
    """
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
    members = dict(root.members(max_depth=None))
    others = _ingested_below("", [f"/{path}" for path in members])
    for path, node in members.items():
        if path.split("/")[0] == LEDGER_GROUP or _owner(path, others) is not None:
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
        f"the group {'/' + prefix!r}", IN_REPOSITORY, SourceVersion(0), groups, variables
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
