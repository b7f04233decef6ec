"""`attach`: a repository as views, for SQL.

Spark lets no Python package put tables into a catalog. Temporary views come close: they live as
long as the session does, carry the credentials of the `Repository`, and are pinned to a snapshot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from icefloe.api.repository import Repository
from icefloe.display.shown import Picture, Shown, counted, qualified
from icefloe.errors import InvalidInputError
from icefloe.scans.metadata.views import plan_views
from icefloe.scans.pinned import as_repository, pin
from icefloe.spark.metadata.spread_files import files_dataframe
from icefloe.spark.reads.reading import check_session, to_dataframe
from icefloe.spark.runtime.spark_session import parallelism


@dataclass(slots=True, repr=False)
class Attached(Shown):
    """Views of a repository. `views` says what each of them shows."""

    name: str
    snapshot_id: str = ""
    views: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Groups and tables that have no view, each with the reason."""
    _spark: Any = field(default=None, repr=False)
    _repository: Repository | None = field(default=None, repr=False)
    _ref: dict[str, Any] = field(default_factory=dict, repr=False)

    def _picture_(self) -> Picture:
        views = Picture(counted(len(self.views), "view"), sorted(self.views.items()))
        fields: list[tuple[str, str | Picture]] = [
            ("name", self.name),
            ("snapshot", self.snapshot_id),
            ("views", views if self.views else "none"),
        ]
        if self.left_out:
            missing = sorted(self.left_out.items())
            fields.append(("left out", Picture(f"{len(missing)} without a view", missing)))
        return Picture(qualified("spark.Attached"), fields)

    def refresh(self) -> Attached:
        """Show what the ref stands for now; views of groups that are gone are dropped."""
        assert self._repository is not None
        source = pin(self._repository, **self._ref)
        has_name = self._ref["tag"] or self._ref["snapshot_id"]
        branch = self._ref["branch"] or (None if has_name else "main")
        planned = plan_views(source, self.name, branch, parallelism(self._spark))
        for view in self.views.keys() - planned.titles.keys():
            self._spark.catalog.dropTempView(view)
        for view, scan in planned.scans.items():
            to_dataframe(self._spark, scan).createOrReplaceTempView(view)
        files = files_dataframe(self._spark, source, parallelism(self._spark))
        files.createOrReplaceTempView(planned.files)
        self.snapshot_id = source.snapshot_id
        self.views, self.left_out = planned.titles, planned.left_out
        return self

    def detach(self) -> None:
        """Drop the views."""
        for view in self.views:
            self._spark.catalog.dropTempView(view)
        self.views, self.left_out = {}, {}


def attach(
    spark: SparkSession,
    repository: Repository | str,
    name: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> Attached:
    """Make temporary views of every group and every table of metadata.

        icefloe.spark.attach(spark, repo, "weather", branch="main")
        spark.sql("SELECT lat, avg(t2m) FROM weather_era5 GROUP BY lat")
        spark.sql("SELECT message FROM weather__snapshots")

    The cells of the root group are the view `name`, those of a group `a/b` are `name_a_b`. If the
    arrays of a group have several sets of dimensions, each set is a view, with the dimensions at
    the end of its name. Tables of metadata have two underscores: `name__snapshots`. Characters
    that SQL would want in quotes are underscores too. Views of these names are replaced.

    All views show one snapshot, that of the ref at this call; `refresh()` of what is returned
    moves them to where the ref is then, `detach()` drops them. Groups that have no columns in
    Spark are in `left_out`.

    Args:
        spark: the session; `icefloe.spark.session()` makes one.
        repository: a `Repository`, or its URL.
        branch: `main` unless another ref is given.
        tag: the version, instead of a branch.
        snapshot_id: the version, instead of a branch.
        as_of: with a branch, its newest snapshot at that time.

    Raises:
        InvalidInputError: the name is none, or two views would have the same name.
    """
    check_session(spark)
    given: Any = name
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z_]\w*", given, re.ASCII):
        raise InvalidInputError(
            f"name is {given!r:.80}, expected letters, digits and underscores, such as 'weather'"
        )
    ref = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    made = Attached(name, _spark=spark, _repository=as_repository(repository), _ref=ref)
    return made.refresh()
