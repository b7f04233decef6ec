"""One form for every storage: a URL, for the command line, config files and Spark options.

==========================================  =====================================================
`s3://bucket/prefix`                        `s3_storage`
`r2://bucket/prefix?account_id=...`         `r2_storage`
`tigris://bucket/prefix?region=...`         `tigris_storage`
`gs://bucket/prefix`                        `gcs_storage`
`az://account/container/prefix`             `azure_storage`; with `account=...`: `az://container/...`
`abfs://container@account.host/prefix`      `azure_storage`
`https://host/path`                         `http_storage`, read only
`redirect+https://host/path`                `redirect_storage`
`memory://name`                             memory of this process, shared by name
`file:///path`, or any text without `://`   `local_filesystem_storage`
`file:/path`, as Hadoop writes it           the same
==========================================  =====================================================

Arguments of these functions can be given as keyword arguments or, except credentials, as a query:
`s3://bucket/prefix?region=eu-west-1&anonymous=true`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.constructors import (
    azure_storage,
    gcs_storage,
    r2_storage,
    s3_storage,
    tigris_storage,
)
from icefloe.storage.locations import LocalLocation, MemoryLocation
from icefloe.storage.memory import memory_objects
from icefloe.storage.spec import Storage, http_storage, local_filesystem_storage, redirect_storage

_SECRET = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "service_account_key",
        "bearer_token",
        "access_key",
        "sas_token",
        "get_credentials",
    }
)
_IN_BUCKETS: dict[str, Callable[..., Storage]] = {
    **dict.fromkeys(("s3", "s3a"), s3_storage),
    "r2": r2_storage,
    "tigris": tigris_storage,
    **dict.fromkeys(("gs", "gcs"), gcs_storage),
}
_PIPELINE = re.compile(r"\|[a-z][a-z0-9.+-]*:")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def storage_from_url(url: str, **options: Any) -> Storage:
    """The storage a URL or path stands for; see the table in this module's documentation.

    >>> storage_from_url("s3://bucket/some/prefix?region=eu-west-1", anonymous=True).url
    's3://bucket/some/prefix'

    Args:
        url: a path, or `file://`, `s3://`, `gs://`, `az://`, `https://` and their like.

    Raises:
        InvalidInputError: the scheme or an option is unknown, or a credential is in the URL.
    """
    _refuse_pipelines(url)
    if "://" not in url and not url.lower().startswith("file:/"):
        return _call(local_filesystem_storage, url, (url,), {}, options)
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    path = unquote(parts.path).strip("/")
    if scheme in ("http", "https"):
        return _call(http_storage, url, (url,), {}, options)
    if scheme in ("redirect+http", "redirect+https"):
        return _call(redirect_storage, url, (url.partition("+")[2],), {}, options)
    query = _query(parts)
    match scheme:
        case "file":
            if parts.netloc not in ("", "localhost"):
                raise _unusable(url, f"files are on this host, not on {parts.netloc!r}")
            return _call(local_filesystem_storage, url, (unquote(parts.path),), query, options)
        case "memory":
            return _call(_named_memory, url, (parts.netloc + parts.path,), query, options)
        case "az" | "azure" | "abfs" | "abfss":
            account = {**query, **options}.get("account")
            return _call(azure_storage, url, (), _azure(parts, path, account) | query, options)
    if scheme in _IN_BUCKETS:
        place = {"bucket": parts.netloc, "prefix": path}
        return _call(_IN_BUCKETS[scheme], url, (), place | query, options)
    raise _unusable(
        url,
        f"unknown scheme {parts.scheme!r}; those known are s3, gs, az, r2, tigris, http, https, "
        "file and memory, and a path needs none",
    )


def _named_memory(name: str) -> Storage:
    return Storage(MemoryLocation(name, memory_objects(name)))


def _azure(parts: SplitResult, path: str, account: object) -> dict[str, str]:
    container, at, host = parts.netloc.partition("@")
    if at:
        return {"container": container, "account": host.partition(".")[0], "prefix": path}
    if account:
        return {"container": parts.netloc, "prefix": path}
    container, _, prefix = path.partition("/")
    return {"account": parts.netloc, "container": container, "prefix": prefix}


def storage_beside(storage: Storage, url: str) -> Storage:
    """The storage at `url`, which is of the same kind, reached and signed in to in the same way.

    A path that is not absolute starts from the directory of the other one.

    Raises:
        InvalidInputError: it is of another kind.
    """
    mine = storage.target
    if "://" not in url and isinstance(mine, LocalLocation):
        return Storage(replace(mine, path=str(Path(mine.path, url))))
    other = storage_from_url(url).location if "://" in url else None
    if type(other) is not type(mine):
        raise InvalidInputError(
            f"{url!r} is no place of the same kind as {storage.describe()}, and others are not "
            "followed",
            ErrorKind.STORAGE_CONFIG,
        )
    if isinstance(other, MemoryLocation):
        return Storage(other)
    names = {"path", "bucket", "container", "account", "prefix"}
    found = {name: getattr(other, name) for name in names if hasattr(other, name)}
    return Storage(replace(mine, **found))


def _query(parts: SplitResult) -> dict[str, str]:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    secrets = sorted(given.keys() & _SECRET)
    if secrets:
        raise InvalidInputError(
            f"{parts.scheme} URL has {', '.join(secrets)} in it: URLs end up in logs; give "
            "credentials as keyword arguments or in the environment",
            ErrorKind.INVALID_CREDENTIALS,
        )
    return given


def _call(
    constructor: Callable[..., Storage],
    url: str,
    arguments: tuple[Any, ...],
    from_url: Mapping[str, str],
    options: Mapping[str, Any],
) -> Storage:
    parameters = inspect.signature(constructor, eval_str=True).parameters
    positional = list(parameters)[: len(arguments)]
    accepted = [name for name in parameters if name not in positional]
    unknown = sorted((from_url.keys() | options.keys()) - set(accepted))
    if unknown:
        raise _unusable(
            url, f"unknown option {unknown[0]!r}; options are {', '.join(accepted) or 'none'}"
        )
    typed = {name: _typed(url, name, text, parameters[name]) for name, text in from_url.items()}
    return constructor(*arguments, **{**typed, **options})


def _typed(url: str, name: str, text: str, parameter: inspect.Parameter) -> Any:
    """A value of the query in the type its argument has; only plain types can be given there."""
    kind = str(parameter.annotation)
    if "bool" in kind:
        if text.lower() not in _TRUTH:
            raise _unusable(url, f"{name} is {text!r}, expected true or false")
        return _TRUTH[text.lower()]
    if "'int'" in kind:
        if not text.isdecimal():
            raise _unusable(url, f"{name} is {text!r}, expected a number")
        return int(text)
    if "str" not in kind or "Mapping" in kind:
        raise _unusable(url, f"{name} cannot be given in a URL; give it as a keyword argument")
    return text


def _refuse_pipelines(url: str) -> None:
    """A place whose name ends like a pipeline is not meant, unless there is such a path."""
    pipe = _PIPELINE.search(url)
    if pipe is not None and not Path(url).exists():
        raise _unusable(
            url,
            f"{url[pipe.start() :]!r} belongs to a Zarr URL pipeline, which names a version in a "
            f"repository; give {url[: pipe.start()]!r} here, or all of it to icefloe.open_store or "
            "to xarray's engine",
        )


def _unusable(url: str, reason: str) -> InvalidInputError:
    shown = url.partition("?")[0]
    return InvalidInputError(f"{shown}: {reason}", ErrorKind.CANNOT_PARSE_URL)
