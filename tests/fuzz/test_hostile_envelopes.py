"""Files whose header or zstd frame is wrong, cut or made to hurt."""

from __future__ import annotations

import struct

import pytest
import zstandard

from icefloe.errors import ErrorKind
from icefloe.format.envelope import HEADER_SIZE, FileType, encode_header
from icefloe.format.manifest import decode_manifest
from tests.fuzz import seeds
from tests.fuzz.files import new_file, payload_of, with_payload
from tests.fuzz.refusal import DECODERS, refused

SEEDS = {
    "snapshot": seeds.snapshots,
    "manifest": seeds.manifests,
    "log": seeds.transaction_logs,
    "repo": seeds.repo_infos,
}
HEADER = encode_header(2, FileType.MANIFEST)

_FRAME_MAGIC = struct.pack("<I", 0xFD2FB528)
_RAW, _RLE, _COMPRESSED, _RESERVED = range(4)


def block(kind: int, length: int, *, is_last: bool = False) -> bytes:
    """A zstd block header."""
    return (int(is_last) | kind << 1 | length << 3).to_bytes(3, "little")


def frame(size: int | None, *blocks: bytes) -> bytes:
    """A zstd frame that announces `size` bytes of content, or leaves it open."""
    if size is None:
        return HEADER + _FRAME_MAGIC + b"\x00\x88" + b"".join(blocks)  # window of 128 MiB
    return HEADER + _FRAME_MAGIC + b"\xe0" + struct.pack("<Q", size) + b"".join(blocks)


def healthy(kind: str) -> bytes:
    return SEEDS[kind]()[-1].data


def patched(kind: str, at: int, value: int) -> bytes:
    data = bytearray(SEEDS[kind]()[0].data)
    data[at] = value
    return bytes(data)


@pytest.mark.parametrize("kind", DECODERS)
class TestHeader:
    def test_an_empty_file(self, kind: str) -> None:
        refused(kind, b"", "has 0 bytes, a header alone takes 39")

    def test_every_cut_is_noticed(self, kind: str) -> None:
        data = SEEDS[kind]()[0].data
        for size in range(len(data)):
            refused(kind, data[:size])

    def test_other_magic_bytes(self, kind: str) -> None:
        refused(kind, patched(kind, 3, 0), "starts with", "expected 494345f09fa78a4348554e4b")

    def test_a_newer_version_says_which_one_is_needed(self, kind: str) -> None:
        error = refused(
            kind, patched(kind, 36, 3), "spec version 3", "reads versions 1 to 2", "upgrade icefloe"
        )
        assert error.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION

    def test_version_zero(self, kind: str) -> None:
        refused(kind, patched(kind, 36, 0), "spec version byte is 0, expected 1 or 2")

    def test_another_file_type(self, kind: str) -> None:
        refused(kind, patched(kind, 37, FileType.CHUNK), "is a chunk file, expected a ")

    def test_an_unknown_file_type(self, kind: str) -> None:
        refused(kind, patched(kind, 37, 9), "file type byte is 9, expected 1 to 6")

    def test_an_unknown_compression(self, kind: str) -> None:
        refused(kind, patched(kind, 38, 2), "compression byte is 2, expected 0 (none) or 1 (zstd)")

    def test_bytes_behind_the_frame(self, kind: str) -> None:
        refused(kind, SEEDS[kind]()[0].data + b"more", "the zstd frame is damaged")

    def test_no_payload(self, kind: str) -> None:
        refused(kind, SEEDS[kind]()[0].data[:HEADER_SIZE], "the zstd frame is damaged")


# --- frames ----------------------------------------------------------------------------------


def test_a_frame_that_announces_two_gibibytes_in_a_hundred_bytes() -> None:
    data = frame(2**31, block(_RAW, 80, is_last=True), bytes(80))
    refused("manifest", data, "announces 2,147,483,648 bytes", "its blocks hold at most")


def test_a_frame_that_announces_all_there_is() -> None:
    data = frame(2**64 - 3, block(_RLE, 100, is_last=True), b"a")
    refused("manifest", data, "the zstd frame is damaged", "announces")


def test_a_frame_of_runs_beyond_the_limit() -> None:
    runs = [block(_RLE, 2**17) + b"a"] * (2**14 + 1)
    data = frame(None, *runs, block(_RAW, 0, is_last=True))
    refused("manifest", data, "at most 2,147,483,648 fit")


def test_two_frames_that_only_together_are_beyond_the_limit() -> None:
    runs = [block(_RLE, 2**17) + b"a"] * 2**13
    one = frame(2**30, *runs, block(_RAW, 0, is_last=True))[HEADER_SIZE:]
    refused("manifest", HEADER + one * 3, "at most 2,147,483,648 fit")


def test_blocks_that_hold_nothing_get_no_room() -> None:
    data = frame(None, *[block(_RAW, 0)] * 16_000, block(_RAW, 0, is_last=True))
    refused("manifest", data)


def test_a_block_of_the_reserved_kind() -> None:
    refused("manifest", frame(8, block(_RESERVED, 8, is_last=True), bytes(8)), "zstd frame")


def test_a_frame_that_needs_a_dictionary() -> None:
    dictionary = zstandard.ZstdCompressionDict(b"0123456789" * 20)
    context = zstandard.ZstdCompressor(dict_data=dictionary)
    refused("manifest", HEADER + context.compress(b"0123456789" * 20))


def test_a_frame_with_a_window_beyond_the_limit() -> None:
    window = HEADER + _FRAME_MAGIC + b"\x00\xff" + block(_RAW, 0, is_last=True)
    refused("manifest", window, "the zstd frame is damaged")


def test_a_frame_whose_checksum_does_not_match() -> None:
    context = zstandard.ZstdCompressor(write_checksum=True)
    data = bytearray(HEADER + context.compress(payload_of(healthy("manifest"))))
    assert decode_manifest(bytes(data)).arrays
    data[-1] ^= 1
    refused("manifest", bytes(data), "the zstd frame is damaged")


def test_a_skippable_frame_is_no_payload() -> None:
    refused("manifest", HEADER + struct.pack("<II", 0x184D2A50, 8) + bytes(8))


# --- payloads --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(8))
def test_a_payload_too_short_for_a_flatbuffer(size: int) -> None:
    refused("manifest", new_file(FileType.MANIFEST, bytes(size)), f"payload has {size} bytes")


def test_a_payload_of_zeros() -> None:
    refused("manifest", new_file(FileType.MANIFEST, bytes(16)), "table Manifest")


@pytest.mark.parametrize("kind", DECODERS)
def test_the_file_identifier_is_optional(kind: str) -> None:
    data = healthy(kind)
    payload = payload_of(data)
    assert payload[4:8] == b"Ichk"
    DECODERS[kind](with_payload(data, payload[:4] + bytes(4) + payload[8:]), "file")
