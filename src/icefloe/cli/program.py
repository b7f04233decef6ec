"""The program `icefloe`: commands, help, hints and exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeGuard

import click

from icefloe.api.addresses import parse_address
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.cli import MISSING_PACKAGE
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    InvalidInputError,
    NodeNotFoundError,
    NotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    RepositoryNotFoundError,
    SessionStateError,
    StorageError,
)
from icefloe.paths import is_internal

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Begin": {
        "init": ("refs", "Create an empty repository."),
        "import": ("ingest", "Create a repository from a Zarr store or files."),
        "ingest": ("ingest", "Add files or Zarr stores to a group."),
        "clone": ("copy", "Copy a repository with its history."),
    },
    "Look": {
        "info": ("refs", "Version, branches, tags, newest snapshot."),
        "log": ("history", "Snapshots, newest first; --graph draws all branches."),
        "show": ("history", "One snapshot, and what it changed."),
        "diff": ("history", "What changed between two versions."),
        "tree": ("history", "Groups and arrays."),
        "chunks": ("history", "The chunks of an array, and where they are."),
        "sql": ("sql", "Query arrays and metadata with SQL."),
        "stats": ("history", "Sizes of arrays and snapshots."),
        "ops": ("history", "Operations on the repository."),
        "inspect": ("history", "The contents of a metadata file."),
        "ui": ("ui", "Open a repository in the browser."),
    },
    "Search": {
        "blame": ("blame", "Which commit last wrote a node or chunk."),
        "bisect": ("blame", "Which commit changed the outcome of a test."),
    },
    "Change": {
        "branch": ("refs", "List, create and delete branches."),
        "tag": ("refs", "List, create and delete tags."),
        "reset": ("refs", "Point a branch at another snapshot."),
        "cherry-pick": ("versions", "Apply the changes of one commit to a branch."),
        "merge": ("versions", "Merge another branch into a branch."),
        "squash": ("versions", "Replace several commits with one."),
        "undo": ("versions", "Revert a commit with a new commit."),
        "config": ("refs", "The saved configuration; names for repositories."),
        "metadata": ("refs", "Metadata of the repository itself."),
        "status": ("refs", "Whether the repository accepts writes."),
    },
    "Copy": {
        "export": ("copy", "One version as plain Zarr or Parquet."),
        "materialize": ("copy", "Copy virtual chunks into the repository."),
        "migrate": ("copy", "Upgrade a repository of an older version."),
    },
    "Keep healthy": {
        "expire": ("maintenance", "Remove old snapshots from the history."),
        "gc": ("maintenance", "Delete unreferenced objects (garbage collection)."),
        "verify": ("maintenance", "Check the integrity of all files."),
        "repair": ("maintenance", "Drop broken references; rescue lost refs."),
        "rewrite-manifests": ("maintenance", "Rewrite the manifests of a branch."),
    },
    "Others": {
        "completion": ("compat", "Completion for bash, zsh and fish."),
        "repo": ("compat", "`repo create`, as the original spells it."),
        "ancestry": ("compat", "`log`, as the original spells it."),
    },
}
"""Commands by what they are for, each with its module of `commands` and the line of the help.

The help imports none of these modules; a module is imported when one of its commands is called.
"""
_MODULE_OF = {
    name: module for section in SECTIONS.values() for name, (module, _) in section.items()
}


_SHOWN_CONFLICTS = 20
_FILES = (".nc", ".nc4", ".h5", ".hdf5", ".grib", ".grib2", ".grb", ".grb2")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence with the nearest names, to follow another one; empty if none is near."""
    close = get_close_matches(given, known, n=3)
    return f" Did you mean {' or '.join(close)}?" if close else ""


_ELSEWHERE = {
    "undo": "revert rollback",
    "blame": "annotate praise",
    "verify": "fsck check validate doctor",
    "tree": "ls ls-tree ls-files list dir arrays",
    "inspect": "cat-file cat dump",
    "chunks": "shards",
    "log": "history rev-list shortlog snapshots commits whatchanged",
    "ops": "reflog",
    "info": "describe rev-parse open summary",
    "clone": "push pull fetch mirror backup cp copy rsync sync",
    "gc": "prune vacuum clean cleanup garbage-collect",
    "expire": "forget",
    "rewrite-manifests": "repack optimize optimise compact",
    "ingest": "add append load",
    "import": "virtualize convert",
    "stats": "du size sizes",
    "init": "create new",
    "sql": "query select",
    "ui": "serve web browse view gui",
    "migrate": "upgrade",
    "squash": "rebase",
    "branch": "branches switch",
    "tag": "tags",
    "config": "alias remote",
    "repair": "fix rescue",
}
"""Words of git and other programs, by the command that does the same here."""
_NO_COMMAND = {
    "checkout": "Nothing is checked out: name a version as REPOSITORY@REF, or make a branch with "
    "icefloe branch create REPOSITORY NAME",
    "commit": "Commits are made in Python (session.commit) and by icefloe ingest",
    "stash": "Changes stay in a session until it is committed in Python",
    "rm": "Nodes are deleted in Python, through a writable_session",
    "mv": "Nodes are moved in Python, through a rearrange_session",
    "help": "Use icefloe --help for all commands, icefloe COMMAND --help for one",
    "version": "Use icefloe --version",
}


def about_command(words: Sequence[str], commands: Iterable[str]) -> str:
    """A sentence about a word that is no command, to follow another one."""
    if len(words) > 1 and words[1] in commands:  # icefloe REPOSITORY log
        rest = " ".join([words[1], words[0], *words[2:]])
        return f" The command comes first: icefloe {rest}"
    if "://" in words[0] or _is_local_repository(words[0]):
        return f" The command comes first: icefloe info {words[0]}"
    given = words[0].lower()
    for ours, theirs in _ELSEWHERE.items():
        if given in theirs.split():
            (about,) = (section[ours][1] for section in SECTIONS.values() if ours in section)
            return f" Use icefloe {ours}: {about}"
    if given in _NO_COMMAND:
        return f" {_NO_COMMAND[given]}."
    return did_you_mean(words[0], commands)


def about_usage(error: click.ClickException) -> str:
    """For `icefloe log REPOSITORY v1`: a line that says how a version is named."""
    extra = re.fullmatch(r"Got unexpected extra argument \((\S+)\)", error.message)
    context = getattr(error, "ctx", None)
    target = None if context is None else context.params.get("target")
    if extra is None or target is None:
        return ""
    return f"  a version is named with the repository: {target.address.url}@{extra[1]}\n"


@contextmanager
def about_place(place: str, words: Sequence[str], *, last: bool = False) -> Iterator[None]:
    """Adds what to do to the error that there is no repository at a place.

    `words` are those of the command line; `last` if the repository is the last argument.
    """
    try:
        yield
    except RepositoryNotFoundError as error:
        for hint in _hints(place, words[1:], last=last):
            error.add_note(hint)
        raise


def _hints(place: str, words: Sequence[str], *, last: bool) -> list[str]:
    where = "the last argument" if last else "the first argument"
    for word in words:
        if word != place and not word.startswith("-") and _is_local_repository(word):
            return [f"{word} is a repository: REPOSITORY is {where}"]
    path = Path(parse_address(place).url)
    if "://" in place:
        return ["check the bucket and the prefix", f"or create one: icefloe init {place}"]
    if path.is_file() or path.suffix in _FILES:
        return [f"a file becomes part of a repository by: icefloe ingest {place} REPOSITORY"]
    if any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
        return [f"it is a Zarr store; make a repository of it: icefloe import {place} NEW"]
    hints = []
    if not path.exists() and path.parent.is_dir():
        near = did_you_mean(path.name, (each.name for each in path.parent.iterdir()))
        hints.append(f"there is no such directory.{near}")
    return [*hints, "create one: " + ("leave out --no-create" if last else f"icefloe init {place}")]


@contextmanager
def about_nodes(session: Session) -> Iterator[None]:
    """Adds the nearest paths to the error that a snapshot has no such node."""
    try:
        yield
    except NodeNotFoundError as error:
        (wanted,) = re.findall(r"node not found: '([^']*)'", str(error)) or [""]
        every = (node.path for node in session.workspace.state.view.all_nodes())
        paths = [path for path in every if is_internal(wanted) or not is_internal(path)]
        name = wanted.rpartition("/")[2]
        same_name = [path for path in paths if path.endswith(f"/{name}")]
        near = f"Did you mean {' or '.join(same_name[:3])}?" if name and same_name else ""
        error.add_note(near or did_you_mean(wanted, paths).strip() or "`tree` lists all nodes")
        raise


_ARGUMENT = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=(?:True|'([a-z]+)')")
_ONLY_IN_PYTHON = re.compile(r", (?P<last>[^,:]+), or pass [a-z_]+=(?:True|False)$")


def in_shell(text: str, words: Sequence[str]) -> str:
    """A message with the options of the command in place of the arguments of its Python call."""
    command = program.get_command(click.Context(program), words[0]) if words else None
    options = {name for each in command.params for name in each.opts} if command else set()

    def option(match: re.Match[str]) -> str:
        name = "--" + match[1].replace("_", "-")
        return " ".join(filter(None, (name, match[2]))) if name in options else match[0]

    return _ONLY_IN_PYTHON.sub(r", or \g<last>", _ARGUMENT.sub(option, text))


def sentence(error: IcechunkError, words: Sequence[str] = ()) -> str:
    """What happened, without the advice for programs."""
    if isinstance(error, RebaseFailedError):
        number = len(error.conflicts)
        found = f"{number:,} conflict{'' if number == 1 else 's'}"
        return f"{found} with snapshot {error.snapshot}; nothing was changed"
    if _is_overtaken(error):
        return (
            "the branch moved while the command ran; nothing was changed: expected "
            f"{error.expected_parent}, found {error.actual_parent}"
        )
    return in_shell(str(error), words)


def _is_overtaken(error: IcechunkError) -> TypeGuard[ConflictError]:
    kinds = (ErrorKind.COMMIT_CONFLICT, ErrorKind.BRANCH_UPDATE_CONFLICT)
    is_known = isinstance(error, ConflictError) and error.expected_parent is not None
    return is_known and error.kind in kinds


def _choices(conflicts: Sequence[Any], words: Sequence[str]) -> list[str]:
    """What contradicts, a sentence each, and what can be done about it."""
    lines = [str(each) for each in conflicts[:_SHOWN_CONFLICTS]]
    if len(conflicts) > _SHOWN_CONFLICTS:
        lines.append(f"... and {len(conflicts) - _SHOWN_CONFLICTS:,} more")
    kinds = {each.conflict_type.name for each in conflicts}
    if not kinds <= {"ChunkDoubleUpdate", "DeleteOfUpdatedArray", "DeleteOfUpdatedGroup"}:
        lines.append("only chunks and deletions can be chosen: make both sides agree on the rest")
        return [*lines, "(icefloe undo takes a commit back), then run the same command again"]
    if words[:1] not in (["merge"], ["cherry-pick"], ["undo"]):
        return [*lines, "run the command again, from the new state of the branch"]
    other = (
        " --on-conflict theirs keeps what the branch has" if kinds == {"ChunkDoubleUpdate"} else ""
    )
    return [
        *lines,
        f"choose: --on-conflict ours takes what this command brings;{other}".rstrip(";"),
    ]


def after(error: IcechunkError, words: Sequence[str] = ()) -> str:
    """What to add to the message of an error of the command line `words`, a hint a line."""
    hints = list(getattr(error, "__notes__", ()))
    if isinstance(error, RebaseFailedError):
        hints += _choices(error.conflicts, words)
    elif _is_overtaken(error):
        hints.append("look at the new commits with icefloe log, then run the same command again")
    if error.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
        hints.append("add --allow-virtual PREFIX to read the files that virtual chunks are in")
    return "".join(f"\n  {hint}" for hint in hints)


def _is_local_repository(word: str) -> bool:
    if "://" in word:
        return False
    address = parse_address(word)
    return Path(address.url).is_dir() and Repository.exists(address.storage())


class _NoPandas:
    """A finder of modules. Its base class is left out, because importing it takes 10 ms."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def start_arrow_alone() -> None:
    """Import Arrow and let it look for pandas while there is none to be found.

    `pa.array` and `to_numpy` import pandas when one of them is first called, which takes 0.2 to
    0.3 s of CPU, as long as most commands; their values come from numpy and lists, never from
    pandas. It can be imported afterwards, and Arrow's `to_pandas` then imports it too.
    """
    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        import pyarrow as pa

        pa.array([])
    finally:
        sys.meta_path.remove(hidden)


_WITH_ARROW = {"sql", "verify", "repair", "export", "clone", "materialize", "migrate"}
"""Commands that make Arrow tables of numpy arrays and lists."""

_EXIT_CODES: tuple[tuple[type[IcechunkError], int], ...] = (
    (NotFoundError, 3),
    (ConflictError, 4),
    (AlreadyExistsError, 4),
    (StorageError, 5),
    (FormatError, 6),
    (ReadOnlyError, 7),
    (SessionStateError, 7),
    (InvalidInputError, 2),
)
INTERRUPTED = 130


class _Commands(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULE_OF)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _MODULE_OF:
            ctx.fail(f"No such command {args[0]!r}.{about_command(args, _MODULE_OF)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(name, about) for name, (_, about) in commands.items()]
                formatter.write_dl(rows, col_max=20)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULE_OF:
            return None
        module = import_module(f"icefloe.cli.commands.{_MODULE_OF[cmd_name]}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_" if iskeyword(name) else name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="icefloe", prog_name="icefloe")
def program() -> None:
    """Versioned Zarr arrays: look at, change and keep Icechunk repositories.

    REPOSITORY is a path or a URL, such as s3://bucket/prefix or file:///data/weather. Add @REF for
    a branch, a tag or a snapshot: weather@main, s3://bucket/prefix@v1.

    Exit codes: 0 done, 1 another failure, 2 wrong usage, 3 not found, 4 conflict or exists already,
    5 storage or credentials, 6 damaged file, 7 not allowed in this state, 8 a package is missing,
    130 interrupted.
    """


def exit_code(error: IcechunkError) -> int:
    """The exit code that tells a script what kind of failure this is."""
    if error.kind == ErrorKind.OBJECT_NOT_FOUND:
        return 3
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program with these arguments, or those of this process. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words and words[0] in _WITH_ARROW:
        start_arrow_alone()
    try:
        code = program(words, prog_name="icefloe", standalone_mode=False, obj=words)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        click.echo(about_usage(error), err=True, nl=False)
        return error.exit_code
    except IcechunkError as error:
        click.echo(f"icefloe: {sentence(error, words)}{after(error, words)}", err=True)
        return exit_code(error)
    except ImportError as error:
        click.echo(f"icefloe: {error}", err=True)
        return MISSING_PACKAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("icefloe: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # such as `icefloe log ... | head`
        sys.stderr.close()
        return 1
    except OSError as error:  # of a file that an option names; storages have errors of their own
        named = "" if error.filename is None else f"{error.filename}: "
        click.echo(f"icefloe: {named}{error.strerror or error}", err=True)
        return 3 if isinstance(error, FileNotFoundError) else 5
