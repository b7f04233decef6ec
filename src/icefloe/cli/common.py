"""What commands share: REPOSITORY arguments, common options, times, `--json` and tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import click

from icefloe.api.addresses import Address, parse_address, resolve_ref, snapshot_of
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.api.values import SnapshotInfo
from icefloe.changes.diff import Diff, without_internal
from icefloe.cli.program import about_place

Place = Address
"""Where a repository is or will be."""


class Target(NamedTuple):
    """The repository that a command is about, and the version of it that was named."""

    address: Address
    repo: Repository

    @property
    def ref(self) -> dict[str, str]:
        """The keyword argument that names the version, `main` if none was given."""
        return resolve_ref(self.repo, self.address.ref)

    @property
    def snapshot_id(self) -> str:
        return snapshot_of(self.repo, self.address.ref)

    @property
    def branch(self) -> str:
        """The branch that was named, `main` if none was; it is written to."""
        ref = self.ref
        if "branch" not in ref:
            raise click.UsageError(
                f"{self.address.ref} is no branch, and only branches can be committed to."
            )
        return ref["branch"]

    def require_no_ref(self, why: str) -> None:
        """Refuse @REF where a command is about the whole repository."""
        if self.address.ref is not None:
            raise click.UsageError(f"Leave @{self.address.ref} away: {why}.")

    def session(self) -> Session:
        """The named version, to be read."""
        return self.repo.readonly_session(**self.ref)  # type: ignore[arg-type]

    def repo_with(self, allowed: dict[str, Any]) -> Repository:
        """The repository, with access to virtual chunks."""
        return self.repo.reopen(None, allowed) if allowed else self.repo


WHOLE = "the command is about the whole repository"
"""Why a command takes no @REF."""


def find_address(text: str) -> Address:
    """A path or URL with its ref, or a name that `config add` gave to one.

    A path that exists is always meant itself.
    """
    address = parse_address(text)
    if not re.search(r"[/\\]|://", address.url) and not Path(address.url).exists():
        from icefloe.cli.aliases import aliases_path, read_aliases

        if aliases_path().exists():
            return address._replace(url=read_aliases().get(address.url, address.url))
    return address


def words_given() -> list[str]:
    """The words of the command line, for hints."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_root().obj
    return found if isinstance(found, list) else []


class _RepositoryType(click.ParamType):  # type: ignore[type-arg] # generic in later releases
    """An address of a repository that exists."""

    name = "repository"

    def convert(self, value: Any, param: Any, ctx: Any) -> Target:
        if isinstance(value, Target):
            return value
        address = find_address(value)
        with about_place(value, words_given()):
            return Target(address, Repository.open(address.storage()))


class _PlaceType(click.ParamType):  # type: ignore[type-arg] # generic in later releases
    """An address, with or without a repository."""

    name = "place"

    def convert(self, value: Any, param: Any, ctx: Any) -> Place:
        if isinstance(value, Address):
            return value
        address = find_address(value)
        if address.ref is not None:
            self.fail(f"{value}: a repository is meant here, without @{address.ref}.", param, ctx)
        return address


place_type = _PlaceType()
place_argument = click.argument("place", metavar="REPOSITORY", type=place_type)
"""Adds the argument REPOSITORY, not opened, as `place`."""
REPOSITORY = click.Argument(["target"], metavar="REPOSITORY", type=_RepositoryType())
"""The argument REPOSITORY, opened, as `target`."""


class Output:
    """Shows one result: as JSON on request, else as text."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, value: Any, text: str | Iterable[str]) -> None:
        """`value` is what JSON has; `text` what people see, a text or its lines."""
        if self.as_json:
            click.echo(json_text(value))
        else:
            click.echo(text if isinstance(text, str) else "\n".join(text))

    def say(self, sentence: str, **value: Any) -> None:
        """One thing that was done, told in a sentence or as the members of an object."""
        self.show(value, sentence)


class _Count(click.IntRange):
    """A number of 1 or more. One that is larger than any list means all."""

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        return min(super().convert(value, param, ctx), _MOST)


_MOST = (1 << 31) - 1
at_least_1 = _Count(min=1)


_JSON = click.Option(
    ["--json", "output"],
    is_flag=True,
    callback=lambda ctx, param, value: Output(value),
    help="Print the result as JSON.",
)


class JsonCommand(click.Command):
    """A command with `--json`, as `output`, which is the last option of its help."""

    def __init__(self, *, params: list[click.Parameter], **settings: Any) -> None:
        super().__init__(params=[*params, _JSON], **settings)


class RepositoryCommand(JsonCommand):
    """A command about a repository that exists, with `--json`."""

    def __init__(self, *, params: list[click.Parameter], **settings: Any) -> None:
        super().__init__(params=[REPOSITORY, *params], **settings)


all_option = click.option(
    "--all", "show_all", is_flag=True, help="Show icefloe's own tables (.icefloe), too."
)
"""Adds `--all`, as `show_all`, to what leaves out icefloe's own tables."""
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
"""Adds `--yes` to what deletes something; without it the command asks."""
allow_virtual_option = click.option(
    "--allow-virtual",
    "allowed",
    multiple=True,
    metavar="PREFIX",
    callback=lambda ctx, param, value: _credentials(value),
    help="Read virtual chunks below this URL prefix, as containers of the repository have it.",
)
"""Adds `--allow-virtual`, as `allowed`: credentials by prefix, from the environment."""


def changes_text(changed: Diff, shown: Diff | None = None) -> str:
    """A diff for people: `shown` of it, all but icefloe's own tables unless given."""
    shown = without_internal(changed) if shown is None else shown
    if shown.is_empty() and not changed.is_empty():
        return "no changes but to icefloe's own tables (icefloe diff --all shows them)"
    return repr(shown).rstrip()


def message_option(default: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--message` for what commits."""
    return click.option(
        "--message", "-m", default=default, show_default=True, help="The message of the commit."
    )


def _credentials(prefixes: tuple[str, ...]) -> dict[str, Any]:
    if not prefixes:
        return {}
    from icefloe.virtual.sources import SourceAccess, container_for

    ended = [prefix if prefix.endswith("/") else prefix + "/" for prefix in prefixes]
    return {prefix: container_for(prefix, SourceAccess()).credential for prefix in ended}


def assignment(text: str, option: str) -> tuple[str, Any]:
    """KEY=VALUE, where a value is JSON or text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"{option} takes KEY=VALUE; got {text!r}.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Add --yes to do it without being asked.")
    click.confirm(question, abort=True, err=True)


def json_text(value: Any) -> str:
    """A value of the API as indented JSON."""
    return json.dumps(plain(value), ensure_ascii=False, indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """Values of the API as JSON has them, also inside others. An enumeration shows its name.

    NaN and infinite numbers, which JSON lacks, become texts such as "NaN" and "Infinity".
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, float) and not isfinite(value):
        return json.dumps(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "__dict__"):
        return {"type": type(value).__name__, **plain(vars(value))}
    return str(value)


def time_text(instant: datetime) -> str:
    """A time in the zone of this machine, to the second."""
    return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def entry_text(entry: SnapshotInfo) -> str:
    """A snapshot as one line."""
    return f"{entry.id}  {time_text(entry.written_at)}  {entry.message}"


def index_text(index: Sequence[int]) -> str:
    """The number of a chunk, padded as the first column of a list."""
    return f"{'/'.join(map(str, index)) or '-':<16}"


def table_text(names: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Columns of text; `align` has `<` or `>` for each of them. Nothing is cut."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in [names, *rows]
    )


def pairs_text(pairs: Mapping[str, str]) -> str:
    """A line for each name and its value."""
    width = max(map(len, pairs), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs.items())


_AGE = re.compile(r"(\d+)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType):  # type: ignore[type-arg] # generic in later releases
    """An instant: an age before now such as `30d`, `now`, or a time in ISO form, local unless it
    has a zone."""

    name = "age or time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        now = datetime.now(UTC)
        if value == "now":
            return now
        age = _AGE.fullmatch(value)
        try:
            if age is not None:
                return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
            return datetime.fromisoformat(value).astimezone()
        except OverflowError:
            self.fail(f"{value!r} is before the year 1 or after the year 9999.", param, ctx)
        except ValueError:
            self.fail(
                f"{value!r} is neither an age such as 30d, 12h or 45m, nor a time such as "
                "2026-05-31 or 2026-05-31T12:00Z, nor now.",
                param,
                ctx,
            )
