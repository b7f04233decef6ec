"""Descriptions of many files, in which what files have in common is there once.

Files of one archive differ in a few times and digests; names, attributes and grids are the same in
all of them. Tasks hand over such parts once each, under a hash, and the driver puts descriptions
together that share them: a file costs it a few hundred bytes, whatever its coordinates.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from icefloe.virtual.description import (
    SourceDescription,
    SourceVersion,
    VariableDescription,
)

_INLINE_BYTES = 256
"""Values up to this size travel with their file: hashes would be as large."""

Key = bytes
_Slim = tuple[str, Any, Key, tuple[tuple[Key, Any, bytes | None], ...]]
"""Format, version, groups; of each variable its form, its values (or their key) and its digest."""


@dataclass(slots=True)
class Splitter:
    """Takes descriptions apart; every part is handed out once."""

    seen: set[Key] = field(default_factory=set)
    _fresh: list[tuple[Key, bytes]] = field(default_factory=list)

    def split(self, source: SourceDescription) -> bytes:
        """What is left of a description without its parts."""
        variables = tuple(
            (
                self._part(replace(variable, values=None, digest=None)),
                self._values(variable),
                variable.digest,
            )
            for variable in source.variables.values()
        )
        version = source.version
        state = (version.size_bytes, version.etag, version.last_modified, version.fingerprint)
        slim: _Slim = (source.format, state, self._part(source.groups), variables)
        return pickle.dumps(slim)

    def fresh(self) -> Iterator[tuple[Key, bytes]]:
        """The parts that nobody has got so far."""
        yield from self._fresh
        self._fresh.clear()

    def _values(self, variable: VariableDescription) -> Any:
        values = variable.values
        if values is None or values.nbytes <= _INLINE_BYTES:
            return values
        return self._part(values)

    def _part(self, part: Any) -> Key:
        data = pickle.dumps(part)
        key = hashlib.blake2b(data, digest_size=12).digest()
        if key not in self.seen:
            self.seen.add(key)
            self._fresh.append((key, data))
        return key


@dataclass(slots=True)
class Joiner:
    """Puts descriptions together again; equal parts become the same object."""

    parts: dict[Key, Any] = field(default_factory=dict)
    _variables: dict[tuple[Key, Key | None, bytes | None], VariableDescription] = field(
        default_factory=dict
    )

    def add(self, key: Key, data: bytes) -> None:
        """Take in a part."""
        if key not in self.parts:
            self.parts[key] = pickle.loads(data)

    def join(self, location: str, data: bytes) -> SourceDescription:
        """The description that was taken apart."""
        slim: _Slim = pickle.loads(data)
        kind, state, groups, rows = slim
        variables = {}
        for form, values, digest in rows:
            variable = self._variable(form, values, digest)
            variables[variable.path] = variable
        return SourceDescription(
            location, kind, SourceVersion(*state), self.parts[groups], variables
        )

    def _variable(self, form: Key, values: Any, digest: bytes | None) -> VariableDescription:
        if isinstance(values, np.ndarray):
            made: VariableDescription = replace(self.parts[form], values=values, digest=digest)
            return made
        key = (form, values, digest)
        if key not in self._variables:
            found = None if values is None else self.parts[values]
            self._variables[key] = replace(self.parts[form], values=found, digest=digest)
        return self._variables[key]
