"""Writes the `x_async` twins of the blocking methods in `icefloe/api`.

A blocking method waits with `run_blocking(operation(self.handle, ...))`. Its twin awaits the same
operation with `self._aio_handle`. `--check` says whether the files are up to date.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

API = Path(__file__).parents[1] / "src" / "icefloe" / "api"
TARGETS = [
    ("repository.py", "Repository"),
    ("maintenance.py", "RepositoryMaintenance"),
    ("session.py", "Session"),
    ("versions.py", "RepositoryVersions"),
]


_IMPORTS = """
from icefloe.api.arguments import check_arguments
from icefloe.api.handles import Handles
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionState
from icefloe.repo.session import Workspace
"""
_HEAD = '''
@check_arguments
class {name}Async:
    """What `{name}` inherits: its methods that touch storage, to be awaited."""

    _handles: Handles

    @property
    def handle(self) -> RepoHandle:
        """The repository as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return self._handles.blocking

    @property
    def _aio_handle(self) -> RepoHandle:
        return self._handles.eventloop
'''
_EXTRA = {
    "Session": '''
    _state: SessionState

    @property
    def workspace(self) -> Workspace:
        """The session as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return Workspace(self._handles.blocking, self._state)

    @property
    def _aio_workspace(self) -> Workspace:
        return Workspace(self._handles.eventloop, self._state)
''',
    "Repository": """
    @classmethod
    def _from_handle(cls, handle: RepoHandle, *, is_blocking: bool) -> Self:
        raise NotImplementedError
""",
}


_TWINS = {"handle": "_aio_handle", "workspace": "_aio_workspace"}
"""The attributes through which a blocking method reaches storage, and what its twin has instead."""


class _Twin(ast.NodeTransformer):
    """Turns the body of a blocking method into that of its twin."""

    def __init__(self) -> None:
        self.waits = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "run_blocking":
            self.waits = True
            return ast.Await(node.args[0])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = _TWINS.get(node.attr, node.attr)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        if node.arg in ("blocking", "is_blocking"):
            node.value = ast.Constant(value=False)
        return node


def make_twins(source: str, class_name: str) -> str:
    """The module with the twins of one class."""
    module = ast.parse(source)
    (owner,) = (n for n in module.body if isinstance(n, ast.ClassDef) and n.name == class_name)
    by_hand = {n.name for n in owner.body if isinstance(n, ast.AsyncFunctionDef)}
    methods: list[ast.stmt] = []
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        name, twin = method.name, _Twin()
        changed = twin.visit(method)
        if not twin.waits or name.startswith("__") or f"{name}_async" in by_hand:
            continue
        waits = ast.AsyncFunctionDef(**{key: getattr(changed, key) for key in changed._fields})
        waits.name = f"{name}_async"
        # A shortcut of a blocking method has nothing to await.
        waits.decorator_list = [d for d in method.decorator_list if not isinstance(d, ast.Call)]
        docs = ast.get_docstring(method) or ""
        text = f"Like `{name}`, inside an event loop: {docs.splitlines()[0]}"
        waits.body[0] = ast.Expr(ast.Constant(_wrapped(text)))
        methods.append(waits)
    used = {n.id for method in methods for n in ast.walk(method) if isinstance(n, ast.Name)}
    used |= {"TYPE_CHECKING"}  # what is not needed after all is taken out with ruff
    lines_kept = [_only_used(node, used) for node in module.body]
    imports = [line for line in lines_kept if isinstance(line, ast.ImportFrom)]
    for_types = [line for line in lines_kept if isinstance(line, ast.If)]
    lines = [
        f'"""Asynchronous twins of `{class_name}`. Made by tools/make_async_twins.py."""',
        "from __future__ import annotations",
        *map(ast.unparse, imports),
        _IMPORTS,
        *map(ast.unparse, for_types),
        _HEAD.format(name=class_name),
        _EXTRA.get(class_name, ""),
    ]
    for method in methods:
        ast.fix_missing_locations(method)
        lines.append("    " + ast.unparse(method).replace("\n", "\n    "))
    return _formatted("\n".join(lines) + "\n")


def _wrapped(text: str) -> str:
    if len(text) <= 86:
        return text
    head, _, tail = text.partition(": ")
    return f"{head}.\n\n        {tail}\n        "


def _only_used(node: ast.stmt, used: set[str]) -> ast.stmt | None:
    """An import with the names that are used."""
    if isinstance(node, ast.If):
        body = [line for line in (_only_used(each, used) for each in node.body) if line]
        return ast.If(node.test, body, []) if body else None
    if not isinstance(node, ast.ImportFrom):
        return None
    names = [alias for alias in node.names if (alias.asname or alias.name) in used]
    if node.module == "__future__" or not names or "generated" in (node.module or ""):
        return None
    return ast.ImportFrom(node.module, names, node.level)


def _formatted(code: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--fix-only", "--select", "I,F401,UP"], ["format"]):
        arguments = [*ruff, *command, "--quiet", "--stdin-filename", "src/icefloe/x.py", "-"]
        code = subprocess.run(
            arguments, input=code, capture_output=True, text=True, check=True
        ).stdout
    return code


def main() -> int:
    """Write the files, or compare them."""
    stale = []
    for file, class_name in TARGETS:
        made = make_twins((API / file).read_text(), class_name)
        target = API / "generated" / file.replace(".py", "_async.py")
        if "--check" in sys.argv:
            if not target.exists() or target.read_text() != made:
                stale.append(str(target.relative_to(API.parents[2])))
        else:
            target.write_text(made)
    for path in stale:
        print(f"{path} is out of date: run `python tools/make_async_twins.py`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
