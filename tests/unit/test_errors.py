"""The exception tree: what is caught by what, and what survives a trip between processes.

That names and codes are official Icechunk's is tested in `tests/oracle`.
"""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from icefloe import errors
from icefloe.errors import ErrorKind, IcechunkError

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, IcechunkError)
]
PLAIN = [each for each in CLASSES if not issubclass(each, errors.ConflictError)]


def test_the_tree_in_the_documentation_is_the_tree_in_the_code() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"(\w+Error)\b", errors.__doc__)) - {"KeyError", "ValueError"}
    assert drawn == {each.__name__ for each in CLASSES} | {"IcefloeError"}


def test_the_root_has_an_alias() -> None:
    assert errors.IcefloeError is IcechunkError


def test_handlers_of_built_in_errors_keep_working() -> None:
    assert issubclass(errors.NotFoundError, KeyError)
    assert issubclass(errors.InvalidInputError, ValueError)
    assert not issubclass(errors.StorageError, OSError)


@pytest.mark.parametrize("each", PLAIN)
def test_an_error_shows_its_message_and_carries_its_kind(each: Any) -> None:
    error = each("node '/a': not here", "some-kind")
    assert str(error) == error.message == "node '/a': not here"  # KeyError would quote it
    assert error.kind == "some-kind"
    assert each.__name__ in repr(error)
    assert "not here" in repr(error)


@pytest.mark.parametrize("each", CLASSES)
def test_default_kinds_are_known_codes(each: type[IcechunkError]) -> None:
    assert each.default_kind in set(ErrorKind)


@pytest.mark.parametrize("each", PLAIN)
def test_without_a_kind_the_one_of_the_class_is_used(each: Any) -> None:
    assert each("text").kind == each.default_kind


@pytest.mark.parametrize("each", PLAIN)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_an_error_survives_pickle(each: Any, protocol: int) -> None:
    error = each("text", "some-kind")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is each
    assert (again.message, again.kind, str(again)) == ("text", "some-kind", "text")


def test_a_conflict_names_both_parents() -> None:
    error = errors.ConflictError("AAA", "BBB")
    assert (error.expected_parent, error.actual_parent) == ("AAA", "BBB")
    assert error.kind == ErrorKind.COMMIT_CONFLICT
    assert "AAA" in str(error)
    assert "BBB" in str(error)


def test_errors_look_as_in_official_and_have_its_arguments() -> None:
    official: Any = pytest.importorskip("icechunk", minversion="2")
    for library in (errors, official):
        made = [
            library.IcechunkError("text", "some-kind"),
            library.ConflictError("AAA", None),
            library.RebaseFailedError("AAA", []),
        ]
        assert [error.args for error in made] == [("text", "some-kind"), ("AAA", None), ("AAA", [])]
        assert [repr(error).partition(".")[2] for error in made] == [
            'IcechunkError(message="text", kind="some-kind")',
            "ConflictError(expected_parent=AAA, actual_parent=None)",
            'RebaseFailedError(snapshot="AAA", conflicts=[])',
        ]


def test_a_conflict_survives_pickle() -> None:
    error = errors.ConflictError("AAA", None, "text", "repo-info-updated")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.ConflictError
    assert vars(again) == vars(error)
    assert again.expected_parent == "AAA"
    assert again.kind == "repo-info-updated"


def test_a_failed_rebase_is_a_conflict_that_lists_what_it_could_not_settle() -> None:
    error = errors.RebaseFailedError("AAA", ["one", "two"])
    assert isinstance(error, errors.ConflictError)
    assert error.kind == ErrorKind.REBASE_FAILED
    assert (error.snapshot, error.conflicts) == ("AAA", ["one", "two"])
    assert "2 conflict" in str(error)


def test_a_failed_rebase_survives_pickle() -> None:
    error = errors.RebaseFailedError("AAA", ("one",))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.RebaseFailedError
    assert (again.snapshot, again.conflicts, str(again)) == ("AAA", ["one"], str(error))


def test_codes_are_lower_case_words_joined_by_hyphens_and_unique() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.value) for kind in ErrorKind)
    assert all(kind.value == kind.name.lower().replace("_", "-") for kind in ErrorKind)
