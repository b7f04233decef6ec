"""Source files and stores: on disks, in buckets, on web servers; listing, opening, containers
for them.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import math
import os
import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from posixpath import commonpath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

import zarr
from zarr.storage import ObjectStore

from icefloe import credentials
from icefloe.config import stores
from icefloe.config.containers import VirtualChunkContainer
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage import client
from icefloe.storage.calls import DaemonThreads, interruptibly
from icefloe.storage.locations import (
    AzureLocation,
    GcsLocation,
    HttpLocation,
    RemoteLocation,
    S3Location,
)
from icefloe.storage.urls import storage_from_url
from icefloe.virtual.model.description import SourceError, SourceVersion

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore import ObjectMeta

    from icefloe.storage.client import Connection


# A local file is read by whoever parses it. A remote one is read through blocks that are kept, so
# that the metadata of a file costs few requests; a small file costs one.

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


@dataclass(frozen=True, slots=True)
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
            with _reading_file(location):
                return SourceFile(location, _file_version(path), path, None)
        reader = BlockReader(*self.remote(location))
        return SourceFile(location, reader.version, None, reader)

    def look(self, location: str) -> SourceVersion:
        """The state of a file, none of which is read.

        Raises:
            StorageError: it is not there or cannot be looked at.
        """
        path = local_path(location)
        if path is not None:
            with _reading_file(location):
                state = path.stat()
            return SourceVersion(state.st_size, None, math.ceil(state.st_mtime))
        connection, key = self.remote(location)
        import obstore

        with _reading(connection.location, key):
            return object_version(interruptibly(lambda: obstore.head(connection.reader(), key)))

    def read(self, location: str, offset: int, length: int | None) -> bytes:
        """Bytes of a file, in one request; all of it if there is no length.

        Raises:
            StorageError: it is not there, cannot be read, or ends before.
        """
        path = local_path(location)
        if path is not None:
            with _reading_file(location), path.open("rb") as stream:
                stream.seek(offset)
                data = stream.read(-1 if length is None else length)
        else:
            connection, key = self.remote(location)
            options: Any = {} if length is None else {"range": (offset, offset + length)}
            with _reading(connection.location, key):
                data, _ = _get(connection, key, options)
        if length is not None and len(data) != length:
            raise StorageError(
                f"{location}: {len(data)} bytes came in at {offset}, expected {length}",
                ErrorKind.INVALID_OBJECT_SIZE,
            )
        return data


def _get(connection: Connection, key: str, options: Any = None) -> tuple[bytes, ObjectMeta]:
    """An object or part of it; errors are obstore's."""
    import obstore

    def request() -> tuple[bytes, ObjectMeta]:
        result = obstore.get(connection.reader(), key, options=options)
        meta = result.meta
        return bytes(result.bytes()), meta

    return client.retry_cut_blocking(request)


class SourceFile(NamedTuple):
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
        with _reading_file(self.location):
            return self.path.open("rb")


class BlockReader(io.RawIOBase):
    """A remote object as a seekable file. The first request also tells size and version."""

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        import obstore

        with _reading(connection.location, key):
            try:
                self._first, meta = _get(connection, key, {"range": (0, FIRST_BLOCK_BYTES)})
            except obstore.exceptions.NotSupportedError:
                # Servers without ranges send all of it.
                self._first, meta = _get(connection, key)
        self.version = object_version(meta)
        self.size = meta["size"]

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
        import obstore

        with _reading(self._connection.location, self._key):
            try:
                data, _ = _get(self._connection, self._key, options)
            except obstore.exceptions.PreconditionError as error:
                raise StorageError(
                    f"{self._key!r} in {self._connection.location} was replaced while it was read",
                    ErrorKind.VIRTUAL_CHUNK_MODIFIED,
                ) from error
        if len(data) != stop - start:
            raise StorageError(
                f"{self._key!r} in {self._connection.location}: {len(data)} bytes came in, "
                f"expected {stop - start}",
                ErrorKind.INVALID_OBJECT_SIZE,
            )
        return data


def _file_version(path: Path) -> SourceVersion:
    """The state of a local file. A file may change twice in a second, and keep its size."""
    state = path.stat()
    with path.open("rb") as stream:
        ends = stream.read(_END_BYTES)
        stream.seek(max(0, state.st_size - _END_BYTES))
        ends += stream.read(_END_BYTES)
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


def _split(location: str) -> tuple[str, str]:
    """The root that clients are made for, and the key below it."""
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
    return client.connect(place, place.default_settings().resolved())


@contextmanager
def _reading(place: str, key: str, action: str = "read") -> Iterator[None]:
    """Errors of obstore become a `StorageError` that names the object."""
    try:
        yield
    except client.ClientError as error:
        told = client.translated(error, action, key, place)
        raise (told if isinstance(told, StorageError) else StorageError(str(told))) from error


@contextmanager
def _reading_file(location: str) -> Iterator[None]:
    """Errors of the operating system become a `StorageError` that names the file."""
    try:
        yield
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise StorageError(
            f"{location}: {'there is no such file' if missing else error.strerror or error}",
            ErrorKind.OBJECT_NOT_FOUND if missing else ErrorKind.IO,
        ) from error


READS_AT_ONCE = 16


class Listing(NamedTuple):
    """Objects in ascending order of their keys, which are relative to the place."""

    keys: list[str]
    sizes: list[int]
    etags: list[str | None]
    modified: list[int | None]

    def below(self, prefix: str) -> slice:
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
        return f"{self._prefix}/{key}" if self._prefix else key

    def find(self, key: str) -> bytes | None:
        """The bytes of a small object, or None."""
        if self.path is not None:
            try:
                return (self.path / key).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        assert self._connection is not None
        with _reading(self.location, key):
            try:
                return _get(self._connection, self.name(key))[0]
            except FileNotFoundError:
                return None

    def read_many(self, keys: list[str]) -> list[bytes]:
        """Several objects that are there, some at once."""
        found = list(DaemonThreads(READS_AT_ONCE, "icefloe-reads").map(self.find, keys))
        for key, data in zip(keys, found, strict=True):
            if data is None:
                raise SourceError(f"{self.location}: {key!r} disappeared while it was scanned")
        return [data for data in found if data is not None]

    def list_all(self) -> Listing:
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
        store = self._listable(", so it is not known which chunks there are")
        skipped = len(self._prefix) + 1 if self._prefix else 0
        import obstore

        with _reading(self.location, "", "list"):
            prefix = self._prefix or None
            found = client.retry_cut_blocking(lambda: obstore.list(store, prefix).collect())
        for meta in found:
            seconds = math.ceil(meta["last_modified"].timestamp())
            yield meta["path"][skipped:], meta["size"], meta["e_tag"], seconds

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        """Names of the folders and of the objects directly below a folder, ascending."""
        if self.path is not None:
            entries = sorted(os.scandir(self.path / folder), key=lambda entry: entry.name)
            folders = [entry.name for entry in entries if entry.is_dir()]
            return folders, [entry.name for entry in entries if entry.is_file()]
        store = self._listable("; name the files")
        import obstore

        with _reading(self.location, folder, "list"):
            prefix = self.name(folder).strip("/") or None
            found = client.retry_cut_blocking(lambda: obstore.list_with_delimiter(store, prefix))
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

    def _listable(self, otherwise: str) -> Any:
        assert self._connection is not None
        if not self._connection.can_list:
            raise StorageError(
                f"{self.location} cannot be listed: web servers have no listing{otherwise}",
                ErrorKind.OBJECT_STORE,
            )
        return self._connection.reader()


_MAGIC = re.compile(r"[*?\[]")
Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def list_sources(
    sources: Sources, access: SourceAccess | None = None, exclude: str | Sequence[str] = ()
) -> list[str]:
    """The locations meant, each once: those of a pattern sorted, otherwise in the order given.

    In a pattern `*`, `?` and `[...]` stand for parts of one name and `**` for any folders. A
    folder that matches is taken for a Zarr store, or a set of references. Sources that match a
    pattern of `exclude` are left out; one without a slash is about the last part of a name.

    Raises:
        InvalidInputError: a pattern matches nothing, or there is no source at all.
    """
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    found: dict[str, None] = {}
    for item in given:
        text = hadoop_free(os.fspath(item))
        is_file = "://" not in text and Path(text).exists()
        if is_file or not _MAGIC.search(text):
            found[absolute_location(text)] = None
            continue
        matches = _expand(text, access or SourceAccess())
        if not matches:
            where = "" if "://" in text or text.startswith("/") else f" in {Path.cwd()}"
            raise InvalidInputError(
                f"no file matches {text!r}{where}; check the folder and the pattern",
                ErrorKind.OBJECT_NOT_FOUND,
            )
        found |= dict.fromkeys(matches)
    kept = [location for location in found if not is_excluded(location, exclude)]
    if not kept:
        why = f": all {len(found)} are excluded by {exclude!r}" if found else ""
        raise InvalidInputError(f"there are no sources to ingest{why}")
    return kept


def is_excluded(location: str, exclude: str | Sequence[str]) -> bool:
    """Whether a location, or the last part of it, matches one of the patterns."""
    name = unquote(location).rstrip("/")
    for pattern in [exclude] if isinstance(exclude, str) else exclude:
        text = hadoop_free(pattern)
        if "/" not in text:
            found = fnmatch.fnmatchcase(name.rpartition("/")[2], text)
        else:
            whole = text if "://" in text or text.startswith("*") else os.path.abspath(text)  # noqa: PTH100 - keeps the pattern as text
            found = fnmatch.fnmatchcase(name.removeprefix("file://"), whole.removeprefix("file://"))
        if found:
            return True
    return False


def _expand(pattern: str, access: SourceAccess) -> list[str]:
    if pattern.startswith("file://"):
        pattern = unquote(pattern.removeprefix("file://"))
    if "://" not in pattern:
        full = os.path.abspath(pattern)  # noqa: PTH100 - keeps the pattern as text
        root, key = "file://", full.lstrip("/")
        place = Place("file:///", access)
    else:
        scheme, _, rest = pattern.partition("://")
        # A question mark is part of the pattern here, not the start of a query.
        root, _ = _split(f"{scheme}://{rest.partition('?')[0]}")
        place = Place(root, access)
        key = unquote(f"{scheme}://{rest}"[len(root) :]).lstrip("/")
    matches = sorted(_walk(place, "", key.split("/")))
    if root == "file://":
        return [absolute_location("/" + match) for match in matches]
    return [location_of_key(root, match) for match in matches]


def _walk(place: Place, folder: str, names: list[str]) -> Iterable[str]:
    name, rest = names[0], names[1:]
    below = f"{folder}/" if folder else ""
    if not _MAGIC.search(name):
        if rest:
            yield from _walk(place, below + name, rest)
        else:
            folders, files = _folder(place, folder)
            if name in folders or name in files:
                yield below + name
        return
    folders, files = _folder(place, folder)
    if name == "**":
        if rest:
            yield from _walk(place, folder, rest)
        for inner in folders:
            yield from _walk(place, below + inner, names)
        if not rest:
            yield from (below + file for file in files)
        return
    if rest:
        for inner in fnmatch.filter(folders, name):
            yield from _walk(place, below + inner, rest)
        return
    # A pattern such as `data/*` means the files there; a folder is meant when it is a Zarr store.
    meant = [inner for inner in folders if name != "*" or inner.endswith(".zarr")]
    for match in fnmatch.filter([*files, *meant], name):
        yield below + match


def _folder(place: Place, folder: str) -> tuple[list[str], list[str]]:
    try:
        return place.list_folder(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return [], []
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return [], []
        raise


class SourceContainer(NamedTuple):
    """A container for the folder of some sources, and the credential of their reader."""

    container: VirtualChunkContainer
    credential: credentials.AnyCredential


def containers_of(locations: Iterable[str], access: SourceAccess) -> list[SourceContainer]:
    """One container for each bucket, host or top directory: the folder its sources are all in."""
    by_root: dict[str, list[str]] = {}
    for location in locations:
        is_file = local_path(location) is not None
        root = "/".join(location.split("/")[:4]) if is_file else _split(location)[0]
        by_root.setdefault(root, []).append(location)
    found = []
    for some in by_root.values():
        scheme = some[0].partition("://")[0]
        parents = [one.partition("://")[2].rstrip("/").rpartition("/")[0] for one in some]
        folder = f"{scheme}://{commonpath(parents).rstrip('/')}/"
        found.append(container_for(folder, access))
    return found


def container_for(prefix: str, access: SourceAccess) -> SourceContainer:
    """A container for a URL that ends with a slash, reached as sources there are."""
    store, credential = _store(prefix, access)
    container = VirtualChunkContainer(prefix, store)
    container.validate()
    return SourceContainer(container, credential)


def _store(
    prefix: str, access: SourceAccess
) -> tuple[stores.ObjectStoreConfig, credentials.AnyCredential]:
    path = local_path(prefix)
    if path is not None:
        return stores.local_filesystem_store(str(path)), credentials.ContainerLocalFileSystem()
    root, _ = _split(prefix)
    place = storage_from_url(root, **access.options).location
    if isinstance(place, S3Location):
        store = stores.s3_store(
            region=place.region,
            endpoint_url=place.endpoint_url,
            allow_http=place.allow_http,
            s3_compatible=place.endpoint_url is not None,
            force_path_style=place.is_path_style,
        )
        return store, credentials.ContainerS3(place.credentials)
    if isinstance(place, GcsLocation):
        return stores.gcs_store(), credentials.ContainerGcs(place.credentials)
    if isinstance(place, AzureLocation):
        return stores.azure_store(account=place.account), credentials.ContainerAzure(
            place.credentials
        )
    return stores.http_store(), credentials.ContainerHttp()
