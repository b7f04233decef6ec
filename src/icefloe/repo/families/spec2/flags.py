"""Feature flags in a `repo` object: operations that an administrator can switch off."""

from __future__ import annotations

from icefloe.display.shown import Picture, Shown
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.repo_info.file import RepoInfo
from icefloe.records import record

# Ids 1 and 2 are reserved by the format for commit and amend.
FLAG_IDS = {"move_node": 3, "create_tag": 4, "delete_tag": 5}


@record(frozen=True)
class FeatureFlag(Shown):
    """A flag, its setting (None: the default), and its effective value."""

    shown_in = "config"

    id: int
    name: str
    default_enabled: bool
    setting: bool | None

    @property
    def enabled(self) -> bool:
        return self.default_enabled if self.setting is None else self.setting

    def _picture_(self) -> Picture:
        names = ("id", "name", "default_enabled", "setting", "enabled")
        return Picture(self._title_(), [(name, str(getattr(self, name))) for name in names])


def flags_of(info: RepoInfo) -> list[FeatureFlag]:
    """Every known flag. Unknown ids on disk are preserved and ignored."""
    flags = []
    for name, number in FLAG_IDS.items():
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
