"""`blame` and `bisect`: which commit did it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import click

from icefloe.api.addresses import snapshot_of
from icefloe.api.maintenance_values import reporter
from icefloe.api.values import SnapshotInfo
from icefloe.cli.common import (
    Output,
    RepositoryCommand,
    Target,
    all_option,
    at_least_1,
    entry_text,
    index_text,
    table_text,
    time_text,
)
from icefloe.errors import InvalidInputError
from icefloe.format.snapshot_table import SnapshotInfo as StoredInfo
from icefloe.maintenance.blame import blame_chunks, blame_nodes
from icefloe.paths import is_internal
from icefloe.storage.run import run_blocking

_SKIP = 125
"""The exit code of a command that can say nothing about a snapshot."""
_NO_ANSWER = 126
"""From here on an exit code means that the command did not run or was ended."""


@click.command(cls=RepositoryCommand)
@click.argument("path", required=False)
@click.option("--limit", "-n", type=at_least_1, help="Show only the first chunks.")
@all_option
def blame(
    target: Target, path: str | None, limit: int | None, show_all: bool, output: Output
) -> None:
    """Show which commit last wrote each node, or each chunk of the array at PATH."""
    if limit is not None and path is None:
        raise click.UsageError("--limit goes with the PATH of an array.")
    workspace = target.session().workspace
    with reporter(None) as report:
        if path is None:
            every = run_blocking(blame_nodes(target.repo.handle, workspace, report))
            _show_nodes([one for one in every if show_all or not is_internal(one.path)], output)
            return
        found = run_blocking(
            blame_chunks(target.repo.handle, workspace, "/" + path.strip("/"), report)
        )
    commits = [_told(one) for one in found.commits]
    shown = zip(found.index[:limit].tolist(), found.number[:limit].tolist(), strict=True)
    rows = [
        {"index": index, "commit": commits[number] if number >= 0 else None}
        for index, number in shown
    ]
    lines = (f"{index_text(row['index'])} {_line(row['commit'])}" for row in rows)
    output.show(rows, lines if rows else "no chunk was written")


def _show_nodes(found: Sequence[Any], output: Output) -> None:
    rows = [
        {"path": one.path, "metadata": _told(one.metadata), "chunks": _told(one.chunks)}
        for one in found
    ]
    lines = []
    for row in rows:  # the later of the two, which is what most people want to know
        both = [each for each in (row["metadata"], row["chunks"]) if each is not None]
        newest = max(both, key=lambda each: each["written_at"], default=None)
        what = [name for name in ("metadata", "chunks") if newest and row[name] == newest]
        lines.append([row["path"], ", ".join(what), _line(newest)])
    output.show(rows, table_text(["node", "last write", "commit"], lines, "<<<"))


def _told(info: StoredInfo | None) -> dict[str, Any] | None:
    if info is None:
        return None
    known = SnapshotInfo.of(info)
    return {"snapshot": known.id, "written_at": known.written_at, "message": known.message}


def _line(commit: dict[str, Any] | None) -> str:
    if commit is None:
        return "not in the logs that are left"
    return f"{commit['snapshot']}  {time_text(commit['written_at'])}  {commit['message']}"


@click.command(context_settings={"allow_interspersed_args": False}, cls=RepositoryCommand)
@click.argument("start", metavar="FROM")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--exists", metavar="PATH", help="Ask whether a node exists, instead of a COMMAND.")
def bisect(
    target: Target, start: str, command: tuple[str, ...], exists: str | None, output: Output
) -> None:
    """Find the commit after FROM, up to the REPOSITORY's @REF, that changed the outcome of a test.

    The test is --exists PATH, or a COMMAND, which may be run many times: exit code 0 is one
    outcome, 125 means that a snapshot cannot be tested, any other code below 126 is the other
    outcome. In its words {} stands for URL@SNAPSHOT; ICEFLOE_REPOSITORY and ICEFLOE_SNAPSHOT are
    set. Options come before the arguments:

    \b
        icefloe bisect --exists surface/t2m weather v1
        icefloe bisect weather v1 python check.py {}
    """
    command = command[1:] if command[:1] == ("--",) else command
    if bool(command) == (exists is not None):
        raise click.UsageError("Give a COMMAND or --exists PATH.")
    line = _between(target, start)
    test = _exists_test(target, exists) if exists is not None else _command_test(target, command)
    asked: list[dict[str, Any]] = []

    def outcome(at: int) -> bool | None:
        result = test(line[at].id)
        asked.append({"snapshot": line[at].id, "outcome": result})
        click.echo(f"{line[at].id}  {_words(result)}  {line[at].message}", err=True)
        return result

    first, unknown = find_change(len(line), outcome)
    found = line[first]
    value = {"commit": found, "untested": [line[at].id for at in unknown], "asked": asked}
    first_line = "The outcome changed with"
    if unknown:
        first_line += " one of these; only the last could be tested:"
    others = (f"  {line[at].id}  {line[at].message}" for at in unknown)
    output.show(value, [first_line, *others, f"  {entry_text(found)}"])


def find_change(length: int, outcome: Callable[[int], bool | None]) -> tuple[int, list[int]]:
    """The first place whose outcome is not that of place 0, by bisection.

    Also the places right before it that could not be tested: the change may be at one of them.

    Raises:
        InvalidInputError: the ends cannot be tested, or have the same outcome.
    """
    before, after = outcome(0), outcome(length - 1)
    if before is None or after is None:
        raise InvalidInputError("one of the two ends cannot be tested; choose another one")
    if before == after:
        raise InvalidInputError(
            f"the outcome is the same at both ends ({_words(before)}), so nothing can be found "
            "between them"
        )
    low, high, skipped = 0, length - 1, set[int]()
    while True:
        open_places = [at for at in range(low + 1, high) if at not in skipped]
        if not open_places:
            return high, sorted(at for at in skipped if low < at < high)
        middle = min(open_places, key=lambda at: abs(2 * at - low - high))
        result = outcome(middle)
        if result is None:
            skipped.add(middle)
        elif result == before:
            low = middle
        else:
            high = middle


def _between(target: Target, start: str) -> list[SnapshotInfo]:
    """The snapshots from `start` to the named version, oldest first."""
    wanted = snapshot_of(target.repo, start)
    line: list[SnapshotInfo] = []
    for entry in target.repo.ancestry(**target.ref):
        line.append(entry)
        if entry.id == wanted:
            break
    if line[-1].id != wanted or len(line) == 1:
        raise InvalidInputError(
            f"{start} is not an ancestor of {target.address.ref or 'main'}; FROM is the older one"
        )
    return line[::-1]


def _exists_test(target: Target, path: str) -> Callable[[str], bool]:
    def test(snapshot_id: str) -> bool:
        session = target.repo.readonly_session(snapshot_id=snapshot_id)
        return session.workspace.state.find_node("/" + path.strip("/")) is not None

    return test


def _command_test(target: Target, command: Sequence[str]) -> Callable[[str], bool | None]:
    def test(snapshot_id: str) -> bool | None:
        address = f"{target.address.url}@{snapshot_id}"
        known = {"ICEFLOE_REPOSITORY": address, "ICEFLOE_SNAPSHOT": snapshot_id}
        words = [word.replace("{}", address) for word in command]
        try:
            # What it prints goes to stderr: stdout is for the result.
            done = subprocess.run(words, env={**os.environ, **known}, stdout=2, check=False)
        except OSError as error:
            raise InvalidInputError(f"{words[0]}: cannot be run: {error.strerror}") from error
        if done.returncode == _SKIP:
            return None
        if done.returncode < 0 or done.returncode >= _NO_ANSWER:
            raise InvalidInputError(
                f"{words[0]} ended with {done.returncode} at {address}, which is no outcome; "
                "expected 0 to 125"
            )
        return done.returncode == 0

    return test


def _words(outcome: bool | None) -> str:
    return {True: "yes", False: "no", None: "cannot be tested"}[outcome]
