"""Feature flags of version-2 repositories: operations an administrator can switch off."""

from __future__ import annotations

from dataclasses import replace

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.repo.families.spec2.flags import FLAG_IDS, FeatureFlag, flags_of
from icefloe.repo.families.spec2.update import Changed, update_repo
from icefloe.repo.handle import RepoHandle


async def feature_flags(handle: RepoHandle) -> list[FeatureFlag]:
    """Every flag of the repository."""
    handle.family.require_repo_object("feature flags")
    return flags_of((await handle.assets.repo_object()).info)


async def set_feature_flag(handle: RepoHandle, name: str, setting: bool | None) -> None:
    """Switch a flag on or off, or back to its default with None."""
    handle.family.require_repo_object("feature flags")
    if name not in FLAG_IDS:
        raise InvalidInputError(
            f"no feature flag {name!r}; flags are {', '.join(map(repr, FLAG_IDS))}",
            ErrorKind.INVALID_FEATURE_FLAG,
        )
    number = FLAG_IDS[name]

    def change(info: RepoInfo) -> Changed:
        enabled = set(info.enabled_feature_flags or ()) - {number}
        disabled = set(info.disabled_feature_flags or ()) - {number}
        if setting is not None:
            (enabled if setting else disabled).add(number)
        changed = replace(
            info,
            enabled_feature_flags=tuple(sorted(enabled)),
            disabled_feature_flags=tuple(sorted(disabled)),
        )
        values = {"id": number, "new_value": bool(setting), "is_set": setting is not None}
        return changed, UpdateKind.FEATURE_FLAG_CHANGED, values

    await update_repo(handle, change)
