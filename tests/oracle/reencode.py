"""A copy of a repository in which icefloe has written every metadata file anew.

Chunks are copied; everything else is decoded and encoded. Manifests change their size, so the
snapshots of the copy state the new sizes: official readers fetch exactly that many bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from icefloe.format.config import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from icefloe.format.envelope import decode_header
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.ref_files import TOMBSTONE, decode_ref_file, encode_ref_file
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import ManifestFiles, decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log


def reencode_repository(source: Path, target: Path) -> None:
    """Write the repository below `source` to the new folder `target`."""
    shutil.copytree(source / "chunks", target / "chunks") if (source / "chunks").exists() else None
    rewriters: dict[str, Callable[[bytes], bytes]] = {
        "manifests/*": _manifest,
        "transactions/*": _transaction_log,
        "repo": _repo_object,
        "overwritten/repo.*": _repo_object,
        "config.yaml": _config,
        "overwritten/config.yaml.*": _config,
        "refs/*/ref.json": _ref,
        "refs/*/ref.json.deleted": lambda _: TOMBSTONE,
    }
    for pattern, rewrite in rewriters.items():
        for path in source.glob(pattern):
            _write(target / path.relative_to(source), rewrite(path.read_bytes()))
    sizes = {path.name: path.stat().st_size for path in target.glob("manifests/*")}
    for path in source.glob("snapshots/*"):
        data = _snapshot(path.read_bytes(), sizes)
        _write(target / path.relative_to(source), data)
    left_out = _files(source) - _files(target)
    if left_out:
        raise RuntimeError(f"do not know how to write {sorted(left_out)}")


def _files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _version(data: bytes) -> int:
    return decode_header(data, "file to rewrite").spec_version


def _manifest(data: bytes) -> bytes:
    return encode_manifest(decode_manifest(data), spec_version=_version(data))


def _snapshot(data: bytes, sizes: dict[str, int]) -> bytes:
    snapshot = decode_snapshot(data)
    infos = [
        info._replace(size_bytes=sizes.get(info.id.text, info.size_bytes))
        for info in snapshot.manifest_files.values()
    ]
    files = ManifestFiles.from_infos(infos)
    return encode_snapshot(replace(snapshot, manifest_files=files), spec_version=_version(data))


def _transaction_log(data: bytes) -> bytes:
    return encode_transaction_log(decode_transaction_log(data), spec_version=_version(data))


def _repo_object(data: bytes) -> bytes:
    info = decode_repo_info(data)
    if info.config is not None:
        config = encode_config_flexbuffer(decode_config_flexbuffer(info.config))
        info = replace(info, config=config)
    return encode_repo_info(info)


def _config(data: bytes) -> bytes:
    return encode_config_yaml(decode_config_yaml(data))


def _ref(data: bytes) -> bytes:
    return encode_ref_file(decode_ref_file(data))
