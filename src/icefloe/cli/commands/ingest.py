"""`ingest` and `import`: files and Zarr stores into a repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from icefloe.api.repository import Repository
from icefloe.cli.common import (
    JsonCommand,
    Output,
    assignment,
    at_least_1,
    find_address,
    message_option,
    words_given,
)
from icefloe.cli.program import about_place
from icefloe.display import counted, size_text
from icefloe.errors import AlreadyExistsError, RepositoryNotFoundError
from icefloe.ingests import ingest as run_ingest
from icefloe.storage.spec import Storage
from icefloe.virtual.ingest.request import load_recipe
from icefloe.virtual.ingest.run_ingest import IngestReport

_SHARED: list[Callable[[Any], Any]] = [
    click.option("--group", metavar="PATH", help="The group to fill; the root unless given."),
    click.option(
        "--concat-dim", multiple=True, metavar="DIM", help="Dimension along which files follow."
    ),
    click.option("--variable", "variables", multiple=True, metavar="NAME", help="Only this one."),
    click.option(
        "--chunk", "chunks", multiple=True, metavar="DIM=N", help="Length of chunks, for copies."
    ),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Sources to leave out."),
    click.option(
        "--order", metavar="ORDER", help="coordinates, listed, or a pattern such as sst_{time}.nc."
    ),
    click.option(
        "--on-error",
        type=click.Choice(["fail", "skip", "quarantine"]),
        help="What becomes of files that cannot be read or do not fit; fail.",
    ),
    click.option(
        "--access",
        multiple=True,
        metavar="NAME=VALUE",
        help="How sources are reached, such as anonymous=true or region=eu-west-1.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        default="local",
        show_default=True,
        help="Who does the work: this process, or Spark.",
    ),
    click.option("--master", metavar="URL", help="The Spark master, such as local[4]; for spark."),
    click.option("--num-tasks", type=at_least_1, help="Tasks of each Spark job; for spark."),
]


def _shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SHARED):
        command = option(command)
    return command


@click.command(cls=JsonCommand)
@click.argument("words", metavar="SOURCE... REPOSITORY", nargs=-1)
@click.option(
    "--recipe",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read all options from a YAML file.",
)
@click.option(
    "--mode",
    type=click.Choice(["native", "virtual"]),
    help="native copies values, virtual stores references to the files. A group keeps the "
    "mode it was made in; a new one is native.",
)
@click.option("--append", is_flag=True, default=None, help="Add to what the group has.")
@click.option(
    "--late",
    type=click.Choice(["fail", "insert"]),
    help="What to do with files that belong before the end of the data [default: fail].",
)
@click.option(
    "--changed",
    type=click.Choice(["fail", "replace", "skip"]),
    help="What to do with files that changed since they were ingested [default: fail].",
)
@click.option(
    "--create/--no-create",
    default=None,
    help="Whether the repository is created if there is none; it is, unless a recipe says no.",
)
@click.option(
    "--add-containers", is_flag=True, default=None, help="Save containers that virtual mode needs."
)
@_shared_options
@message_option(None)
def ingest(
    words: tuple[str, ...],
    recipe: Path | None,
    engine: str,
    master: str | None,
    output: Output,
    **given: Any,
) -> None:
    """Add NetCDF, HDF5, GRIB, Zarr or kerchunk sources to a group, in one commit.

    SOURCE is a path, a URL or a pattern in quotes; REPOSITORY comes last, with @BRANCH if it is not
    main. It is created if there is none. With --append,
    files already ingested are skipped, so the same command can be run again at any time; the group
    keeps its mode, dimension and variables.

    \b
        icefloe ingest 'archive/*.nc' weather --concat-dim time --append
        icefloe ingest --recipe nightly.yaml --engine spark
    """
    arguments = _arguments(given)
    if recipe is not None:
        if words:
            raise click.UsageError("The recipe names sources and repository; give no others.")
        arguments = {**load_recipe(recipe), **arguments}
        sources, repository = arguments.pop("sources"), arguments.pop("repository")
    else:
        *sources, repository = _sources_and_place(words)
    with about_place(repository, words_given(), last=True):
        _run(sources, repository, engine, master, output, arguments)


@click.command("import", cls=JsonCommand)
@click.argument("words", metavar="SOURCE... NEW", nargs=-1)
@click.option("--by-reference", is_flag=True, help="Refer to the files instead of copying them.")
@_shared_options
@message_option(None)
def import_(
    words: tuple[str, ...],
    by_reference: bool,
    engine: str,
    master: str | None,
    output: Output,
    **given: Any,
) -> None:
    """Make a new repository of a Zarr store, or of files. One without commits counts as new.

    \b
        icefloe import s3://public/era5.zarr era5 --access anonymous=true
        icefloe import --by-reference 'archive/*.nc' weather --concat-dim time
    """
    *sources, place = _sources_and_place(words)
    address = find_address(place)
    if _has_commits(address.storage()):
        raise AlreadyExistsError(
            f"{address.url} has a repository already; add to it with: icefloe ingest --append"
        )
    mode = "virtual" if by_reference else "native"
    arguments = {**_arguments(given), "mode": mode, "add_containers": True}
    _run(sources, place, engine, master, output, arguments)


def _has_commits(storage: Storage) -> bool:
    """Whether there is a repository in which something was done."""
    try:
        found = Repository.open(storage)
    except RepositoryNotFoundError:
        return False
    refs = [*found.list_branches(), *found.list_tags()]
    return refs != ["main"] or len(list(islice(found.ancestry(branch="main"), 2))) > 1


def _sources_and_place(words: Sequence[str]) -> Sequence[str]:
    if len(words) < 2:
        raise click.UsageError("Give at least one SOURCE, and the repository as the last argument.")
    return words


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was said, under the names of the arguments of `icefloe.ingest`."""
    said = {name: value for name, value in given.items() if value not in (None, (), "")}
    for name, option in (("chunks", "--chunk"), ("access", "--access")):
        if name in said:
            said[name] = dict(assignment(word, option) for word in said[name])
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in said.items()
    }


def _run(
    sources: Sequence[str],
    repository: str,
    engine: str,
    master: str | None,
    output: Output,
    arguments: dict[str, Any],
) -> None:
    """Run an ingest into a path, a URL or a name that `config add` knows, and show the report."""
    if master is not None:
        if engine != "spark":
            raise click.UsageError("--master goes with --engine spark.")
        from icefloe.spark import session

        arguments["spark"] = session(master)
    address = find_address(repository)
    place = address.url if address.ref is None else f"{address.url}@{address.ref}"
    report = run_ingest(sources, place, engine=engine, **arguments)  # type: ignore[arg-type]
    output.show(report, _report_lines(report, repository))


def _report_lines(report: IngestReport, repository: str) -> Iterator[str]:
    there = report.files_skipped
    if report.snapshot_id is not None:
        yield (
            f"Committed {report.snapshot_id} to {repository}: "
            f"{counted(report.files_added, 'file')} added, {there:,} there already."
        )
        yield (
            f"  {counted(report.chunks_written, 'chunk')} with "
            f"{size_text(report.bytes_written)} copied, "
            f"{counted(report.refs_written, 'reference')}, in {report.seconds:.1f} s"
        )
    elif there:
        verb = "is" if there == 1 else "are"
        yield f"Nothing had to change in {repository}: {counted(there, 'file')} {verb} in it."
    else:
        yield f"Nothing was added to {repository}."
    yield from (f"  note: {note}" for note in report.notes)
    yield from (f"  left out: {problem}" for problem in report.problems)
