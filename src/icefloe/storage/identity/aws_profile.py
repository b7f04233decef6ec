"""Keys and region from the files that the AWS tools share.

obstore knows environment variables and the roles of machines, but not these files, which is where
people who work on a laptop have their keys. Profiles that need a further sign-in (SSO, assumed
roles) are left to `get_credentials`.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import Any

_OTHER_WAYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def has_aws_profile_keys() -> bool:
    """Whether to sign in with the keys of a profile: there are some, and nothing goes first."""
    if any(name in os.environ for name in _OTHER_WAYS):
        return False
    return "aws_access_key_id" in _profile()


def from_aws_profile() -> dict[str, Any]:
    """The keys in the profile now; they are read again whenever the client asks."""
    profile = _profile()
    return {
        "access_key_id": profile["aws_access_key_id"],
        "secret_access_key": profile["aws_secret_access_key"],
        "token": profile.get("aws_session_token"),
        "expires_at": None,
    }


def aws_profile_region() -> str | None:
    """The region of the profile, unless an environment variable names one."""
    if "AWS_REGION" in os.environ or "AWS_DEFAULT_REGION" in os.environ:
        return None
    return _profile().get("region")


def _profile() -> dict[str, str]:
    """The profile's entries of both files; those of the credentials file win."""
    name = os.environ.get("AWS_PROFILE", "default")
    section = name if name == "default" else f"profile {name}"
    config = os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    return _section(config, section) | _section(credentials, name)


def _section(path: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(Path(path).expanduser(), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return {}  # the code that needs the profile reports the problem
    return dict(parser[name]) if parser.has_section(name) else {}
