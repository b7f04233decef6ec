"""Names for repositories in the configuration file of the original's command line.

The file is `icechunk/cli-config.yaml` in the configuration directory of the user. Each entry is
tagged with the kind of its storage, such as `!LocalFileSystem`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from icefloe.errors import AlreadyExistsError, FormatError, InvalidInputError
from icefloe.storage.locations import AzureLocation, GcsLocation, LocalLocation, S3Location
from icefloe.storage.urls import storage_from_url

_OPTIONS = (
    "inline_chunk_threshold_bytes",
    "get_partial_values_concurrency",
    "compression",
    "max_concurrent_requests",
    "max_concurrent_decodes",
    "caching",
    "storage",
    "virtual_chunk_containers",
    "manifest",
    "previous_file",
    "repo_update_retries",
    "num_updates_per_repo_info_file",
)
"""Options of a repository. The original requires every name, and none has a value here."""


def aliases_path() -> Path:
    """Where the file is, whether it exists or not."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif os.name == "nt":
        base = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "icechunk" / "cli-config.yaml"


def read_aliases() -> dict[str, str]:
    """The URL of each repository that has a name."""
    return {name: _url(name, *entry) for name, entry in _entries().items()}


def add_alias(name: str, url: str, *, force: bool = False) -> None:
    """Give a repository a name, in the form that the original reads.

    Raises:
        AlreadyExistsError: the name is in use.
    """
    entries = _entries()
    if name in entries and not force:
        raise AlreadyExistsError(f"{name} is {_url(name, *entries[name])} already")
    entries[name] = _entry(url)
    path = aliases_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.dump({"repos": entries}, Dumper=_Dumper, sort_keys=False))


class _Entry(NamedTuple):
    """A repository in the file: the kind of its storage, and what is said about it."""

    kind: str
    values: dict[str, Any]


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    pass


def _read_entry(loader: Any, node: Any) -> _Entry:
    return _Entry(node.tag.removeprefix("!"), loader.construct_mapping(node, deep=True))


for _kind in ("LocalFileSystem", "S3", "Tigris", "Azure", "GCS"):
    _Loader.add_constructor(f"!{_kind}", _read_entry)
_Dumper.add_representer(
    _Entry, lambda dumper, entry: dumper.represent_mapping(f"!{entry.kind}", entry.values)
)


def _entries() -> dict[str, _Entry]:
    path = aliases_path()
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {' '.join(str(error).split())}") from error
    repos = (found or {}).get("repos") if isinstance(found or {}, dict) else None
    if not isinstance(repos, dict) or not all(isinstance(each, _Entry) for each in repos.values()):
        raise FormatError(f"{path}: expected repos with a kind of storage each")
    return {str(name): entry for name, entry in repos.items()}


def _url(name: str, kind: str, values: dict[str, Any]) -> str:
    try:
        if kind == "LocalFileSystem":
            return str(values["path"])
        place = values["location"]
        prefix = f"/{place['prefix']}" if place.get("prefix") else ""
        if kind == "Azure":
            return f"az://{place['account']}/{place['container']}{prefix}"
        scheme = {"S3": "s3", "Tigris": "tigris", "GCS": "gs"}[kind]
        return f"{scheme}://{place['bucket']}{prefix}{_query(values)}"
    except (KeyError, TypeError) as error:
        raise FormatError(f"{aliases_path()}: {name} says nothing about {error}") from error


def _query(values: dict[str, Any]) -> str:
    """What a URL says about the service. Credentials always come from the environment."""
    options = values.get("object_store_config") or {}
    said = {
        name: options.get(name)
        for name in ("region", "endpoint_url", "allow_http", "force_path_style")
    }
    credentials = values.get("credentials") or {}
    if "anonymous" in credentials.values() or options.get("anonymous"):
        said["anonymous"] = True
    words = [
        f"{name}={'true' if value is True else value}" for name, value in said.items() if value
    ]
    return "?" + "&".join(words) if words else ""


def _entry(url: str) -> _Entry:
    place = storage_from_url(url).location
    config = dict.fromkeys(_OPTIONS)
    if isinstance(place, LocalLocation):
        path = str(Path(place.path).absolute())
        return _Entry("LocalFileSystem", {"path": path, "config": config})
    options: dict[str, Any] = {}
    if isinstance(place, S3Location):
        kind, credential, names = "S3", "s3", ["bucket", "prefix"]
        options = {
            "region": place.region,
            "endpoint_url": place.endpoint_url,
            "anonymous": False,
            "allow_http": place.allow_http,
            "force_path_style": place.is_path_style,
            "network_stream_timeout_seconds": None,
            "requester_pays": place.requester_pays,
            "checksum_algorithm": None,
        }
    elif isinstance(place, GcsLocation):
        kind, credential, names = "GCS", "gcs", ["bucket", "prefix"]
    elif isinstance(place, AzureLocation):
        kind, credential, names = "Azure", "az", ["account", "container", "prefix"]
    else:
        raise InvalidInputError(f"{url}: only directories, S3, GCS and Azure can have a name")
    values = {
        "location": {name: getattr(place, name) for name in names},
        "object_store_config": options,
        "credentials": {f"{credential}_credential_type": "from_env"},
        "config": config,
    }
    return _Entry(kind, values)
