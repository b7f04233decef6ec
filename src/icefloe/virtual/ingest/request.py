"""`IngestRequest`: validated arguments, shared by both engines and by recipes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import yaml

from icefloe import paths
from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_refs import ChunkKind
from icefloe.format.nodes import Node
from icefloe.repo.session import Workspace, all_chunks, find_chunk
from icefloe.storage.run import run_blocking
from icefloe.virtual.ingest.destination import Destination, ingested_below, owner_of, read_ledger
from icefloe.virtual.model.description import Json
from icefloe.virtual.planning.file_boxes import LEDGER_GROUP
from icefloe.virtual.planning.plan import AS_LISTED, BY_COORDINATES, IngestOptions, Mode, named_dims
from icefloe.virtual.sources import SourceAccess, Sources, list_sources


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and bool(value) and all(isinstance(item, str) and item for item in value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_name_or_names(value: Any) -> bool:
    return _is_name(value) or _is_texts(value)


def _is_lengths(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and type(length) is int and length > 0
        for name, length in value.items()
    )


class IngestField(NamedTuple):
    """One thing that can be said: how to tell a good value, and how to describe one."""

    is_good: Callable[[Any], bool]
    expected: str
    may_be_none: bool = True
    is_required: bool = False


def _choice(*values: str, may_be_none: bool = False) -> IngestField:
    *others, last = map(repr, values)
    expected = f"{', '.join(others)} or {last}"
    return IngestField(lambda value: value in values, expected, may_be_none)


_FLAG = IngestField(lambda value: isinstance(value, bool), "true or false", may_be_none=False)
FIELDS = {
    "sources": IngestField(
        _is_name_or_names, "a path, a URL, a pattern, or a list of them", False, is_required=True
    ),
    "repository": IngestField(
        _is_name, "the URL or the directory of a repository", False, is_required=True
    ),
    "group": IngestField(_is_text, "the path of a group", False),
    "branch": IngestField(_is_name, "the name of a branch"),
    "concat_dim": IngestField(_is_name_or_names, "the name of a dimension, or a list of names"),
    "variables": IngestField(_is_name_or_names, "a list of names of variables"),
    "chunks": IngestField(_is_lengths, "lengths by name of dimension, such as {time: 24}"),
    "mode": _choice("native", "virtual", may_be_none=True),
    "append": _FLAG,
    "order": IngestField(
        _is_name, "'coordinates', 'listed', or a pattern of file names such as 'sst_{time}.nc'"
    ),
    "late": _choice("fail", "insert"),
    "changed": _choice("fail", "replace", "skip"),
    "exclude": IngestField(
        lambda value: _is_name_or_names(value) or value in ((), []),
        "a pattern of names, or a list of them",
        False,
    ),
    "on_error": _choice("fail", "skip", "quarantine"),
    "access": IngestField(
        lambda value: isinstance(value, Mapping) and all(map(_is_text, value)),
        "options of the storage by name, such as {anonymous: true}",
    ),
    "create": _FLAG,
    "add_containers": _FLAG,
    "num_tasks": IngestField(
        lambda value: type(value) is int and value > 0, "a whole number from 1 on"
    ),
    "message": IngestField(_is_text, "the text of the commit message"),
}


def check_fields(given: Mapping[str, Any], where: str = "") -> None:
    """Refuse what no ingest could be run with; `where` begins the messages.

    Raises:
        InvalidInputError: a name that is not known, or a value of the wrong kind.
    """
    for name, value in given.items():
        field = FIELDS.get(name)
        if field is None:
            close = get_close_matches(str(name), FIELDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(FIELDS)}"
            raise InvalidInputError(f"{where}there is no field {name!r}; {hint}")
        if value is None and field.may_be_none:
            continue
        if not field.is_good(value):
            raise InvalidInputError(f"{where}{name} is {value!r:.80}, expected {field.expected}")


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


def ingest_arguments(given: Mapping[str, Any]) -> IngestArguments:
    """Those among the arguments of a function, by name."""
    found: Any = {name: given[name] for name in IngestArguments.__annotations__}
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
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
    renewed: Callable[[], IngestOptions]
    """The options on top of what others have committed since."""


_OBJECTS = ("access", "preprocess")
"""Arguments that are no plain values where they are given in Python."""
_CONTINUED = ("mode", "concat_dim", "variables", "chunks", "order")
"""Settings of a group: later ingests into it inherit those of the first."""


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
    access = given.get("access", {})
    if not isinstance(access, SourceAccess):
        access = SourceAccess(dict(access))
    if preprocess is not None:
        access = replace(access, preprocess=preprocess)
    locations = list_sources(sources, access, given.get("exclude", ()))
    destination.find(locations, branch)
    renewed = partial(_renew, destination, branch, given, locations, access)
    return IngestRequest(
        locations,
        access,
        destination,
        renewed(),
        branch,
        given.get("append", False),
        given.get("on_error", "fail"),
        given.get("message"),
        renewed,
    )


def _renew(
    destination: Destination,
    branch: str,
    said: dict[str, Any],
    locations: Sequence[str],
    access: SourceAccess,
) -> IngestOptions:
    """The options of an ingest, which goes on with what the group was made with."""
    repository, group = destination.repository, said.get("group", "").strip("/")
    made: dict[str, Any] = {}
    if repository is not None and said.get("append", False):
        session = repository.readonly_session(branch)
        made = _read_made_with(session, group, names_mode="mode" in said)
    if made.get("preprocess") and said.get("preprocess") is None:
        raise InvalidInputError(
            f"group {'/' + group!r} was made with preprocess={made['preprocess']}, and this ingest "
            "has none; pass the function, or `lambda dataset: dataset` to take files as they are"
        )
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
    return options


def _read_made_with(session: Session, group: str, *, names_mode: bool) -> dict[str, Json]:
    """What the first ingest into a group was told; empty for a group that is new or empty.

    A group without such a record is virtual if it has references.

    Raises:
        InvalidInputError: its mode is not known, and this ingest does not name one.
    """
    view = session.workspace.state.view
    others = (*ingested_below(group, view.all_paths()), f"{group}/{LEDGER_GROUP}".strip("/"))
    arrays = [
        node
        for node in (view.all_nodes(f"/{group}") if view.find_node(f"/{group}") else ())
        if node.array is not None and owner_of(node.path.strip("/"), others) is None
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
        InvalidInputError: two arguments contradict each other.
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


def load_recipe(recipe: str | os.PathLike[str]) -> dict[str, Any]:
    r"""Read a recipe, from a file or from its text, and check it: the arguments of `ingest`.

    Text that has a line break or `: ` in it is a recipe itself, any other is the path of one.

    Args:
        recipe: the path of a YAML file, or its text.

    Raises:
        InvalidInputError: it is not there, is not YAML, or says something that cannot be; the
            message names the field and what is expected.

    >>> recipe = "sources: '*.nc'\nrepository: archive\nconcat_dim: time"
    >>> report = icefloe.ingest(**icefloe.load_recipe(recipe))
    """
    text, where = _text_of(recipe)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InvalidInputError(f"{where}it is not YAML: {reason}") from error
    if not isinstance(found, dict):
        raise InvalidInputError(
            f"{where}it is a {type(found).__name__}, expected names and values such as "
            "'sources: data/*.nc'"
        )
    check_fields(found, where)
    missing = [name for name, field in FIELDS.items() if field.is_required and name not in found]
    if missing:
        raise InvalidInputError(
            f"{where}{', '.join(missing)} is missing, expected "
            + "; ".join(f"{name}: {FIELDS[name].expected}" for name in missing)
        )
    return found


def _text_of(recipe: Any) -> tuple[str, str]:
    """The text of a recipe, and how messages about it begin."""
    if isinstance(recipe, str) and ("\n" in recipe or ": " in recipe):
        return recipe, "recipe: "
    if not isinstance(recipe, str | os.PathLike) or not os.fspath(recipe):
        raise InvalidInputError(f"recipe is {recipe!r:.80}, expected the path of a file, or YAML")
    path = Path(recipe)
    try:
        return path.read_text(encoding="utf-8"), f"recipe {path}: "
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"recipe {path}: it is not text: {error}") from error
    except OSError as error:
        kind = ErrorKind.OBJECT_NOT_FOUND if isinstance(error, FileNotFoundError) else ErrorKind.IO
        reason = error.strerror or error
        raise InvalidInputError(f"recipe {path}: cannot be read: {reason}", kind) from error
