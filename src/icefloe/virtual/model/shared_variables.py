"""The variables of one of many files: what all share is there once, what is its own is bytes.

A plan looks at the variables of hundreds of thousands of files. An object for each of them would
take most of the driver's memory, so that it is made when it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter

import numpy as np

from icefloe.virtual.model.description import SourceDescription, VariableDescription

DIGEST_BYTES = 16
_FIELDS = {item.name: at for at, item in enumerate(fields(VariableDescription))}
_VALUES, _DIGEST = _FIELDS["values"], _FIELDS["digest"]
_fields_of = attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True, eq=False)
class SharedField:
    """Where the bytes of one variable are, and what they are.

    First comes the digest, then the values. `dtype` is None where values are not among the bytes.
    """

    form: VariableDescription
    """All but values and digest."""
    start: int
    stop: int
    has_digest: bool
    dtype: np.dtype[np.generic] | None = None
    shape: tuple[int, ...] = ()

    def digest(self, own: bytes) -> bytes | None:
        """The digest among these bytes."""
        return own[self.start : self.start + DIGEST_BYTES] if self.has_digest else None

    def make(self, own: bytes) -> VariableDescription:
        """The variable that these bytes describe."""
        start = self.start + DIGEST_BYTES * self.has_digest
        given = list(_fields_of(self.form))
        given[_DIGEST] = self.digest(own)
        if self.dtype is not None:
            count = (self.stop - start) // max(1, self.dtype.itemsize)
            given[_VALUES] = np.frombuffer(own, self.dtype, count, start).reshape(self.shape)
        return VariableDescription(*given)


Layout = dict[str, SharedField | VariableDescription]
"""By path: where to find a variable that is a file's own, or the one that files share."""


class SharedVariables(Mapping[str, VariableDescription]):
    """The variables of one file by path. Files that are alike have the same `layout`."""

    __slots__ = ("layout", "own")

    def __init__(self, layout: Layout, own: bytes) -> None:
        self.layout = layout
        self.own = own

    def __getitem__(self, path: str) -> VariableDescription:
        found = self.layout[path]
        return found.make(self.own) if isinstance(found, SharedField) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)

    def __contains__(self, path: object) -> bool:
        return path in self.layout


def form_of(variables: Mapping[str, VariableDescription], path: str) -> VariableDescription:
    """An object that is the same for all files whose variable differs in values at most."""
    if isinstance(variables, SharedVariables):
        found = variables.layout[path]
        return found.form if isinstance(found, SharedField) else found
    return variables[path]


def digest_in(variables: Mapping[str, VariableDescription], path: str) -> bytes | None:
    """The digest of a variable, without the variable being made; None also where it is not."""
    if isinstance(variables, SharedVariables):
        found = variables.layout.get(path)
        if isinstance(found, SharedField):
            return found.digest(variables.own)
    else:
        found = variables.get(path)
    return None if found is None else found.digest


def has_values(variables: Mapping[str, VariableDescription], path: str) -> bool:
    """Whether the values of a variable are known."""
    if isinstance(variables, SharedVariables):
        found = variables.layout[path]
        if isinstance(found, SharedField):
            return found.dtype is not None
    else:
        found = variables[path]
    return found.values is not None


def forms_of(variables: Mapping[str, VariableDescription]) -> Iterable[VariableDescription]:
    """The variables as `form_of` has them: those of files that are alike come without values."""
    if isinstance(variables, SharedVariables):
        found = variables.layout.values()
        return [item.form if isinstance(item, SharedField) else item for item in found]
    return variables.values()


def only(source: SourceDescription, *paths: str) -> SourceDescription:
    """What is needed to read some variables of a file, small enough to be sent to a task."""
    forms = {path: form_of(source.variables, path) for path in paths}
    variables = {
        path: form
        if form.values is None and form.digest is None
        else replace(form, values=None, digest=None)
        for path, form in forms.items()
    }
    return SourceDescription(source.location, source.format, source.version, {}, variables)
