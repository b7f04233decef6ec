"""The objects below one place, as columns: a folder on disk or a prefix in a bucket."""

from __future__ import annotations

import hashlib
import math
import os
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr
from zarr.storage import ObjectStore

from icefloe.errors import ErrorKind, StorageError
from icefloe.on_demand import on_demand
from icefloe.records import record
from icefloe.storage.client.backoff import retry_cut_blocking
from icefloe.storage.client.interruptible import DaemonThreads
from icefloe.virtual.model.description import SourceError, SourceVersion
from icefloe.virtual.places.access import SourceAccess, get_bytes, local_path

if TYPE_CHECKING:
    import obstore

    from icefloe.storage.client import failures
    from icefloe.storage.client.connect import Connection
else:
    obstore = on_demand("obstore")
    failures = on_demand("icefloe.storage.client.failures")

READS_AT_ONCE = 16


@record(frozen=True)
class Listing:
    """Objects in ascending order of their keys, which are relative to the place."""

    keys: list[str]
    sizes: list[int]
    etags: list[str | None]
    modified: list[int | None]

    def below(self, prefix: str) -> slice:
        """The rows of the keys that start with `prefix`."""
        if not prefix:
            return slice(0, len(self.keys))
        after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return slice(bisect_left(self.keys, prefix), bisect_left(self.keys, after))

    def version(self) -> SourceVersion:
        """One state for all of it: changes when any object does."""
        hashed = hashlib.blake2b(digest_size=16)
        for row in zip(self.keys, self.sizes, self.etags, self.modified, strict=True):
            hashed.update(repr(row).encode())
        youngest = max((seconds for seconds in self.modified if seconds is not None), default=None)
        return SourceVersion(sum(self.sizes), hashed.hexdigest(), youngest)


class Place:
    """Something with keys: `read` and `list` work the same way on disks and in buckets."""

    def __init__(self, location: str, access: SourceAccess) -> None:
        self.location = location.rstrip("/")
        self.path = local_path(location)
        self._connection: Connection | None = None
        self._prefix = ""
        if self.path is None:
            self._connection, key = access.remote(self.location)
            self._prefix = key.strip("/")

    def name(self, key: str) -> str:
        """The full key of an object."""
        return f"{self._prefix}/{key}" if self._prefix else key

    def find(self, key: str) -> bytes | None:
        """The bytes of a small object, or None."""
        if self.path is not None:
            try:
                return (self.path / key).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        assert self._connection is not None
        try:
            return get_bytes(self._connection.reader(), self.name(key))
        except FileNotFoundError:
            return None
        except failures.ClientError as error:
            raise self._told(error, "read", key) from error

    def read_many(self, keys: list[str]) -> list[bytes]:
        """Several objects that are there, some at once."""
        found = list(DaemonThreads(READS_AT_ONCE, "icefloe-reads").map(self.find, keys))
        for key, data in zip(keys, found, strict=True):
            if data is None:
                raise SourceError(f"{self.location}: {key!r} disappeared while it was scanned")
        return [data for data in found if data is not None]

    def list_all(self) -> Listing:
        """Every object below the place."""
        rows = sorted(self._local_rows() if self.path is not None else self._remote_rows())
        keys, sizes, etags, modified = zip(*rows, strict=True) if rows else ((), (), (), ())
        return Listing(list(keys), list(sizes), list(etags), list(modified))

    def _local_rows(self) -> Iterator[tuple[str, int, str | None, int | None]]:
        assert self.path is not None
        root = str(self.path)
        for folder, _, names in os.walk(root):
            for name in names:
                full = os.path.join(folder, name)  # noqa: PTH118 - pathlib is ten times slower
                state = Path(full).stat()
                key = full[len(root) + 1 :].replace(os.sep, "/")
                yield key, state.st_size, None, math.ceil(state.st_mtime)

    def _remote_rows(self) -> Iterator[tuple[str, int, str | None, int | None]]:
        assert self._connection is not None
        if not self._connection.can_list:
            raise StorageError(
                f"{self.location} cannot be listed: web servers have no listing, so it is not "
                "known which chunks there are",
                ErrorKind.OBJECT_STORE,
            )
        skipped = len(self._prefix) + 1 if self._prefix else 0
        try:
            store = self._connection.reader()
            prefix = self._prefix or None
            found = retry_cut_blocking(lambda: obstore.list(store, prefix).collect())
        except failures.ClientError as error:
            raise self._told(error, "list", "") from error
        for meta in found:
            seconds = math.ceil(meta["last_modified"].timestamp())
            yield meta["path"][skipped:], meta["size"], meta["e_tag"], seconds

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        """Names of the folders and of the objects directly below a folder, ascending."""
        if self.path is not None:
            entries = sorted(os.scandir(self.path / folder), key=lambda entry: entry.name)
            folders = [entry.name for entry in entries if entry.is_dir()]
            return folders, [entry.name for entry in entries if entry.is_file()]
        assert self._connection is not None
        if not self._connection.can_list:
            raise StorageError(
                f"{self.location} cannot be listed: web servers have no listing; name the files",
                ErrorKind.OBJECT_STORE,
            )
        try:
            prefix = self.name(folder).strip("/") or None
            store = self._connection.reader()
            found = retry_cut_blocking(lambda: obstore.list_with_delimiter(store, prefix))
        except failures.ClientError as error:
            raise self._told(error, "list", folder) from error
        folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        names = [meta["path"].rpartition("/")[2] for meta in found["objects"]]
        return sorted(folders), sorted(names)

    def open_zarr(self, path: str) -> zarr.Array[Any]:
        """An array of a Zarr store at this place, to be read by zarr itself."""
        if self.path is not None:
            return zarr.open_array(self.path, path=path, mode="r")
        assert self._connection is not None
        store: ObjectStore[Any] = ObjectStore(self._connection.reader(), read_only=True)
        return zarr.open_array(store, path=self.name(path), mode="r")

    def _told(self, error: Exception, action: str, key: str) -> StorageError:
        told = failures.translated(error, action, key, self.location)
        return told if isinstance(told, StorageError) else StorageError(str(told))
