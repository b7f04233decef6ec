"""Validation of the argument `authorize_virtual_chunk_access`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    from icefloe.storage.identity import containers as container_credentials
    from icefloe.storage.identity.containers import AnyCredential
else:
    container_credentials = on_demand("icefloe.storage.identity.containers")


def authorizations(
    given: Mapping[str, AnyCredential | None] | None,
) -> dict[str, AnyCredential | None]:
    """Credentials by prefix. Plain credentials are wrapped. None gives a warning."""
    if not given:
        return {}
    for prefix in given:
        if not isinstance(prefix, str):
            raise TypeError(
                f"authorize_virtual_chunk_access: {prefix!r} is no URL prefix, expected str"
            )
    for prefix in (prefix for prefix, credential in given.items() if credential is None):
        warnings.warn(
            f"Passing `None` in `authorize_virtual_chunk_access` for {prefix!r} is deprecated: say "
            "how to sign in, with a credential or with credentials.HttpAccess or "
            "credentials.LocalFileSystemAccess",
            DeprecationWarning,
            stacklevel=4,
        )
    return container_credentials.containers_credentials({**given})
