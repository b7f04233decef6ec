"""A repository as views for SQL: one for each group, and one for each table of metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from icefloe import paths
from icefloe.api.session import Session
from icefloe.errors import FormatError, InvalidInputError
from icefloe.scans.cells import plan_cells
from icefloe.scans.dimension_sets import Dimensions, dimension_sets
from icefloe.scans.metadata.tables import TABLES, plan_table
from icefloe.scans.options import read_options
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import Scan
from icefloe.scans.variables import find_variables


@dataclass(frozen=True, slots=True)
class PlannedViews:
    """Views by name: what they show, and the scans of all but `files`."""

    files: str
    titles: dict[str, str] = field(default_factory=dict)
    scans: dict[str, Scan] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, view: str, title: str, scan: Scan | None = None) -> None:
        for other, shown in self.titles.items():
            if other.lower() == view.lower():
                raise InvalidInputError(
                    f"{shown} and {title} would both be the view {view!r}; read one of them with "
                    "icefloe.spark.read"
                )
        self.titles[view] = title
        if scan is not None:
            self.scans[view] = scan


def plan_views(
    source: PinnedSnapshot, name: str, branch: str | None, num_tasks: int
) -> PlannedViews:
    """What `attach` makes of a snapshot; `branch` if it was named by one."""
    planned = PlannedViews(f"{name}__files")
    for table in TABLES:
        view, title = f"{name}__{table}", f"table {table}"
        if view == planned.files:
            planned.add(view, title)
            continue
        try:
            scan = plan_table(source, table, branch, min_partitions=num_tasks)
        except FormatError as error:  # no log of operations in repositories of version 1
            planned.left_out[title] = str(error)
        else:
            planned.add(view, title, scan)
    add_groups(planned, source, name, num_tasks)
    return planned


def add_groups(
    planned: PlannedViews,
    source: PinnedSnapshot,
    name: str,
    num_tasks: int,
    *,
    with_internal: bool = True,
) -> None:
    """Plan the views of all groups, icefloe's own tables among them unless they are hidden."""
    session = source.open()
    for group in _groups(session):
        if not with_internal and paths.is_internal(group):
            continue
        title = f"group {group}"
        try:
            sets = _sets(session, group)
        except (InvalidInputError, FormatError) as error:
            planned.left_out[title] = str(error)
            continue
        for dims in sets:
            own = title if len(sets) == 1 else f"{title} ({', '.join(dims)})"
            options = read_options(group=group, dims=dims or None, min_partitions=num_tasks)
            try:
                scan = plan_cells(source, options)
            except (InvalidInputError, FormatError) as error:
                planned.left_out[own] = str(error)
                continue
            parts = (name, *paths.segments(group), *(dims if len(sets) > 1 else ()))
            planned.add(
                "_".join(re.sub(r"\W", "_", part, flags=re.ASCII) for part in parts), own, scan
            )


def _groups(session: Session) -> Iterator[str]:
    """The paths of all groups, also of those that only have arrays below them."""
    found = {"/"}
    for path in session.workspace.state.all_paths():
        is_array = session.workspace.state.node(path).array is not None
        found.add((paths.parent(path) or "/") if is_array else path)
    yield from sorted(found)


def _sets(session: Session, group: str) -> list[Dimensions]:
    if session.workspace.state.find_node(group) is None:
        return []
    known = find_variables(session, group, None, decode=True, is_coded=False)
    return dimension_sets(known) if known else []
