"""The program: which commands there are, and how failures end it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from keyword import iskeyword

import click

from icefloe.cli import MISSING_PACKAGE
from icefloe.cli.arrow_alone import start_arrow_alone
from icefloe.cli.hints import about_command, about_usage, after, sentence
from icefloe.cli.overview import SECTIONS
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
)
from icefloe.on_demand import import_quickly, start_with

_COMMANDS = {
    "lifecycle": ("init", "info"),
    "history": ("log", "show", "diff", "ops"),
    "refs": ("branch", "tag", "reset"),
    "nodes": ("tree", "chunks"),
    "settings": ("config", "metadata", "status"),
    "sizes": ("stats",),
    "files": ("inspect",),
    "searching": ("blame", "bisect"),
    "query": ("sql",),
    "cleaning": ("expire", "gc", "rewrite-manifests"),
    "health": ("verify", "repair"),
    "bringing": ("ingest", "import"),
    "shell": ("completion",),
    "original": ("repo", "ancestry"),
    "copying": ("export", "clone", "materialize", "migrate"),
    "ui": ("ui",),
    "versions": ("cherry-pick", "undo", "merge", "squash"),
}
"""By file of `commands`. A file is imported when one of its commands is called."""
_FILE_OF = {name: file for file, names in _COMMANDS.items() for name in names}
_WITH_ARROW = {"query", "health", "copying"}
"""Files whose commands make Arrow tables of numpy arrays and lists."""

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
        return sorted(_FILE_OF)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _FILE_OF:
            ctx.fail(f"No such command {args[0]!r}.{about_command(args, _FILE_OF)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=20)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _FILE_OF:
            return None
        module = import_quickly(f"icefloe.cli.commands.{_FILE_OF[cmd_name]}")
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
    if arguments is None and words:
        if _FILE_OF.get(words[0]) in _WITH_ARROW:
            start_arrow_alone()
        start_with("pyarrow", start_arrow_alone)
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
        click.echo(f"icefloe: {sentence(error)}{after(error, words)}", err=True)
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
