"""What is fuzzed: for each file type its seeds, its decoder, and what a decoded value must do.

A case is a number: `TARGETS["manifest"].run(4711)` damages, decodes and uses one file, the same
way every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any
from zlib import crc32

from icefloe import paths
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.config import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from icefloe.format.flexbuffers import decode as decode_flexbuffer
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest, encode_manifest
from icefloe.format.metadata import (
    decode_msgpack,
    encode_flexbuffer,
    encode_msgpack,
)
from icefloe.format.ref_files import decode_ref_file, encode_ref_file
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from tests.fuzz import seeds
from tests.fuzz.mutate import Seed, mutant

NAME = "damaged/file"
"""What decoders are told the file is called; their errors have to say it."""

_SPEC_VERSION_BYTE = 36
_CHECK_ENCODING_EVERY = 32


@dataclass(frozen=True)
class Target:
    """One file type. `use` touches everything a decoded value offers."""

    name: str
    seeds: Callable[[], Sequence[Seed]]
    decode: Callable[[bytes], Any]
    use: Callable[[Any], None]
    encode: Callable[[Any, bytes], bytes]
    same: Callable[[Any, Any], bool]
    error_starts_with: tuple[str, ...] = (f"{NAME}: ",)
    tokens: Sequence[bytes] = ()

    def damaged(self, case: int) -> tuple[Seed, bytes]:
        """The file of this case, and the healthy one it was made from."""
        random = Random(crc32(self.name.encode()) << 32 | case)
        seed = random.choice(self.seeds())
        return seed, mutant(seed, random, self.tokens)

    def run(self, case: int) -> bool:
        """Decode and use the file of one case; whether it could be decoded."""
        return self.check(self.damaged(case)[1], with_encoding=case % _CHECK_ENCODING_EVERY == 0)

    def check(self, data: bytes, *, with_encoding: bool = True) -> bool:
        """Decode `data` or be refused with a FormatError that names it; then use the value."""
        try:
            value = self.decode(data)
        except FormatError as error:
            if not error.message.startswith(self.error_starts_with):
                raise AssertionError(f"not named: {error.message}") from error
            return False
        try:
            self.use(value)
        except FormatError:
            # Some parts are decoded when they are asked for: locations, metadata of snapshots.
            return True
        if with_encoding:
            self._check_encoding(value, data)
        return True

    def _check_encoding(self, value: Any, data: bytes) -> None:
        try:
            encoded = self.encode(value, data)
        except (FormatError, InvalidInputError):
            return
        again = self.decode(encoded)
        assert self.same(value, again), "encoded and decoded again, it is another value"


# --- what each kind of value has to do -------------------------------------------------------


def _use_manifest(manifest: Manifest) -> None:
    assert manifest.num_chunk_refs == sum(len(array.refs) for array in manifest.arrays)
    for array in manifest.arrays:
        refs = array.refs
        assert manifest.find(array.node_id) is refs
        for row, index in enumerate(refs.index.tolist()):
            assert refs.get(index) == refs.row(row)
        for column in (refs.location, refs.etag):
            if column is not None:
                assert len(column.values.strings()) == len(column.values) > int(column.codes.max())
        assert len(refs.extents()) == refs.ndim
        table = refs.to_arrow(plain=True)
        table.validate(full=True)
        assert ChunkRefs.from_arrow(table).equals(refs)


def _use_lookups(manifest: Manifest) -> None:
    """A search in the file finds what is in its columns, if they can be decoded at all."""
    for array in manifest.arrays:
        found = {index: _look_up(array, index) for index in _LOOKED_UP}
        refs = array.refs
        for index, ref in found.items():
            if len(index) == refs.ndim and not isinstance(ref, FormatError):
                assert refs.get(index) == ref


def _look_up(array: ArrayManifest, index: tuple[int, ...]) -> Any:
    try:
        kind, ref = array.kind_at(index), array.get(index)
        assert kind == (0 if ref is None else ref.kind)
        return ref
    except FormatError as error:
        return error
    except InvalidInputError:  # another number of dimensions
        return None


def _use_snapshot(snapshot: Snapshot) -> None:
    for node in snapshot.nodes:
        assert node.path.startswith("/")  # official clients write paths that are not canonical
        assert snapshot.nodes.find(node.path) == node
    assert len(dict(snapshot.manifest_files)) == len(snapshot.manifest_files)


def _use_log(log: TransactionLog) -> None:
    assert log.num_changes >= 0
    for index in log.updated_chunks.values():
        assert index.ndim == 2
        rows = index.tolist()
        assert rows == sorted(rows)
        assert len({tuple(row) for row in rows}) == len(rows)


def _same_log(one: TransactionLog, other: TransactionLog) -> bool:
    # Encoding puts the moves in order.
    return _with_sorted_moves(one).equals(_with_sorted_moves(other))


def _with_sorted_moves(log: TransactionLog) -> TransactionLog:
    if log.moved_nodes is None:
        return log
    ordered = sorted(log.moved_nodes, key=lambda move: paths.segments(move.destination))
    return replace(log, moved_nodes=tuple(ordered))


def _use_repo(info: RepoInfo) -> None:
    table = info.snapshots
    assert {*info.branches.values(), *info.tags.values()} <= set(table)
    for key in table:
        line = list(islice(table.ancestry(key), len(table) + 1))
        assert len(line) == len(set(line)) <= len(table)
    for update in info.latest_updates:
        assert update.updated_at >= 0
    assert len(dict(table)) == len(table)
    if info.config is not None:
        decode_config_flexbuffer(info.config)


def _same_repo(one: RepoInfo, other: RepoInfo) -> bool:
    return _with_sorted_flags(one).equals(_with_sorted_flags(other))


def _with_sorted_flags(info: RepoInfo) -> RepoInfo:
    # Encoding puts the flags in order.
    changes: dict[str, Any] = {}
    for name in ("enabled_feature_flags", "disabled_feature_flags"):
        flags = getattr(info, name)
        changes[name] = None if flags is None else tuple(sorted(flags))
    return replace(info, **changes)


def _use_value(value: Any) -> None:
    json.dumps(value, allow_nan=False)


def _same_value(one: Any, other: Any) -> bool:
    # As text, so that 1, 1.0 and True differ.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _use_nothing(_: Any) -> None:
    pass


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


_LOOKED_UP = [(), (0,), (3,), (0, 0), (1, 0), (0, 0, 0), (0, 0, 1), (1, 2, 3)]
_JSON_TOKENS = (b"{", b"}", b"[", b'"', b"\\u", b"\\ud800", b":", b",", b"null", b"1e999", b"\xff")
_YAML_TOKENS = (
    *(b"- ", b"? ", b": ", b"{", b"}", b"[", b"]", b"'", b'"', b"#", b"\t", b"\n", b"\n  "),
    *(b"&a ", b"*a", b"!x ", b"!!int ", b"!!python/object:os.system ", b"!<", b"<<: ", b"|\n"),
    *(b"%YAML 1.2\n---\n", b"---\n", b"...\n", b"\\U00110000", b"\\uD800", b"\\x", b"~", b"0x"),
    *(b"null", b"true", b"1e9", b"-1", b"99999999999999999999", b"\xc3", b"\0", b"\xef\xbb\xbf"),
)

TARGETS = {
    target.name: target
    for target in (
        Target(
            "snapshot",
            seeds.snapshots,
            lambda data: decode_snapshot(data, NAME),
            _use_snapshot,
            lambda value, data: encode_snapshot(
                value, spec_version=data[_SPEC_VERSION_BYTE], level=1
            ),
            Snapshot.equals,
        ),
        Target(
            "manifest",
            seeds.manifests,
            lambda data: decode_manifest(data, NAME),
            _use_manifest,
            lambda value, data: encode_manifest(
                value, spec_version=data[_SPEC_VERSION_BYTE], level=1
            ),
            Manifest.equals,
        ),
        Target(
            "manifest-lookup",
            seeds.manifests,
            lambda data: decode_manifest(data, NAME, lazy_from=0),
            _use_lookups,
            lambda value, data: encode_manifest(
                value, spec_version=data[_SPEC_VERSION_BYTE], level=1
            ),
            Manifest.equals,
        ),
        Target(
            "transaction-log",
            seeds.transaction_logs,
            lambda data: decode_transaction_log(data, NAME),
            _use_log,
            lambda value, data: encode_transaction_log(
                value, spec_version=data[_SPEC_VERSION_BYTE], level=1
            ),
            _same_log,
        ),
        Target(
            "repo-info",
            seeds.repo_infos,
            lambda data: decode_repo_info(data, NAME),
            _use_repo,
            lambda value, data: encode_repo_info(value, level=1),
            _same_repo,
        ),
        Target(
            "ref-file",
            seeds.ref_files,
            lambda data: decode_ref_file(data, NAME),
            _use_nothing,
            lambda value, data: encode_ref_file(value),
            _equal,
            tokens=_JSON_TOKENS,
        ),
        Target(
            "config-yaml",
            seeds.config_yamls,
            decode_config_yaml,
            _use_nothing,
            lambda value, data: encode_config_yaml(value),
            _equal,
            ("config YAML: ", "config at "),
            _YAML_TOKENS,
        ),
        Target(
            "config-flexbuffer",
            seeds.config_flexbuffers,
            decode_config_flexbuffer,
            _use_nothing,
            lambda value, data: encode_config_flexbuffer(value),
            _equal,
            ("config: ", "config at "),
        ),
        Target(
            "msgpack-value",
            seeds.msgpack_values,
            decode_msgpack,
            _use_value,
            lambda value, data: encode_msgpack(value),
            _same_value,
            ("metadata value",),
        ),
        Target(
            "flexbuffer-value",
            seeds.flexbuffer_values,
            decode_flexbuffer,
            _use_value,
            lambda value, data: encode_flexbuffer(value),
            _same_value,
            ("FlexBuffer",),
        ),
    )
}
