"""Source files on disks, object stores and web servers: finding them, opening them, their state.

A local file is read by whoever parses it. A remote one is read through blocks that are kept, so
that the metadata of a file costs few requests; a small file costs one.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.on_demand import on_demand
from icefloe.records import record
from icefloe.storage.client.interruptible import interruptibly
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.storage.places.locations import (
    AzureLocation,
    GcsLocation,
    HttpLocation,
    RemoteLocation,
    S3Location,
)
from icefloe.virtual.model.description import SourceVersion

if TYPE_CHECKING:
    import obstore
    from _typeshed import WriteableBuffer
    from obstore import ObjectMeta

    from icefloe.storage.client import backoff, connect, failures
    from icefloe.storage.client.connect import Connection
else:
    # A local file needs no client.
    obstore = on_demand("obstore")
    backoff = on_demand("icefloe.storage.client.backoff")
    connect = on_demand("icefloe.storage.client.connect")
    failures = on_demand("icefloe.storage.client.failures")

FIRST_BLOCK_BYTES = 1 << 20
BLOCK_BYTES = 1 << 18
MAX_BLOCKS = 128
_END_BYTES = 4096


def absolute_location(source: str | os.PathLike[str]) -> str:
    """A path or URL as the URL that references carry; local paths become `file://` ones."""
    text = hadoop_free(os.fspath(source))
    if text.startswith("file://"):
        return Path(url2pathname(urlsplit(text).path)).absolute().as_uri()
    if "://" not in text:
        return Path(text).absolute().as_uri()
    scheme, _, rest = text.partition("://")
    return f"{scheme.lower()}://{rest}"


def hadoop_free(text: str) -> str:
    """A URL of Hadoop, and of Spark's `binaryFile`, in the form that others have: `file:/a/b` is
    `file:///a/b`, and `s3a://` and `s3n://` are S3.
    """
    if text.startswith("file:/") and not text.startswith("file://"):
        return "file://" + text.removeprefix("file:")
    scheme, mark, rest = text.partition("://")
    is_s3 = mark and scheme.lower() in ("s3a", "s3n")
    return f"s3://{rest}" if is_s3 else text


def local_path(location: str) -> Path | None:
    """The path behind a `file://` location, None for any other."""
    if not location.startswith("file://"):
        return None
    return Path(url2pathname(urlsplit(location).path))


@record(frozen=True)
class SourceAccess:
    """How remote sources are reached: arguments of `storage_from_url`, such as `region=...`,
    `anonymous=True` or credentials. It can be pickled; the pickle carries what it was given.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Callable[[Any], Any] | None = None
    """What is done with each file, as an xarray Dataset, before anything else."""

    def remote(self, location: str) -> tuple[Connection, str]:
        """Clients for the bucket or host of a location, and the key in it."""
        root, key = _split(location)
        storage = storage_from_url(root, **self.options)
        place = storage.location
        if not isinstance(place, RemoteLocation):
            raise InvalidInputError(
                f"{location}: sources are files, S3, GCS, Azure or HTTP(S) URLs",
                ErrorKind.CANNOT_PARSE_URL,
            )
        return _connection(place), key

    def open(self, location: str) -> SourceFile:
        """A source file, ready to be read.

        Raises:
            StorageError: it is not there or cannot be read.
        """
        path = local_path(location)
        if path is not None:
            try:
                state = path.stat()
            except OSError as error:
                raise _unreadable(location, error) from error
            return SourceFile(location, _file_version(location, path, state), path, None)
        connection, key = self.remote(location)
        reader = BlockReader(connection, key)
        return SourceFile(location, reader.version, None, reader)

    def look(self, location: str) -> SourceVersion:
        """The state of a file, none of which is read.

        Raises:
            StorageError: it is not there or cannot be looked at.
        """
        path = local_path(location)
        if path is not None:
            try:
                state = path.stat()
            except OSError as error:
                raise _unreadable(location, error) from error
            return SourceVersion(state.st_size, None, math.ceil(state.st_mtime))
        connection, key = self.remote(location)
        try:
            return object_version(interruptibly(lambda: obstore.head(connection.reader(), key)))
        except failures.ClientError as error:
            raise _translated(error, key, connection) from error

    def read(self, location: str, offset: int, length: int | None) -> bytes:
        """Bytes of a file, in one request; all of it if there is no length.

        Raises:
            StorageError: it is not there, cannot be read, or ends before.
        """
        path = local_path(location)
        if path is not None:
            try:
                with path.open("rb") as stream:
                    stream.seek(offset)
                    data = stream.read(-1 if length is None else length)
            except OSError as error:
                raise _unreadable(location, error) from error
        else:
            connection, key = self.remote(location)
            options: Any = {} if length is None else {"range": (offset, offset + length)}
            try:
                data = get_bytes(connection.reader(), key, options)
            except failures.ClientError as error:
                raise _translated(error, key, connection) from error
        if length is not None and len(data) != length:
            raise StorageError(
                f"{location}: {len(data)} bytes came in at {offset}, expected {length}",
                ErrorKind.INVALID_OBJECT_SIZE,
            )
        return data


def get_bytes(store: Any, key: str, options: Any = None) -> bytes:
    """An object or part of it; errors are obstore's."""
    return backoff.retry_cut_blocking(
        lambda: bytes(obstore.get(store, key, options=options).bytes())
    )


@record(frozen=True)
class SourceFile:
    """A file with its state; exactly one of `path` and `reader` is set."""

    location: str
    version: SourceVersion
    path: Path | None
    reader: BlockReader | None

    def open(self) -> io.BufferedIOBase | BlockReader:
        """Something to read, seek and close."""
        if self.reader is not None:
            return self.reader
        assert self.path is not None
        try:
            return self.path.open("rb")
        except OSError as error:
            raise _unreadable(self.location, error) from error


class BlockReader(io.RawIOBase):
    """A remote object as a seekable file. The first request also tells size and version."""

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._first, meta = self._begin()
        self.version = object_version(meta)
        self.size = meta["size"]

    def _begin(self) -> tuple[bytes, ObjectMeta]:
        try:
            try:
                return self._get({"range": (0, FIRST_BLOCK_BYTES)})
            except obstore.exceptions.NotSupportedError:
                # Servers without ranges send all of it.
                return self._get({})
        except failures.ClientError as error:
            raise _translated(error, self._key, self._connection) from error

    def _get(self, options: Any) -> tuple[bytes, ObjectMeta]:
        store, key = self._connection.reader(), self._key

        def request() -> tuple[bytes, ObjectMeta]:
            result = obstore.get(store, key, options=options)
            meta = result.meta
            return bytes(result.bytes()), meta

        return backoff.retry_cut_blocking(request)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read_at(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def read_at(self, start: int, length: int) -> bytes:
        """Bytes from `start` on, fewer at the end of the file; large spans in one request."""
        stop = min(start + length, self.size)
        if stop <= start:
            return b""
        if stop <= len(self._first):
            return self._first[start:stop]
        if stop - start > BLOCK_BYTES:
            return self._fetch(start, stop)
        parts = []
        for number in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            base = number * BLOCK_BYTES
            block = self._block(number)
            parts.append(block[max(0, start - base) : stop - base])
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        base = number * BLOCK_BYTES
        if base + BLOCK_BYTES <= len(self._first):
            return self._first[base : base + BLOCK_BYTES]
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        block = self._fetch(base, min(base + BLOCK_BYTES, self.size))
        self._blocks[number] = block
        if len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)
        return block

    def _fetch(self, start: int, stop: int) -> bytes:
        options: Any = {"range": (start, stop)}
        if self.version.etag is not None:
            # A file replaced between two reads would be read as a mixture of both.
            options["if_match"] = self.version.etag
        try:
            store = self._connection.reader()
            data = get_bytes(store, self._key, options)
        except obstore.exceptions.PreconditionError as error:
            raise StorageError(
                f"{self._key!r} in {self._connection.location} was replaced while it was read",
                ErrorKind.VIRTUAL_CHUNK_MODIFIED,
            ) from error
        except failures.ClientError as error:
            raise _translated(error, self._key, self._connection) from error
        if len(data) != stop - start:
            raise StorageError(
                f"{self._key!r} in {self._connection.location}: {len(data)} bytes came in, "
                f"expected {stop - start}",
                ErrorKind.INVALID_OBJECT_SIZE,
            )
        return data


def _file_version(location: str, path: Path, state: os.stat_result) -> SourceVersion:
    """The state of a local file. A file may change twice in a second, and keep its size."""
    try:
        with path.open("rb") as stream:
            ends = stream.read(_END_BYTES)
            stream.seek(max(0, state.st_size - _END_BYTES))
            ends += stream.read(_END_BYTES)
    except OSError as error:
        raise _unreadable(location, error) from error
    hashed = hashlib.blake2b(ends, digest_size=8).hexdigest()
    fingerprint = f"{state.st_mtime_ns:x}-{hashed}"
    return SourceVersion(state.st_size, None, math.ceil(state.st_mtime), fingerprint)


def object_version(meta: ObjectMeta) -> SourceVersion:
    """The state of a remote object."""
    seconds = math.ceil(meta["last_modified"].timestamp())
    return SourceVersion(meta["size"], meta["e_tag"], seconds)


def location_of_key(root: str, key: str) -> str:
    """The URL of a key below a root such as `s3://bucket`."""
    return f"{root.rstrip('/')}/{quote(key, safe=_URL_SAFE)}"


_URL_SAFE = "/ !\"$&'()*+,-.:;<=>@[\\]^_`{|}~"  # what is not `?`, `#` or `%`


def split_location(location: str) -> tuple[str, str]:
    """The root that clients are made for, and the key below it."""
    return _split(location)


def _split(location: str) -> tuple[str, str]:
    parts = urlsplit(location)
    if not parts.netloc:
        raise InvalidInputError(
            f"{location!r} has no bucket or host, expected scheme://bucket/key",
            ErrorKind.CANNOT_PARSE_URL,
        )
    if parts.query or parts.fragment:
        raise InvalidInputError(
            f"{location.partition('?')[0]}: a query or fragment cannot be part of a source; "
            "percent-encode it if it belongs to the name",
            ErrorKind.CANNOT_PARSE_URL,
        )
    root, key = f"{parts.scheme}://{parts.netloc}", unquote(parts.path).lstrip("/")
    if parts.scheme in ("az", "azure") and "@" not in parts.netloc:
        container, _, key = key.partition("/")
        root = f"{root}/{container}"
    return root, key


@lru_cache(maxsize=64)
def _connection(place: S3Location | GcsLocation | AzureLocation | HttpLocation) -> Connection:
    return connect.connect(place, place.default_settings().resolved())


def _translated(error: Exception, key: str, connection: Connection) -> StorageError:
    told = failures.translated(error, "read", key, connection.location)
    return told if isinstance(told, StorageError) else StorageError(str(told))


def _unreadable(location: str, error: OSError) -> StorageError:
    missing = isinstance(error, FileNotFoundError)
    return StorageError(
        f"{location}: {'there is no such file' if missing else error.strerror or error}",
        ErrorKind.OBJECT_NOT_FOUND if missing else ErrorKind.IO,
    )
