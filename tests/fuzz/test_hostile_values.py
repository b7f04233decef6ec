"""Ref files, configs and metadata values made to hurt or to mislead."""

from __future__ import annotations

import pytest

from icefloe.errors import ErrorKind
from icefloe.format.config import MAX_YAML_BYTES, decode_config_flexbuffer, decode_config_yaml
from icefloe.format.flexbuffers import MAX_DEPTH
from icefloe.format.flexbuffers import decode as decode_flexbuffer
from icefloe.format.metadata import decode_msgpack
from icefloe.format.ref_files import decode_ref_file
from tests.fuzz.files import nested_vectors
from tests.fuzz.refusal import refused_by

# --- ref files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"snapshot":null}',
        b'{"snapshot":5}',
        b'{"snapshot":"1CECHNKREP0F1RSTCMT"}',
        b'{"snapshot":"1CECHNKREP0F1RSTCMTU"}',
        b'{"snapshot":"\\ud800CECHNKREP0F1RSTCMT"}',
        b'\xff{"snapshot":"1CECHNKREP0F1RSTCMT0"}',
        b'{"snapshot":"1CECHNKREP0F1RSTCMT0"}more',
        b"[" * 100_000,
        b'{"snapshot":' * 100_000,
        b'{"snapshot":%s}' % (b"9" * 10_000),
    ],
    ids=lambda data: data[:40].decode("latin-1"),
)
def test_ref_file_without_a_snapshot(data: bytes) -> None:
    refused_by(lambda: decode_ref_file(data, "refs/branch.main/ref.json"), "refs/branch.main/ref")


# --- config.yaml -----------------------------------------------------------------------------

LAUGHS = b"a: &a [x, x, x, x]\n" + b"\n".join(
    b"%c: &%c [*%c, *%c, *%c, *%c]" % (letter, letter, *[letter - 1] * 4)
    for letter in range(ord("b"), ord("z"))
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff", "config YAML: "),
        (b"\0", "config YAML: "),
        (b"- a", "config at its root: "),
        (b"text", "config at its root: "),
        (LAUGHS, "config YAML: "),
        (b"a: !!python/object/apply:os.system [ls]", "config YAML: "),
        (b"a: 1\na: 2", "config YAML: "),
        (b"[" * 100_000, "config YAML: "),
        (b"{" * 100_000, "config YAML: "),
        (b"? " * 10_000, "config YAML: "),
        (b"- " * 10_000, "config YAML: "),
        (b"a: \n" + b"".join(b" " * n + b"a:\n" for n in range(1, 500)), "config YAML: "),
        (b"#" * (MAX_YAML_BYTES + 1), "config YAML: "),
        (b'storage: {storage_class: "\\U00110000"}', "config YAML: "),
        (b'storage: {storage_class: "\\uD800"}', "config "),
        (b"%YAML 1." + b"9" * 5_000 + b"\n--- {}", "config YAML: "),
        (b"a: 1\n---\nb: 2", "config YAML: "),
        (b"inline_chunk_threshold_bytes: 65536", "config at inline_chunk_threshold_bytes: "),
        (b"inline_chunk_threshold_bytes: " + b"9" * 10_000, "config at inline_chunk_threshold"),
        (b"compression: {algorithm: lzma}", "config at compression.algorithm: "),
        (b"manifest: {splitting: {split_sizes: [[any_array]]}}", "config at manifest.splitting"),
        (b"virtual_chunk_containers: {a: {url_prefix: 'a', store: s3}}", "config at virtual_chunk"),
    ],
    ids=lambda data: data[:30].decode("latin-1") if isinstance(data, bytes) else "",
)
def test_config_yaml(data: bytes, expected: str) -> None:
    error = refused_by(lambda: decode_config_yaml(data), expected)
    assert error.kind == ErrorKind.CONFIG_DESERIALIZATION


# --- flexbuffers -----------------------------------------------------------------------------

_INT, _STRING, _MAP, _VECTOR, _VECTOR_KEY, _BLOB = (kind << 2 for kind in (1, 5, 9, 10, 14, 25))


FLEXBUFFERS = {
    "nothing": b"",
    "two bytes": b"\0\1",
    "a root of no width": b"\0\0\0",
    "a root of width three": b"\0\0\0\0\4\3",
    "a root wider than the buffer": b"\0\4\10",
    "a number of sixteen bytes": b"\0" * 8 + bytes((_INT, 16)),
    "a type that does not exist": b"\0" + bytes((27 << 2, 1)),
    "bytes, which JSON has not": b"\1a" + bytes((1, _BLOB, 1)),
    "a slot that points before the start": bytes((5, _STRING, 1)),
    "a string beyond the end": b"\x7fabc\0" + bytes((4, _STRING, 1)),
    "a string that is not UTF-8": b"\1\xff\0" + bytes((2, _STRING, 1)),
    "a vector that claims everything": b"\xff\xff\xff\xff" + bytes((0, _VECTOR | 2, 1)),
    "a map without keys": b"\1\0" + bytes((1, _MAP, 1)),
    "a vector inside itself": bytes((1, 0, _VECTOR, 2, _VECTOR, 1)),
    "one level too many": nested_vectors(MAX_DEPTH + 1),
    "a hundred thousand levels": nested_vectors(100_000),
}


def test_flexbuffer_levels_up_to_the_limit_are_read() -> None:
    value = decode_flexbuffer(nested_vectors(MAX_DEPTH))
    for _ in range(MAX_DEPTH - 1):
        [value] = value
    assert value == []


@pytest.mark.parametrize("name", FLEXBUFFERS)
def test_flexbuffer(name: str) -> None:
    refused_by(lambda: decode_flexbuffer(FLEXBUFFERS[name]), "FlexBuffer")


@pytest.mark.parametrize("name", FLEXBUFFERS)
def test_config_flexbuffer(name: str) -> None:
    refused_by(lambda: decode_config_flexbuffer(FLEXBUFFERS[name]), "config: FlexBuffer")


# --- MessagePack -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0\xc0",
        b"\xc1",
        b"\xd9\x05abc",
        b"\xdb\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xc4\x01a",
        b"\xd4\x01a",
        b"\xd6\xff\0\0\0\0",
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\xa1\xff",
        b"\x81\x01\x01",
        b"\x81\xc4\x01a\x01",
        b"\x81\xc0\x01",
        b"\x81\x90\x01",
        b"\x91" * (MAX_DEPTH + 1) + b"\xc0",
        b"\x91" * 100_000 + b"\xc0",
        b"\x81\xa1a" * 100_000 + b"\xc0",
        (b"\xdd" + (900_000).to_bytes(4, "big")) * 1_000 + b"\xc0" * 1_000_000,
    ],
    ids=lambda data: f"{data[:8].hex()}-{len(data)}",
)
def test_msgpack(data: bytes) -> None:
    refused_by(lambda: decode_msgpack(data), "metadata value")
