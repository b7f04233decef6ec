"""A repository and one of its versions as a single text.

==========================================  =====================================================
`s3://bucket/prefix`                        a repository; see `storage_from_url` for all forms
`s3://bucket/prefix@main`                   ... at a branch, a tag or a snapshot of that name
`path/to/repository@tag.v1`                 ... at the tag `v1`; also `@branch.`, `@snapshot.`
`icefloe+s3://bucket/prefix@main`           the same, marked as a repository
`s3://bucket/prefix|icechunk:@branch.main`  the same as a Zarr URL pipeline
==========================================  =====================================================
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    RefNotFoundError,
)
from icefloe.repo.refs import find_by_id
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.storage.urls import storage_from_url

if TYPE_CHECKING:
    from icefloe.api.repository import Repository

_MARKS = ("icefloe+", "icechunk+")
_PIPES = ("|icechunk:", "|icefloe:")
_SHOWN = 10
_KINDS = {"branch.": "branch", "tag.": "tag"}


class Address(NamedTuple):
    """The location of a repository, and a ref; None if the text has no ref."""

    url: str
    ref: str | None

    def storage(self, **options: Any) -> Storage:
        """Where the repository is; options are those of the storage, such as `region`."""
        return storage_from_url(self.url, **options)


def is_address(text: str) -> bool:
    """Whether a text is explicitly marked as the address of a repository."""
    return text.startswith(_MARKS) or any(pipe in text for pipe in _PIPES)


def parse_address(text: str) -> Address:
    """Split an address into its parts.

    An existing local path is taken literally, special characters included.

    >>> parse_address("s3://bucket/weather@main")
    Address(url='s3://bucket/weather', ref='main')
    """
    for mark in _MARKS:
        text = text.removeprefix(mark)
    for pipe in _PIPES:
        url, found, rest = text.partition(pipe)
        if found:
            if rest and not rest.startswith("@"):
                raise InvalidInputError(
                    f"{text}: after {pipe!r} came {rest!r}, expected nothing or @REF",
                    ErrorKind.CANNOT_PARSE_URL,
                )
            return Address(url, rest[1:].rstrip("/") or None)
    scheme, separator, after = text.partition("://")
    if not separator:
        if "@" not in text or Path(text).exists():
            return Address(text, None)
        scheme, after = "", text
    host, slash, path = after.partition("/") if separator else ("", "", after)
    if not slash and separator:  # a bucket without a prefix; the @ of abfs is part of the host
        name, at, version = host.rpartition("@")
        if at and scheme not in ("abfs", "abfss"):
            return Address(f"{scheme}://{name}", version or None)
        return Address(text, None)
    base, ref = _split_ref(path)
    return Address(f"{scheme}{separator}{host}{slash}{base}", ref)


def _split_ref(path: str) -> tuple[str, str | None]:
    """The path without its ref, and the ref, which follows the last `@`.

    A query (`?region=...`) belongs to the path. The ref may come before or after it.
    """
    base, mark, query = path.partition("?")
    if "@" in query:
        query, _, ref = query.rpartition("@")
        return base + mark + query, ref or None
    before, at, ref = base.rpartition("@")
    return (before + mark + query, ref or None) if at else (path, None)


def resolve_ref(repo: Repository, ref: str | None) -> dict[str, str]:
    """The keyword argument by which `readonly_session` and `ancestry` find a ref.

    A name is looked up as a branch, then as a tag, then as a snapshot id, of which the first
    characters suffice. The default is `main`.

    Raises:
        RefNotFoundError: it is none of them.
    """
    if ref is None:
        return {"branch": "main"}
    if ref in repo.list_branches():
        return {"branch": ref}
    if ref in repo.list_tags():
        return {"tag": ref}
    for prefix, kind in _KINDS.items():
        if ref.startswith(prefix):
            return {kind: ref.removeprefix(prefix)}
    found = run_blocking(find_by_id(repo.handle, ref.removeprefix("snapshot.")))
    if found is None:
        raise RefNotFoundError(
            f"{ref!r} is neither a branch, a tag nor the id of a snapshot; "
            f"{_known(ref, sorted(repo.list_branches() | repo.list_tags()))}"
        )
    return {"snapshot_id": found.text}


def _known(ref: str, names: list[str]) -> str:
    """Some of the names there are, and the nearest one."""
    more = f" and {len(names) - _SHOWN:,} others" if len(names) > _SHOWN else ""
    close = difflib.get_close_matches(ref, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    if ref.upper().startswith("HEAD"):
        hint = "; the name of a branch stands for its last commit"
    return f"there are {', '.join(names[:_SHOWN])}{more}{hint}"


def snapshot_of(repo: Repository, ref: str | None) -> str:
    """The id of the snapshot that a ref points at."""
    ((kind, name),) = resolve_ref(repo, ref).items()
    if kind == "branch":
        return repo.lookup_branch(name)
    if kind == "tag":
        return repo.lookup_tag(name)
    return repo.lookup_snapshot(name).id
