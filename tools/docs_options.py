"""An extension of griffe, for `make docs`: shared options of storages as arguments of their own.

The functions of `storage/constructors.py` take them as `**options: Unpack[...]`. griffe reads
source, so it does not see the signature that they have at run time.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from icefloe.storage import constructors


class SharedOptions(griffe.Extension):
    """Replaces `**options` by the parameters of the function that declares them."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look at every function, once all of them are known."""
        if pkg.path != "icefloe":
            return
        for function in pkg["storage.constructors"].functions.values():
            for decorator in function.decorators:
                if decorator.callable_path.endswith("._options_of"):
                    [declared] = decorator.value.arguments
                    _expand(function, pkg.modules_collection[declared.canonical_path])


def _expand(function: griffe.Function, declared: griffe.Function) -> None:
    [options] = [
        parameter.name
        for parameter in function.parameters
        if parameter.kind is griffe.ParameterKind.var_keyword
    ]
    del function.parameters[options]
    for name in inspect.signature(getattr(constructors, function.name)).parameters:
        if name not in function.parameters:
            function.parameters.add(declared.parameters[name])
