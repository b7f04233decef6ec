"""What to do about the mistakes that are made first: a typo, a wrong place, a wrong order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeGuard

import click

from icefloe.api.addresses import parse_address
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.cli.overview import SECTIONS
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcechunkError,
    NodeNotFoundError,
    RebaseFailedError,
    RepositoryNotFoundError,
)
from icefloe.paths import is_internal

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
    given = words[0].lower()
    for ours, theirs in _ELSEWHERE.items():
        if given in theirs.split():
            (what,) = (named[ours] for named in SECTIONS.values() if ours in named)
            return f" Use icefloe {ours}: {what}"
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


def sentence(error: IcechunkError) -> str:
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
    return str(error)


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
    """What to add to the message of an error; each hint is a line of its own.

    Args:
        words: those of the command line.
    """
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
