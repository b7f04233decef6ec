"""icefloe under the names of official Icechunk 2.3: what `import icechunk` finds after `install()`.

The modules have the original's names and offer what `original_modules.py` lists.
`python -m icefloe.as_icechunk program.py` runs a program in which icechunk is icefloe.
"""

from __future__ import annotations

from icefloe.api.migration import upgrade_icechunk_repository
from icefloe.as_icechunk.about import (
    __version__,
    print_debug_info,
    spec_version,
    supported_spec_versions,
    user_agent,
)
from icefloe.as_icechunk.installing import FOLDER, install
from icefloe.as_icechunk.logs import initialize_logs
from icefloe.as_icechunk.new_storage import put_on_class
from icefloe.as_icechunk.original_modules import make_modules
from icefloe.config import ManifestConfig, RepositoryConfig
from icefloe.config.repository import set_program_defaults
from icefloe.display import show_as

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

for _name, _module in make_modules(__name__).items():
    globals()[_name] = _module
    globals().update({name: getattr(_module, name) for name in _module.__all__})
    __all__ += _module.__all__
__all__ = sorted(set(__all__))  # noqa: PLE0605

put_on_class()
# One manifest for each array: programs may count them.
set_program_defaults(RepositoryConfig(manifest=ManifestConfig(max_shared_refs_per_array=0)))
show_as("icechunk")
initialize_logs()
