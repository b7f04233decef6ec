"""`pyramid`: a dataset at several resolutions, described by GeoZarr's multiscales convention."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal

import zarr

from icefloe.api.repository import Repository
from icefloe.blocks.expressions import Source
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.scans.scan import as_repository
from icefloe.spark.datasets import BlocksReport, SparkDataset, open_dataset

_CONVENTION = {
    "uuid": "d35379db-88df-4056-af3a-620245f8e347",
    "name": "multiscales",
    "schema_url": "https://raw.githubusercontent.com/zarr-conventions/multiscales/refs/tags/v1/"
    "schema.json",
    "spec_url": "https://github.com/zarr-conventions/multiscales/blob/v1/README.md",
    "description": "Levels of a pyramid, from fine to coarse",
}
_RESAMPLING = {"mean": "average", "min": "min", "max": "max", "sum": "sum"}


def pyramid(
    dataset: SparkDataset,
    repository: Repository | str,
    *,
    group: str,
    factors: Mapping[str, int],
    levels: int,
    method: Literal["mean", "min", "max", "sum"] = "mean",
    branch: str = "main",
    message: str | None = None,
) -> list[BlocksReport]:
    """Write a dataset and coarser versions of it, each computed from the one before.

    Level 0 is the dataset itself in `GROUP/0`; it is not copied if it was read from there. The
    branch moves once, when all levels are written; each has a commit of its own with its lineage.
    The attributes of the group follow the multiscales convention of GeoZarr.

    Args:
        dataset: the finest level.
        repository: a `Repository`, or its URL.
        group: the path of the group of all levels.
        factors: how many cells become one, by dimension, such as `{"y": 2, "x": 2}`.
        levels: how many coarser levels to make.
        method: how cells become one. Incomplete windows at the end count as they are.
        branch: the branch that gets the commits.
        message: of the commits.

    Raises:
        ConflictError: others committed to the branch meanwhile; it is as they left it.

    >>> weather = icefloe.spark.open_dataset(spark, repo, branch="main")
    >>> reports = icefloe.spark.pyramid(
    ...     weather, repo, group="zoom", factors={"y": 2, "x": 2}, levels=2
    ... )
    """
    target, path = as_repository(repository), group.strip("/")
    _check(dataset, factors, levels, method, path)
    tip = target.lookup_branch(branch)
    # Levels are read while others are written, so they are committed where only this job looks.
    work = f"pyramid-{secrets.token_hex(6)}"
    target.create_branch(work, tip)
    try:
        reports = (
            []
            if _is_in_place(dataset, target, tip, path)
            else [dataset.write(target, group=f"{path}/0", branch=work, message=message)]
        )
        for level in range(1, levels + 1):
            finer = open_dataset(
                dataset.engine.spark,
                target,
                group=f"{path}/{level - 1}",
                branch=work,
                memory=dataset.memory,
                num_tasks=dataset.engine.num_tasks,
            )
            kept = {dim: max(finer.chunks[dim]) for dim in factors}
            coarse = getattr(finer.coarsen(dict(factors), boundary="pad"), method)().rechunk(kept)
            name = f"{path}/{level}"
            reports.append(coarse.write(target, group=name, branch=work, message=message))
        session = target.writable_session(work)
        attributes = zarr.open_group(session.store, path=path, mode="r+").attrs
        attributes.update(_described(factors, levels, method))
        last = session.commit(message or f"describe the levels of /{path}")
        try:
            target.reset_branch(branch, last, from_snapshot_id=tip)
        except ConflictError as error:
            raise ConflictError(
                f"branch {branch!r} moved while the pyramid was computed; call pyramid again"
            ) from error
    finally:
        target.delete_branch(work)
    return reports


def _check(
    dataset: SparkDataset, factors: Mapping[str, int], levels: int, method: str, path: str
) -> None:
    if not path:
        raise InvalidInputError("group is the root, expected the path of a group for the levels")
    unknown = [dim for dim in factors if dim not in dataset.sizes]
    if unknown or not factors:
        raise InvalidInputError(
            f"factors has {list(factors)}, expected dimensions among {list(dataset.sizes)}"
        )
    if any(factor < 2 for factor in factors.values()):
        raise InvalidInputError(f"factors is {dict(factors)}, expected whole numbers from 2 on")
    if levels < 1:
        raise InvalidInputError(f"levels is {levels}, expected 1 or more")
    if method not in _RESAMPLING:
        raise InvalidInputError(f"method is {method!r}, expected {', '.join(_RESAMPLING)}")


def _is_in_place(dataset: SparkDataset, target: Repository, tip: str, path: str) -> bool:
    """Whether the dataset is level 0 already."""
    source = dataset.expression
    if not isinstance(source, Source) or source.group != f"{path}/0":
        return False
    return source.snapshot.url == target.storage.url and source.snapshot.snapshot_id == tip


def _described(factors: Mapping[str, int], levels: int, method: str) -> dict[str, Any]:
    """The attributes of the group: axes are in the order of `factors`."""
    same = {"scale": [1.0 for _ in factors], "translation": [0.0 for _ in factors]}
    scale = {
        "scale": [float(factor) for factor in factors.values()],
        "translation": [(factor - 1) / 2 for factor in factors.values()],
    }
    layout: list[dict[str, Any]] = [{"asset": "0", "transform": same}]
    layout += [
        {"asset": str(level), "derived_from": str(level - 1), "transform": scale}
        for level in range(1, levels + 1)
    ]
    multiscales = {"layout": layout, "resampling_method": _RESAMPLING[method], "axes": [*factors]}
    return {"zarr_conventions": [_CONVENTION], "multiscales": multiscales}
