"""Sections as pictures: what is set, and the default of what is not."""

from __future__ import annotations

from typing import Any

from icefloe.config import resolved
from icefloe.config.section import Section, options
from icefloe.display.rendering import as_field
from icefloe.display.shown import Picture

OWN = {"previous_file", "packing", "max_refs_per_manifest"}
"""Options the original does not have: shown only when they are set."""

_NO_DEFAULT = {"storage", "timeouts", "packing"}
"""Sections whose defaults depend on the storage, or that mean something by being there."""

_DEFAULTS = {
    "RepositoryConfig": resolved.ResolvedConfig(),
    "CompressionConfig": resolved.ResolvedCompression(),
    "CachingConfig": resolved.ResolvedCaching(),
    "StorageSettings": resolved.ResolvedStorage(),
    "StorageConcurrencySettings": resolved.ResolvedConcurrency(),
    "StorageRetriesSettings": resolved.ResolvedRetries(),
    "ManifestConfig": resolved.ResolvedManifest(),
    "ManifestPreloadConfig": resolved.ResolvedPreload(),
    "ManifestVirtualChunkLocationCompressionConfig": resolved.ResolvedLocationCompression(),
    "RepoUpdateRetryConfig": resolved.ResolvedRepoUpdateRetries(),
}


def shown_options(section: Section) -> list[str]:
    """The options in the order to show them: plain ones first, then sections."""
    known = options(type(section))
    names = [name for name in known if name not in OWN or getattr(section, name) is not None]
    return sorted(names, key=lambda name: issubclass(known[name].type, Section | dict))


def picture(section: Section, defaults: Any = None) -> Picture:
    """Options that are not set show their default."""
    if defaults is None:
        defaults = _DEFAULTS.get(type(section).__name__)
    fields = [(name, _field(section, name, defaults)) for name in shown_options(section)]
    return Picture(section._title_(), fields)


def _field(section: Section, name: str, defaults: Any) -> Any:
    value, default = getattr(section, name), getattr(defaults, name, None)
    kind = options(type(section))[name].type
    if issubclass(kind, Section) and name not in _NO_DEFAULT:
        return picture(kind() if value is None else value, default)
    if value is not None:
        return as_field(value)
    if name == "algorithm":
        return "Zstd (default)"
    return f"{default} (default)" if isinstance(default, int | float) else "None"
