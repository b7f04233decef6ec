"""Rewriting all manifests of a branch, split as the current settings say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from icefloe.config.resolved import ONE_MANIFEST_PER_ARRAY
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.config.file import splitting_document
from icefloe.ids import SnapshotId
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.commit import amend, commit
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import open_writable
from icefloe.repo.workspace import Workspace

CommitMethod: TypeAlias = Literal["new_commit", "amend"]


@observed("rewrite_manifests", MAINTENANCE)
async def rewrite_manifests(
    handle: RepoHandle,
    message: str,
    branch: str,
    metadata: Mapping[str, Any] | None,
    commit_method: str,
) -> SnapshotId:
    """Commit to `branch`, or amend its tip, with every manifest rewritten."""
    if commit_method not in get_args(CommitMethod):
        raise InvalidInputError(
            f"commit_method is {commit_method!r}, expected 'new_commit' or 'amend'"
        )
    if commit_method == "amend" and not handle.family.can_amend:
        raise FormatError(
            f"commits cannot be amended in {handle.family.noun}; use 'new_commit'",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    described = splitting_metadata(handle)
    state = await open_writable(handle, branch)
    make = amend if commit_method == "amend" else commit
    return await make(
        Workspace(handle, state),
        message,
        {**(metadata or {}), **described},
        allow_empty=True,
        rewrite_all=True,
    )


def splitting_metadata(handle: RepoHandle) -> dict[str, Any]:
    """The current rules, as recorded in the metadata of such a commit."""
    rules = handle.settings.manifest.splitting.split_sizes or ONE_MANIFEST_PER_ARRAY
    return {"__icechunk": {"splitting_config": splitting_document(rules)}}
