"""What is asked of an ingest: the arguments of a user, checked, as one request for any engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

from icefloe import paths
from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.records import record
from icefloe.virtual.ingest.fields import check_fields
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.places.globs import Sources, list_sources
from icefloe.virtual.planning.order import AS_LISTED, BY_COORDINATES, named_dims
from icefloe.virtual.planning.plan import IngestOptions, Mode

OnError = Literal["fail", "skip", "quarantine"]


class IngestArguments(TypedDict, total=False):
    """What may be said about an ingest, besides sources and repository.

    `icefloe.ingest` says what each of them means.
    """

    group: str
    branch: str
    concat_dim: str | Sequence[str] | None
    variables: Sequence[str] | None
    chunks: Mapping[str, int] | None
    mode: Mode
    append: bool
    order: str
    late: Literal["fail", "insert"]
    changed: Literal["fail", "replace", "skip"]
    exclude: str | Sequence[str]
    preprocess: Callable[[Any], Any] | None
    on_error: OnError
    message: str | None
    access: SourceAccess | Mapping[str, Any] | None


@record(frozen=True)
class IngestRequest:
    """One ingest: which sources, how they are reached, and what becomes of them where."""

    locations: Sequence[str]
    access: SourceAccess
    repository: Repository
    options: IngestOptions
    branch: str
    append: bool
    on_error: OnError
    message: str | None


_OBJECTS = ("access", "preprocess")
"""Arguments that are no plain values where they are given in Python."""


RepositoryFor = Callable[[Sequence[str], SourceAccess, Mode], Repository]
"""Finds or makes the repository, when sources are known and all arguments are checked."""


def make_request(
    sources: Sources, repository: Repository | RepositoryFor, arguments: IngestArguments
) -> IngestRequest:
    """Check the arguments, list the sources, and open the repository.

    Raises:
        InvalidInputError: an argument cannot be used, or a pattern matches nothing.
    """
    check_fields({name: value for name, value in arguments.items() if name not in _OBJECTS})
    options = make_options(arguments)
    reach = _make_access(arguments.get("access"), arguments.get("preprocess"), options.mode)
    locations = list_sources(sources, reach, arguments.get("exclude", ()))
    if not isinstance(repository, Repository):
        repository = repository(locations, reach, options.mode)
    return IngestRequest(
        locations,
        reach,
        repository,
        options,
        arguments.get("branch", "main"),
        arguments.get("append", False),
        arguments.get("on_error", "fail"),
        arguments.get("message"),
    )


def make_options(arguments: IngestArguments) -> IngestOptions:
    """The options of a plan.

    Raises:
        InvalidInputError: two arguments contradict each other, whatever the files are.
    """
    concat_dim, variables = arguments.get("concat_dim"), arguments.get("variables")
    chunks, mode = arguments.get("chunks") or {}, arguments.get("mode", "native")
    order, group = arguments.get("order", BY_COORDINATES), arguments.get("group", "")
    dims = (concat_dim,) if isinstance(concat_dim, str) else concat_dim
    names = (variables,) if isinstance(variables, str) else variables
    if chunks and mode == "virtual":
        raise InvalidInputError("chunks cannot be chosen in virtual mode: files have theirs")
    if order == AS_LISTED and not dims:
        raise InvalidInputError("order is 'listed', which needs concat_dim, the dimension meant")
    unknown = set(named_dims(order)) - set(dims or named_dims(order))
    if unknown:
        raise InvalidInputError(
            f"order names {sorted(unknown)}, which concat_dim {list(dims or ())} does not"
        )
    paths.validate("/" + group.strip("/"))
    return IngestOptions(
        group.strip("/"),
        None if dims is None else tuple(dims),
        None if names is None else tuple(names),
        dict(chunks),
        mode,
        order,
        arguments.get("late", "fail"),
        arguments.get("changed", "fail"),
    )


def _make_access(
    access: SourceAccess | Mapping[str, Any] | None,
    preprocess: Callable[[Any], Any] | None,
    mode: Mode,
) -> SourceAccess:
    if preprocess is not None and mode == "virtual":
        raise InvalidInputError(
            "preprocess is given in virtual mode: references show files as they are; use "
            "mode='native'"
        )
    reach = access if isinstance(access, SourceAccess) else SourceAccess(dict(access or {}))
    return replace(reach, preprocess=preprocess) if preprocess is not None else reach
