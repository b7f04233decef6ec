"""The header and frame around metadata files: exact bytes, odd but legal files, damage."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.envelope import (
    HEADER_SIZE,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    WRITER_NAME,
    FileType,
    Header,
    decode_envelope,
    decode_header,
    encode_envelope,
    encode_header,
)

OFFICIAL_HEADER = bytes.fromhex("494345f09fa78a4348554e4b") + b"ic-2.3.0".ljust(24) + b"\2\1\1"
PAYLOAD = b"\x0c\0\0\0Ichk" + bytes(range(256)) * 9 + b"odd"


def header(version: int = 2, file_type: int = FileType.SNAPSHOT, compression: int = 1) -> bytes:
    return OFFICIAL_HEADER[:36] + bytes((version, file_type, compression))


def frame(data: bytes, *, has_size: bool = True, has_checksum: bool = False) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=has_size, write_checksum=has_checksum)
    return compressor.compress(data)


def opened(data: bytes) -> bytes:
    """The payload of a snapshot file, after checking the room around it."""
    _, payload, size = decode_envelope(data, FileType.SNAPSHOT, "snapshots/X")
    assert len(payload) % 8 == 0
    assert 0 <= len(payload) - size < 8
    assert not payload[size:].any()
    return payload[:size].tobytes()


def refusal(data: bytes) -> FormatError:
    with pytest.raises(FormatError) as caught:
        decode_envelope(data, FileType.SNAPSHOT, "snapshots/X")
    assert str(caught.value).startswith("snapshots/X: ")
    return caught.value


# --- header ----------------------------------------------------------------------------------


def test_a_header_of_official_icechunk_is_understood() -> None:
    assert len(OFFICIAL_HEADER) == HEADER_SIZE == 39
    assert decode_header(OFFICIAL_HEADER, "x") == Header("ic-2.3.0", 2, FileType.SNAPSHOT, True)


def test_the_magic_bytes_are_the_text_of_the_format_documents() -> None:
    assert MAGIC.decode() == "ICE\N{ICE CUBE}CHUNK"


def test_a_header_is_written_as_official_icechunk_writes_it() -> None:
    assert encode_header(2, FileType.SNAPSHOT, "ic-2.3.0") == OFFICIAL_HEADER
    ours = encode_header(1, FileType.REPO_INFO)
    assert decode_header(ours, "x") == Header(WRITER_NAME, 1, FileType.REPO_INFO, True)


def test_the_writer_name_has_the_version_of_the_package() -> None:
    program = (
        "import icefloe; icefloe.__version__ = '7.8.9'; from icefloe.format.envelope import *\n"
        "print(decode_header(encode_header(2, FileType.SNAPSHOT), 'x').writer)"
    )
    made = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert made.stdout.decode().strip() == "ic-floe-7.8.9"
    assert f"ic-floe-{metadata.version('icefloe')}" == WRITER_NAME
    assert len(WRITER_NAME) <= 24


@pytest.mark.parametrize(
    ("writer", "read_back"),
    [
        ("", ""),
        ("x" * 24, "x" * 24),
        ("x" * 30, "x" * 24),
        ("spaces inside ", "spaces inside"),
        ("größe-1", "größe-1"),
        ("x" * 23 + "ü", "x" * 23 + "\ufffd"),
    ],
)
def test_any_writer_name_fits_its_24_bytes(writer: str, read_back: str) -> None:
    data = encode_header(2, FileType.MANIFEST, writer)
    assert len(data) == HEADER_SIZE
    assert decode_header(data, "x").writer == read_back


def test_zero_bytes_behind_the_writer_name_are_dropped() -> None:
    data = MAGIC + b"ic-1".ljust(24, b"\0") + b"\2\1\1"
    assert decode_header(data, "x").writer == "ic-1"


@pytest.mark.parametrize("file_type", list(FileType))
@pytest.mark.parametrize("version", [1, 2])
def test_all_file_types_and_both_versions_are_known(version: int, file_type: FileType) -> None:
    found = decode_header(header(version, file_type), "x")
    assert (found.spec_version, found.file_type) == (version, file_type)


@pytest.mark.parametrize("version", [3, 4, 255])
def test_a_newer_version_asks_for_an_upgrade_and_names_both_versions(version: int) -> None:
    error = refusal(header(version) + frame(PAYLOAD))
    assert error.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION
    assert f"version {version}" in str(error)
    assert "1 to 2" in str(error)
    assert "upgrade" in str(error)


def test_a_newer_version_is_reported_before_anything_it_may_have_changed() -> None:
    assert refusal(header(3, 99, 99)).kind == ErrorKind.UNSUPPORTED_SPEC_VERSION


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (header(0) + frame(PAYLOAD), "spec version byte is 0"),
        (header(2, 0), "file type byte is 0"),
        (header(2, 7), "file type byte is 7"),
        (header(2, 255), "file type byte is 255"),
        (header(2, 1, 2), "compression byte is 2"),
        (b"X" + header()[1:], "expected 494345f09fa78a4348554e4b"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "starts with 28b52ffd"),
        (b"{}", "starts with 7b7d"),
    ],
)
def test_a_wrong_header_is_an_error_that_says_what_was_found(data: bytes, problem: str) -> None:
    error = refusal(data)
    assert error.kind == ErrorKind.INVALID_FILE_FORMAT
    assert problem in str(error)


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_a_file_shorter_than_its_header_is_an_error(size: int) -> None:
    error = refusal(header()[:size])
    assert error.kind == ErrorKind.INVALID_FILE_FORMAT
    assert f"has {size} bytes" in str(error)


@pytest.mark.parametrize(("found", "wanted"), list(itertools.permutations(FileType, 2)))
def test_a_file_of_another_type_is_an_error_that_names_both(
    found: FileType, wanted: FileType
) -> None:
    with pytest.raises(FormatError, match=f"is a {found.noun} file, expected a {wanted.noun}"):
        decode_envelope(header(2, found) + frame(PAYLOAD), wanted, "x")


# --- payloads that official writers do not make, but the format allows -----------------------


@pytest.mark.parametrize("has_size", [True, False])
@pytest.mark.parametrize("has_checksum", [True, False])
@pytest.mark.parametrize("repeat", [1, 200])
def test_frames_with_and_without_size_and_checksum_are_read(
    has_size: bool, has_checksum: bool, repeat: int
) -> None:
    data = PAYLOAD * repeat  # several blocks when repeated
    body = frame(data, has_size=has_size, has_checksum=has_checksum)
    assert opened(header() + body) == data


@pytest.mark.parametrize("sizes", list(itertools.product([True, False], repeat=3)))
def test_several_frames_are_one_payload(sizes: tuple[bool, ...]) -> None:
    parts = [PAYLOAD, b"", PAYLOAD * 100]
    body = b"".join(frame(part, has_size=size) for part, size in zip(parts, sizes, strict=True))
    assert opened(header() + body) == b"".join(parts)


def test_a_frame_of_one_repeated_byte_is_read() -> None:
    data = PAYLOAD[:8] + bytes(1_000_000)
    assert opened(header() + frame(data)) == data
    assert opened(header() + frame(data, has_size=False)) == data


def test_a_payload_larger_than_the_usual_window_is_read() -> None:
    """At high levels the window of a frame is its whole content."""
    data = PAYLOAD[:8] + bytes(2**20) * 130
    body = zstandard.ZstdCompressor(level=1, write_content_size=True).compress(data)
    assert len(opened(header() + body)) == len(data)


@pytest.mark.parametrize("size", range(8, 17))
def test_a_payload_without_compression_is_read(size: int) -> None:
    assert opened(header(compression=0) + PAYLOAD[:size]) == PAYLOAD[:size]


def test_data_can_be_a_view_of_a_larger_buffer() -> None:
    whole = b"before" + header() + frame(PAYLOAD) + b"behind"
    _, payload, size = decode_envelope(memoryview(whole)[6:-6], FileType.SNAPSHOT, "x")
    assert payload[:size].tobytes() == PAYLOAD


# --- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_size", [True, False])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_file_cut_anywhere_is_an_error(has_size: bool, has_checksum: bool) -> None:
    data = header() + frame(PAYLOAD[:64], has_size=has_size, has_checksum=has_checksum)
    for size in range(len(data)):
        refusal(data[:size])
    assert opened(data) == PAYLOAD[:64]


def test_a_file_cut_between_blocks_is_an_error() -> None:
    blocks = frame(np.random.default_rng(1).bytes(400_000), has_size=False)
    for size in range(len(blocks) - 140_000, len(blocks), 9973):
        assert "ends inside" in str(refusal(header() + blocks[:size]))


@pytest.mark.parametrize("tail", [b"\0", b"junk", b"\x28\xb5\x2f\xfd"])
def test_bytes_behind_the_frame_are_an_error(tail: bytes) -> None:
    refusal(header() + frame(PAYLOAD) + tail)


def raw_block_frame(announced: int, data: bytes) -> bytes:
    """A frame with an 8-byte content size and one uncompressed block."""
    block = (len(data) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xe0" + announced.to_bytes(8, "little") + block + data


def test_a_frame_made_by_hand_is_read_when_it_tells_the_truth() -> None:
    assert opened(header() + raw_block_frame(len(PAYLOAD), PAYLOAD)) == PAYLOAD


@pytest.mark.parametrize("announced", [0, 1, len(PAYLOAD) - 1, len(PAYLOAD) + 1, 100_000])
def test_a_frame_that_announces_another_size_is_an_error(announced: int) -> None:
    assert "zstd frame is damaged" in str(refusal(header() + raw_block_frame(announced, PAYLOAD)))


def test_content_beyond_the_announced_size_is_an_error_also_when_it_is_a_block_of_its_own() -> None:
    first = len(PAYLOAD) << 3  # not the last block
    second = (4 << 3 | 1).to_bytes(3, "little") + b"more"
    body = b"\x28\xb5\x2f\xfd\xe0" + len(PAYLOAD).to_bytes(8, "little")
    body += first.to_bytes(3, "little") + PAYLOAD + second
    assert "zstd frame is damaged" in str(refusal(header() + body))


def test_a_second_frame_that_announces_nothing_but_holds_something_is_an_error() -> None:
    honest = raw_block_frame(len(PAYLOAD), PAYLOAD)
    refusal(header() + honest + raw_block_frame(0, b"more"))


@pytest.mark.parametrize("announced", [2**31 + 1, 2**40, 2**63, 2**64 - 3])
def test_a_frame_that_announces_an_absurd_size_is_refused_before_memory_is_taken(
    announced: int,
) -> None:
    assert f"{announced:,}" in str(refusal(header() + raw_block_frame(announced, PAYLOAD)))


def test_a_damaged_checksum_is_an_error() -> None:
    body = bytearray(frame(PAYLOAD, has_checksum=True))
    body[-1] ^= 1
    refusal(header() + bytes(body))


def test_a_frame_that_needs_a_dictionary_is_an_error() -> None:
    dictionary = zstandard.ZstdCompressionDict(b"abcdefgh" * 64, dict_type=1)
    body = zstandard.ZstdCompressor(dict_data=dictionary).compress(PAYLOAD)
    refusal(header() + body)


@pytest.mark.parametrize("body", [b"", b"\0" * 3, b"not a frame at all", bytes(100)])
def test_something_that_is_no_frame_is_an_error(body: bytes) -> None:
    refusal(header() + body)


@pytest.mark.parametrize(
    "start",
    [
        b"\x93\x01\x80\x80 manifest of alpha 10",
        b"\x94\x01\x80\x92\xc4\x0c manifest of alpha 12",
        b"\x92\x92\xc4\x0c manifest of 0.1",
        b"\x98\x92\xc4\x0c snapshot of 0.1",
        b"\x99\x90\x90\x00 snapshot of alpha 12",
        b"\x97\x92\xc4\x0c log of 0.1",
        b"\xdc\x00\x10\x92 an array of sixteen",
    ],
)
def test_a_payload_of_the_time_before_flatbuffers_is_recognised(start: bytes) -> None:
    error = refusal(header(1) + frame(start + bytes(4000)))
    assert error.kind == ErrorKind.INVALID_FILE_FORMAT
    assert "MessagePack" in str(error)


@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_noise_behind_a_header_is_a_payload_or_a_format_error(
    noise: bytes, compression: int
) -> None:
    with contextlib.suppress(FormatError):
        opened(header(compression=compression) + noise)


# --- writing ---------------------------------------------------------------------------------


def test_a_written_file_is_one_frame_of_announced_size_without_checksum() -> None:
    segments = [np.frombuffer(PAYLOAD[:1000], np.uint8), np.frombuffer(PAYLOAD[1000:], np.uint8)]
    data = encode_envelope(segments, 2, FileType.SNAPSHOT, 3)
    assert data[:HEADER_SIZE] == encode_header(2, FileType.SNAPSHOT)
    found = zstandard.get_frame_parameters(data[HEADER_SIZE:])
    assert (found.content_size, found.has_checksum, found.dict_id) == (len(PAYLOAD), False, 0)
    assert zstandard.ZstdDecompressor().decompress(data[HEADER_SIZE:]) == PAYLOAD
    assert opened(data) == PAYLOAD


def test_segments_of_any_type_are_written_one_behind_the_other() -> None:
    segments = [
        np.frombuffer(PAYLOAD[:8], "<u4"),
        np.empty(0, np.uint64),
        np.array([(1, 2.5)], [("a", "<u2"), ("b", "<f8")]),
        np.arange(6, dtype="<u2").reshape(2, 3),
    ]
    joined = b"".join(segment.tobytes() for segment in segments)
    assert opened(encode_envelope(segments, 1, FileType.SNAPSHOT, 1)) == joined


def test_more_than_a_flatbuffer_can_hold_is_refused() -> None:
    # A view that claims two gigabytes and takes one byte.
    huge = np.broadcast_to(np.zeros(1, np.uint8), (MAX_PAYLOAD_BYTES,))
    with pytest.raises(FormatError, match="split it") as caught:
        encode_envelope([huge], 2, FileType.MANIFEST, 3)
    assert caught.value.kind == ErrorKind.SERIALIZATION
