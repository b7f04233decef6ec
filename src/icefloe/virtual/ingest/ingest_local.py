"""`ingest_local`: an ingest in one process. The same plan runs on a cluster, see `run.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from icefloe import paths
from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.virtual.ingest.local_engine import LocalEngine
from icefloe.virtual.ingest.report import IngestReport
from icefloe.virtual.ingest.run import IngestTask, OnError, run_ingest
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.places.globs import Sources, list_sources
from icefloe.virtual.planning.order import AS_LISTED, BY_COORDINATES, named_dims
from icefloe.virtual.planning.plan import IngestOptions, Mode


def make_options(
    *,
    group: str = "",
    concat_dim: str | Sequence[str] | None = None,
    variables: Sequence[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    mode: Mode = "native",
    order: str = BY_COORDINATES,
    late: Literal["fail", "insert"] = "fail",
    changed: Literal["fail", "replace", "skip"] = "fail",
) -> IngestOptions:
    """Options as a user gives them, checked.

    Raises:
        InvalidInputError: one of them cannot be used, whatever the files are.
    """
    if mode not in ("native", "virtual"):
        raise InvalidInputError(f"mode is {mode!r}, expected 'native' or 'virtual'")
    dims = (concat_dim,) if isinstance(concat_dim, str) else concat_dim
    names = [variables] if isinstance(variables, str) else variables
    for name, length in (chunks or {}).items():
        if length < 1:
            raise InvalidInputError(f"chunks[{name!r}] is {length!r}, expected a whole number > 0")
    if chunks and mode == "virtual":
        raise InvalidInputError("chunks cannot be chosen in virtual mode: files have theirs")
    if order == AS_LISTED and not dims:
        raise InvalidInputError("order is 'listed', which needs concat_dim, the dimension meant")
    unknown = set(named_dims(order)) - set(dims or named_dims(order))
    if unknown:
        raise InvalidInputError(
            f"order names {sorted(unknown)}, which concat_dim {list(dims or ())} does not"
        )
    paths.validate("/" + group.strip("/"))
    return IngestOptions(
        group.strip("/"),
        None if dims is None else tuple(dims),
        None if names is None else tuple(names),
        dict(chunks or {}),
        mode,
        order,
        late,
        changed,
    )


def make_access(
    access: SourceAccess | Mapping[str, Any] | None,
    preprocess: Callable[[Any], Any] | None,
    mode: Mode,
) -> SourceAccess:
    """How sources are read.

    Raises:
        InvalidInputError: a hook cannot be used with references.
    """
    if preprocess is not None and mode == "virtual":
        raise InvalidInputError(
            "preprocess is given in virtual mode: references show files as they are; use "
            "mode='native'"
        )
    reach = access if isinstance(access, SourceAccess) else SourceAccess(dict(access or {}))
    return replace(reach, preprocess=preprocess) if preprocess is not None else reach


def ingest_local(
    sources: Sources,
    repository: Repository,
    *,
    group: str = "",
    branch: str = "main",
    concat_dim: str | Sequence[str] | None = None,
    variables: Sequence[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    mode: Mode = "native",
    append: bool = False,
    order: str = BY_COORDINATES,
    late: Literal["fail", "insert"] = "fail",
    changed: Literal["fail", "replace", "skip"] = "fail",
    exclude: str | Sequence[str] = (),
    preprocess: Callable[[Any], Any] | None = None,
    on_error: OnError = "fail",
    message: str | None = None,
    access: SourceAccess | Mapping[str, Any] | None = None,
) -> IngestReport:
    """Bring NetCDF, HDF5, GRIB, Zarr and kerchunk sources into a group, in one commit.

    The arguments are those of `icefloe.spark.ingest`, and so is the result; the work is done here.
    """
    if on_error not in ("fail", "skip", "quarantine"):
        raise InvalidInputError(
            f"on_error is {on_error!r}, expected 'fail', 'skip' or 'quarantine'"
        )
    options = make_options(
        group=group,
        concat_dim=concat_dim,
        variables=variables,
        chunks=chunks,
        mode=mode,
        order=order,
        late=late,
        changed=changed,
    )
    reach = make_access(access, preprocess, mode)
    task = IngestTask(repository, branch, options, append, on_error, message)
    return run_ingest(LocalEngine(reach), list_sources(sources, reach, exclude), task)
