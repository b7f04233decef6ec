"""icefloe under the names of official Icechunk 2.3: what `import icechunk` finds after `install()`.

The modules have the original's names and are thin: they import what they offer from icefloe.
`python -m icefloe.as_icechunk program.py` runs a program in which icechunk is icefloe.
"""

from __future__ import annotations

from icefloe.api.upgrade_call import upgrade_icechunk_repository
from icefloe.as_icechunk import (
    _exceptions,
    config,
    conflicts,
    credentials,
    ops,
    repository,
    session,
    snapshots,
    storage,
    store,
    types,
    virtual,
)
from icefloe.as_icechunk.about import (
    __version__,
    print_debug_info,
    spec_version,
    supported_spec_versions,
    user_agent,
)
from icefloe.as_icechunk.installing import FOLDER, install
from icefloe.display.shown import show_as

__all__ = [
    "FOLDER",
    "__version__",
    "install",
    "print_debug_info",
    "spec_version",
    "supported_spec_versions",
    "upgrade_icechunk_repository",
    "user_agent",
]

for _face in (
    _exceptions,
    config,
    conflicts,
    credentials,
    ops,
    repository,
    session,
    snapshots,
    storage,
    store,
    types,
    virtual,
):
    for _name in _face.__all__:
        globals()[_name] = getattr(_face, _name)
    __all__ += _face.__all__
__all__ = sorted(set(__all__))  # noqa: PLE0605

show_as("icechunk")
config.initialize_logs()
