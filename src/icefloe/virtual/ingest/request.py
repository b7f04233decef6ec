"""What is asked of an ingest: the arguments of a user, checked, as one request for any engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

from icefloe import paths
from icefloe.errors import InvalidInputError
from icefloe.records import record
from icefloe.virtual.ingest.destination import Destination
from icefloe.virtual.ingest.existing import read_made_with
from icefloe.virtual.ingest.fields import check_fields
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.places.globs import Sources, list_sources
from icefloe.virtual.planning.order import AS_LISTED, BY_COORDINATES, named_dims
from icefloe.virtual.planning.plan import IngestOptions, Mode

OnError = Literal["fail", "skip", "quarantine"]


class IngestArguments(TypedDict, total=False):
    """What may be said about an ingest, besides sources and repository.

    `icefloe.ingest` says what each of them means. None is the same as nothing said.
    """

    group: str
    branch: str | None
    concat_dim: str | Sequence[str] | None
    variables: Sequence[str] | None
    chunks: Mapping[str, int] | None
    mode: Mode | None
    append: bool
    order: str | None
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
    destination: Destination
    options: IngestOptions
    branch: str
    append: bool
    on_error: OnError
    message: str | None


_OBJECTS = ("access", "preprocess")
"""Arguments that are no plain values where they are given in Python."""
_CONTINUED = ("mode", "concat_dim", "variables", "chunks", "order")
"""What holds for a group: an ingest that adds to it goes on with what the first one was told."""


def make_request(
    sources: Sources, destination: Destination, arguments: IngestArguments
) -> IngestRequest:
    """Check the arguments, list the sources, and find the repository.

    Raises:
        InvalidInputError: an argument cannot be used, or a pattern matches nothing.
    """
    check_fields({name: value for name, value in arguments.items() if name not in _OBJECTS})
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    branch = destination.branch(given.get("branch"))
    preprocess = given.get("preprocess")
    make_options(given)  # what contradicts itself opens nothing
    access = _make_access(given.get("access"), preprocess)
    locations = list_sources(sources, access, given.get("exclude", ()))
    repository = destination.find(locations, branch)
    append = given.get("append", False)
    group = given.get("group", "").strip("/")
    made: dict[str, Any] = {}
    if repository is not None and append:
        session = repository.readonly_session(branch)
        made = read_made_with(session, group, names_mode="mode" in given)
    if made.get("preprocess") and preprocess is None:
        raise InvalidInputError(
            f"group {'/' + group!r} was made with preprocess={made['preprocess']}, and this ingest "
            "has none; pass the function, or `lambda dataset: dataset` to take files as they are"
        )
    said = given
    given = {**{name: made[name] for name in _CONTINUED if name in made}, **said}
    if given.get("mode") == "virtual" and "chunks" not in said:
        given.pop("chunks", None)
    options = replace(
        make_options(given),
        made_with=made or _made_with(given),
        continued={
            name: given[name]
            for name in _CONTINUED
            if name in given and name not in said and given[name] != "native"
        },
    )
    destination.prepare(locations, access, options.mode)
    return IngestRequest(
        locations,
        access,
        destination,
        options,
        branch,
        append,
        given.get("on_error", "fail"),
        given.get("message"),
    )


def _made_with(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a new group is made with, as JSON."""
    made = {name: given[name] for name in _CONTINUED if name in given}
    made = {
        name: list(value) if isinstance(value, tuple) else value for name, value in made.items()
    }
    made["mode"] = given.get("mode", "native")
    if "chunks" in made:
        made["chunks"] = dict(made["chunks"])
    if (hook := given.get("preprocess")) is not None:
        names = (getattr(hook, "__module__", ""), getattr(hook, "__qualname__", repr(hook)))
        made["preprocess"] = ".".join(filter(None, names))
    return made


def make_options(arguments: Mapping[str, Any]) -> IngestOptions:
    """The options of a plan.

    Raises:
        InvalidInputError: two arguments contradict each other, whatever the files are.
    """
    concat_dim, variables = arguments.get("concat_dim"), arguments.get("variables")
    chunks, mode = arguments.get("chunks") or {}, arguments.get("mode", "native")
    order, group = arguments.get("order", BY_COORDINATES), arguments.get("group", "")
    if arguments.get("preprocess") is not None and mode == "virtual":
        raise InvalidInputError(
            "preprocess is given in virtual mode: references show files as they are; use "
            "mode='native'"
        )
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
    access: SourceAccess | Mapping[str, Any] | None, preprocess: Callable[[Any], Any] | None
) -> SourceAccess:
    reach = access if isinstance(access, SourceAccess) else SourceAccess(dict(access or {}))
    return replace(reach, preprocess=preprocess) if preprocess is not None else reach
