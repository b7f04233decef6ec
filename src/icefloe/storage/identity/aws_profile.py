"""Credentials and region from the profiles that the AWS tools share.

A profile has keys, or says how to get them: single sign-on, a role to assume, a program to run.
botocore knows all of them (the extra `aws`). obstore knows variables and the roles of machines,
which need no further package.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from icefloe.errors import ErrorKind, StorageError

_OTHER_WAYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that go before a profile, as with the AWS tools."""

_PROFILE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_GOOD_FOR = timedelta(minutes=9)
"""botocore hands out nothing that ends within ten minutes, but does not say when it ends."""


def find_aws_profile() -> Callable[[], dict[str, Any]] | None:
    """A function that returns the profile's credentials, or None if there is no profile to use.

    Raises:
        StorageError: the profile does not exist, or its credentials cannot be had.
    """
    if any(name in os.environ for name in _OTHER_WAYS) or not _has_profiles():
        return None
    session = _session()
    profile = _profile_name()
    try:
        found = session.get_credentials()
    except _troubles() as error:
        raise _failed(profile, error, _is_sso(session)) from error
    if found is None:
        return None  # files without keys: the machine may have a role

    def provide() -> dict[str, Any]:
        try:
            keys = found.get_frozen_credentials()
        except _troubles() as error:
            raise _failed(profile, error, _is_sso(session)) from error
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _GOOD_FOR,
        }

    provide()  # what is wrong with a profile is said here, not inside a request
    return provide


def aws_profile_region() -> str | None:
    """The region of the profile, unless an environment variable names one."""
    if "AWS_REGION" in os.environ or "AWS_DEFAULT_REGION" in os.environ:
        return None
    if not _file("AWS_CONFIG_FILE", "~/.aws/config").exists() or find_spec("botocore") is None:
        return None
    found: str | None = _session().get_config_variable("region")
    return found


def _has_profiles() -> bool:
    """Whether a profile is named, or there are files with profiles.

    Raises:
        StorageError: there are keys in them, and no package to read them with.
    """
    keys = _file("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    named = _profile_name()
    if find_spec("botocore") is None:
        if named is None and not keys.exists():
            return False
        what = f"AWS_PROFILE is {named!r}" if named else f"the AWS keys are in {keys}"
        raise StorageError(
            f"{what}, and AWS profiles are read with botocore, which is not installed: "
            "pip install 'icefloe[aws]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ErrorKind.STORAGE_CONFIG,
        )
    config = _file("AWS_CONFIG_FILE", "~/.aws/config")
    return named is not None or keys.exists() or config.exists()


def _file(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable, default)).expanduser()


def _profile_name() -> str | None:
    return next((os.environ[name] for name in _PROFILE if os.environ.get(name)), None)


def _session() -> Any:
    """The botocore session of the files as they are now, with a profile that exists."""
    files = [
        _file("AWS_CONFIG_FILE", "~/.aws/config"),
        _file("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ]
    states = tuple((str(path), path.stat().st_mtime_ns if path.exists() else 0) for path in files)
    with _lock:
        session = _session_of(_profile_name(), states)
    profile = _profile_name()
    try:
        known = sorted(session.available_profiles)
    except _troubles() as error:
        raise _failed(profile, error) from error
    if profile is not None and profile not in known:
        listed = ", ".join(known) or "none"
        raise StorageError(
            f"there is no AWS profile {profile!r} (AWS_PROFILE) in {files[0]} or {files[1]}; "
            f"the profiles there are: {listed}",
            ErrorKind.STORAGE_CONFIG,
        )
    return session


_lock = threading.Lock()


@lru_cache(maxsize=8)
def _session_of(profile: str | None, states: tuple[tuple[str, int], ...]) -> Any:
    """Shared by all clients, so that they share what a sign-in returned."""
    return import_module("botocore.session").Session()


def _troubles() -> Any:
    """What botocore raises; OSError is a program of the profile that cannot be run."""
    errors = import_module("botocore.exceptions")
    return errors.BotoCoreError, errors.ClientError, OSError


def _is_sso(session: Any) -> bool:
    return any(name.startswith("sso_") for name in session.get_scoped_config())


def _failed(profile: str | None, error: Exception, is_sso: bool = False) -> StorageError:
    name = profile or "default"
    advice = f"; sign in with: aws sso login --profile {name}" if is_sso else ""
    return StorageError(
        f"the credentials of the AWS profile {name!r} cannot be had: {error}{advice}",
        ErrorKind.STORAGE_CONFIG,
    )
