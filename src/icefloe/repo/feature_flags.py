"""Feature flags of version-2 repositories: operations an administrator can switch off."""

from __future__ import annotations

from dataclasses import replace

from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.records import record
from icefloe.repo.handle import RepoHandle
from icefloe.repo.update import Changed, update_repo

# Ids 1 and 2 are reserved by the format for commit and amend.
_IDS = {"move_node": 3, "create_tag": 4, "delete_tag": 5}


@record(frozen=True)
class FeatureFlag:
    """A flag, what it is set to (None: the default), and what that comes to."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None

    @property
    def enabled(self) -> bool:
        return self.default_enabled if self.setting is None else self.setting


def flags_of(info: RepoInfo) -> list[FeatureFlag]:
    """Every known flag; ids found on disk that are not known are carried along and ignored."""
    flags = []
    for name, number in _IDS.items():
        setting = None
        if number in (info.enabled_feature_flags or ()):
            setting = True
        elif number in (info.disabled_feature_flags or ()):
            setting = False
        flags.append(FeatureFlag(number, name, True, setting))
    return flags


def require_flag(info: RepoInfo, name: str) -> None:
    """Refuse an operation whose flag is off."""
    if not next(flag for flag in flags_of(info) if flag.name == name).enabled:
        raise SessionStateError(
            f"feature flag {name!r} is disabled in this repository; "
            f"set_feature_flag({name!r}, None) brings it back",
            ErrorKind.FEATURE_FLAG_DISABLED,
        )


async def feature_flags(handle: RepoHandle) -> list[FeatureFlag]:
    """Every flag of the repository."""
    handle.require_version_2("feature flags")
    return flags_of((await handle.assets.repo_object()).info)


async def set_feature_flag(handle: RepoHandle, name: str, setting: bool | None) -> None:
    """Switch a flag on or off, or back to its default with None."""
    handle.require_version_2("feature flags")
    if name not in _IDS:
        raise InvalidInputError(
            f"no feature flag {name!r}; flags are {', '.join(map(repr, _IDS))}",
            ErrorKind.INVALID_FEATURE_FLAG,
        )
    number = _IDS[name]

    def change(info: RepoInfo, _now: int) -> Changed:
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
