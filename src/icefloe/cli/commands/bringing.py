"""`ingest` and `import`: files and Zarr stores into a repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from icefloe.api.addresses import parse_address
from icefloe.api.repository import Repository
from icefloe.cli.common import (
    Output,
    assignment,
    message_option,
    output_option,
    size_text,
    words_given,
)
from icefloe.cli.hints import about_place
from icefloe.errors import AlreadyExistsError
from icefloe.ingests import ingest as run_ingest
from icefloe.virtual.ingest.recipe import load_recipe
from icefloe.virtual.ingest.report import IngestReport

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
    click.option(
        "--num-tasks", type=click.IntRange(min=1), help="Tasks of each Spark job; for spark."
    ),
]


def _shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SHARED):
        command = option(command)
    return command


@click.command()
@click.argument("words", metavar="SOURCE... REPOSITORY", nargs=-1)
@click.option(
    "--recipe", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file that says all."
)
@click.option(
    "--mode",
    type=click.Choice(["native", "virtual"]),
    help="native copies values (the default), virtual stores references to the files.",
)
@click.option("--append", is_flag=True, default=None, help="Add to what the group has.")
@click.option("--late", type=click.Choice(["fail", "insert"]), help="Files before the end; fail.")
@click.option(
    "--changed", type=click.Choice(["fail", "replace", "skip"]), help="Files that changed; fail."
)
@click.option("--create", is_flag=True, help="Create the repository if there is none.")
@click.option("--add-containers", is_flag=True, help="Save containers that virtual mode needs.")
@_shared_options
@message_option(None)
@output_option
def ingest(
    words: tuple[str, ...],
    recipe: Path | None,
    engine: str,
    master: str | None,
    create: bool,
    add_containers: bool,
    output: Output,
    **given: Any,
) -> None:
    """Bring NetCDF, HDF5, GRIB, Zarr or kerchunk sources into a group, in one commit.

    SOURCE is a path, a URL or a pattern in quotes; REPOSITORY comes last, with @BRANCH if it is not
    main. With --append, files that were ingested before add nothing, so that the same command can
    be run again at any time.

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
        report = run_ingest(
            sources,
            repository,
            engine=engine,  # type: ignore[arg-type]
            create=create,
            add_containers=add_containers,
            **_spark(engine, master),
            **arguments,
        )
    _show(report, repository, output)


@click.command("import")
@click.argument("words", metavar="SOURCE... NEW", nargs=-1)
@click.option("--by-reference", is_flag=True, help="Refer to the files instead of copying them.")
@_shared_options
@message_option(None)
@output_option
def import_(
    words: tuple[str, ...],
    by_reference: bool,
    engine: str,
    master: str | None,
    output: Output,
    **given: Any,
) -> None:
    """Make a new repository of a Zarr store, or of files.

    \b
        icefloe import s3://public/era5.zarr era5 --access anonymous=true
        icefloe import --by-reference 'archive/*.nc' weather --concat-dim time
    """
    *sources, place = _sources_and_place(words)
    address = parse_address(place)
    if Repository.exists(address.storage()):
        raise AlreadyExistsError(
            f"{address.url} has a repository already; add to it with: icefloe ingest --append"
        )
    report = run_ingest(
        sources,
        place,
        engine=engine,  # type: ignore[arg-type]
        mode="virtual" if by_reference else "native",
        **_spark(engine, master),
        **_arguments(given),
    )
    _show(report, place, output)


def _sources_and_place(words: Sequence[str]) -> Sequence[str]:
    if len(words) < 2:
        raise click.UsageError("Give at least one SOURCE, and the repository as the last argument.")
    return words


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was said, under the names of the arguments of `icefloe.ingest`."""
    said = {name: value for name, value in given.items() if value not in (None, (), "")}
    if "chunks" in said:
        said["chunks"] = dict(assignment(word, "--chunk") for word in said["chunks"])
    if "access" in said:
        said["access"] = dict(assignment(word, "--access") for word in said["access"])
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in said.items()
    }


def _spark(engine: str, master: str | None) -> dict[str, Any]:
    if master is None:
        return {}
    if engine != "spark":
        raise click.UsageError("--master goes with --engine spark.")
    from icefloe.spark import session  # noqa: PLC0415 - needs pyspark

    return {"spark": session(master)}


def _show(report: IngestReport, repository: str, output: Output) -> None:
    def text() -> str:
        there = report.files_skipped
        if report.snapshot_id is None:
            lines = [f"Nothing had to change in {repository}: {there} files are in it already."]
        else:
            lines = [
                (
                    f"Committed {report.snapshot_id} to {repository}: "
                    f"{report.files_added} files added, {there} there already."
                ),
                (
                    f"  {report.chunks_written:,} chunks with {size_text(report.bytes_written)} "
                    f"copied, {report.refs_written:,} references, in {report.seconds:.1f} s"
                ),
            ]
        lines += [f"  note: {note}" for note in report.notes]
        lines += [f"  left out: {problem}" for problem in report.problems]
        return "\n".join(lines)

    output.show(report, text)
