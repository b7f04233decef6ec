"""Every section of the founding documents has tests, and they exist."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from icefloe.format.envelope import HEADER_SIZE
from icefloe.ids import decode_base32_rows

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "format" / "documents.md"
_ROW = re.compile(r"^\| (?P<section>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
_TABLES, _, _ERRATA = PAGE.read_text().partition("## Errata")
ROWS = [
    (row["section"], row["tests"]) for row in _ROW.finditer(_TABLES) if row["section"] != "section"
]
HEADINGS = {
    "000": """Icechunk Specification; Introduction; Goals; Non Goals; Storage Operations;
        Specification; Overview; File Layout; File Formats; Reference Files;
        Creating and Updating Branches; Tags; Snapshot Files; Attributes Files;
        Chunk Manifest Files; Chunk Files; Algorithms;
        Initialize New Repository; Read from Repository; From Snapshot ID; From Branch; From Tag;
        Write New Snapshot; Create New Tag; Appendices; Comparison with Iceberg""",
    "001": """Icechunk Specification; Introduction; Goals; Non Goals; Storage Operations;
        Specification; Overview; File Layout; File Formats; Reference Files;
        Creating and Updating Branches; Tags; Snapshot Files; Chunk Manifest Files;
        Chunk Files; Transaction logs; Algorithms;
        Initialize New Repository; Read from Repository; From Snapshot ID; From Branch; From Tag;
        Write New Snapshot; Create New Tag""",
    "002": """Core Types; The Big Picture: Snapshots; Primitive Types; Content-Addressable IDs;
        ObjectId Design; How IDs Work; Path; ChunkIndices; ByteRange; Chunk Storage;
        ChunkPayload (aka "chunk reference"); Manifest; ArrayManifest; Why Multiple Manifests?;
        Repository Structure; Snapshot; ManifestFileInfo vs ManifestRef; NodeSnapshot; ManifestRef;
        Version Control; TransactionLog; Refs (Branches and Tags); Branches; Tags; Serialization;
        Next Steps""",
    "003": """Icechunk Specification; Comparison with Iceberg; Goals; Filesytem Operations;
        Specification; Overview; State File; File Layout; Structure Files; Attributes Files;
        Chunk Manifest Files; Chunk Coord Encoding; Chunk Files; Algorithms; Initialize New Store;
        Write Snapshot; Read Snapshot; Expire Snapshots""",
    "004": "Icechunk on disk binary format; Chunk files; Metadata files; File structure",
}
"""All headings of the documents, in their order and as they are printed."""
DOCUMENTS = os.environ.get("ICEFLOE_FOUNDING_DOCUMENTS")
"""A folder with the documents, whose names begin with their numbers."""


@pytest.mark.parametrize(("section", "tests"), ROWS, ids=[section for section, _ in ROWS])
def test_a_section_names_tests_that_exist(section: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)`", tests)
    assert named or tests == "background", f"{section} has no tests"
    for each in named:
        file, _, name = each.partition("::")
        assert (ROOT / file).exists(), each
        if name:
            text = (ROOT / file).read_text()
            assert re.search(rf"^(async )?(def|class) {re.escape(name)}\b", text, re.MULTILINE), (
                each
            )


def headings(number: str) -> list[str]:
    return [" ".join(each.split()) for each in HEADINGS[number].split(";")]


@pytest.mark.parametrize("number", HEADINGS)
def test_every_heading_of_a_document_is_on_the_page_and_no_other(number: str) -> None:
    """A row is about one heading, several with commas between them, or a part after a colon."""
    table = _TABLES.partition(f"## Document {number}")[2].partition("\n## ")[0]
    sections = [row["section"] for row in _ROW.finditer(table)][1:]
    known = headings(number)
    found: set[str] = set()
    for section in sections:
        whole, _, part = section.partition(": ")
        named = {section, whole, part, *section.split(", ")} & set(known)
        assert named, f"{section!r} is no heading of document {number}"
        found |= named
    assert found == set(known)


def test_errata_are_about_the_documents() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.+?) \| (.+) \|$", _ERRATA, re.MULTILINE)
    assert {number for number, _, _ in rows} == HEADINGS.keys()
    # The examples of document 002 are no ids, and the header ends where document 004 ends it.
    for text in ("ABC123DEF456GHJ789KL", "MNP012QRS345TUV678WX"):
        assert text in _ERRATA
        assert not decode_base32_rows(np.array([text.encode()]), 12)[1].any()
    assert HEADER_SIZE == 39


@pytest.mark.skipif(not DOCUMENTS, reason="ICEFLOE_FOUNDING_DOCUMENTS names no folder with them")
@pytest.mark.parametrize("number", HEADINGS)
def test_headings_and_quotations_are_those_of_the_documents(number: str) -> None:
    (path,) = Path(str(DOCUMENTS)).glob(f"{number}*")
    text = path.read_text()
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+?)\s*$|^(.+)#$", plain, re.MULTILINE)
    assert [first or second for first, second in found] == headings(number)
    for quoted in re.findall(rf"^\| {number} \| (.+?) \|", _ERRATA, re.MULTILINE):
        assert quoted in text, quoted
