"""What may be said about an ingest, in Python and in a recipe: names, kinds, choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.records import record


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and bool(value) and all(isinstance(item, str) and item for item in value)


def _is_name_or_names(value: Any) -> bool:
    return (isinstance(value, str) and value != "") or _is_texts(value)


def _is_lengths(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and type(length) is int and length > 0
        for name, length in value.items()
    )


@record(frozen=True)
class IngestField:
    """One thing that can be said: how to tell a good value, and how to describe one."""

    is_good: Callable[[Any], bool]
    expected: str
    may_be_none: bool = True
    is_required: bool = False


FIELDS = {
    "sources": IngestField(
        _is_name_or_names, "a path, a URL, a pattern, or a list of them", False, is_required=True
    ),
    "repository": IngestField(
        lambda value: _is_text(value) and value != "",
        "the URL or the directory of a repository",
        False,
        is_required=True,
    ),
    "group": IngestField(_is_text, "the path of a group", False),
    "branch": IngestField(lambda value: _is_text(value) and value != "", "the name of a branch"),
    "concat_dim": IngestField(_is_name_or_names, "the name of a dimension, or a list of names"),
    "variables": IngestField(_is_name_or_names, "a list of names of variables"),
    "chunks": IngestField(_is_lengths, "lengths by name of dimension, such as {time: 24}"),
    "mode": IngestField(lambda value: value in ("native", "virtual"), "'native' or 'virtual'"),
    "append": IngestField(lambda value: isinstance(value, bool), "true or false", False),
    "order": IngestField(
        lambda value: _is_text(value) and value != "",
        "'coordinates', 'listed', or a pattern of file names such as 'sst_{time}.nc'",
    ),
    "late": IngestField(lambda value: value in ("fail", "insert"), "'fail' or 'insert'", False),
    "changed": IngestField(
        lambda value: value in ("fail", "replace", "skip"), "'fail', 'replace' or 'skip'", False
    ),
    "exclude": IngestField(
        lambda value: _is_name_or_names(value) or value in ((), []),
        "a pattern of names, or a list of them",
        False,
    ),
    "on_error": IngestField(
        lambda value: value in ("fail", "skip", "quarantine"),
        "'fail', 'skip' or 'quarantine'",
        False,
    ),
    "access": IngestField(
        lambda value: isinstance(value, Mapping) and all(map(_is_text, value)),
        "options of the storage by name, such as {anonymous: true}",
    ),
    "create": IngestField(lambda value: isinstance(value, bool), "true or false", False),
    "add_containers": IngestField(lambda value: isinstance(value, bool), "true or false", False),
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
            raise InvalidInputError(f"{where}{_unknown(name)}")
        if value is None and field.may_be_none:
            continue
        if not field.is_good(value):
            raise InvalidInputError(f"{where}{name} is {value!r:.80}, expected {field.expected}")


def _unknown(name: Any) -> str:
    close = get_close_matches(str(name), FIELDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(FIELDS)}"
    return f"there is no field {name!r}; {hint}"
