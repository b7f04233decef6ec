"""Writes the facts in `docs/reference` that the code knows: tables between two comments.

    python tools/make_format_pages.py [--check]

A block starts with `<!-- facts: NAME -->` and ends with `<!-- end -->`. What stands between them
comes from the declarations that readers and writers use, so that a page cannot say otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from icefloe.config import PackingConfig, RepositoryConfig
from icefloe.config.section import Section, options
from icefloe.format.envelope import MAGIC, FileType
from icefloe.format.flatbuffer import schema
from icefloe.format.flatbuffer.schema import Field, TableSpec
from icefloe.legacy.numbered.names import (
    DOCUMENT,
    FIRST_ALPHA,
    LAST,
    LONG,
    PROTOTYPE,
    RELEASED,
    sequence_name,
)
from icefloe.legacy.state_file.tables import (
    Profile,
    attributes_schema,
    manifest_schema,
    structure_schema,
)

PAGES = Path(__file__).parents[1] / "docs" / "reference"
_BLOCK = re.compile(r"(<!-- facts: (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Rows as Markdown."""
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def _tables(*specs: TableSpec) -> str:
    rows = [
        (f"`{spec.name}`" if not slot else "", slot, f"`{name}`", _kind(field), _absence(field))
        for spec in specs
        for slot, (name, field) in enumerate(spec.fields.items())
    ]
    return table(("table", "slot", "field", "stored as", "when absent"), rows)


def _kind(field: Field) -> str:
    if field.is_offset:
        return "offset"
    if not field.dtype:
        return f"{field.size} bytes"
    letter = {"u": "unsigned", "i": "signed", "f": "float"}[field.dtype.lstrip("<|")[0]]
    return f"{letter}, {field.size * 8} bits"


def _absence(field: Field) -> str:
    if field.is_required:
        return "not allowed"
    return str(field.default) if field.dtype else "none"


def _columns(found: pa.Schema) -> str:
    rows = [(f"`{each.name}`", f"`{each.type}`", "yes" if each.nullable else "") for each in found]
    return table(("column", "type", "may be null"), rows)


def _names() -> str:
    shown = {
        "document 000": DOCUMENT,
        "the program of those weeks": PROTOTYPE,
        "alpha.1": FIRST_ALPHA,
        "alpha.2 to 0.1.3": RELEASED,
    }
    rows = [
        (
            name,
            f"`{names.branch_key('NAME', 0)}`",
            f"`{names.tag_key('NAME')}`",
            f"`{names.snapshots}` `{names.manifests}` `{names.chunks}`",
            names.id_size,
        )
        for name, names in shown.items()
    ]
    return table(("where", "first file of a branch", "tag", "files", "bytes of an id"), rows)


def _sequence() -> str:
    rows = [(str(n), f"`{sequence_name(n)}`") for n in (0, 1, 31, 32, 100, LAST)]
    rows.append(("0, in 13 characters", f"`{sequence_name(0, LONG)}`"))
    return table(("number", "name"), rows)


def _header() -> str:
    types = ", ".join(f"{kind.value} {kind.name.lower().replace('_', ' ')}" for kind in FileType)
    rows = [
        (0, len(MAGIC), f"`{MAGIC.hex(' ')}`"),
        (12, 24, "name of the writer in UTF-8, spaces behind it"),
        (36, 1, "spec version"),
        (37, 1, f"file type: {types}"),
        (38, 1, "compression: 0 none, 1 zstd"),
        (39, "", "the payload"),
    ]
    return table(("offset", "bytes", "content"), rows)


def _options(section: Section, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of every option, sections of sections included."""
    for name, option in options(type(section)).items():
        value = getattr(section, name)
        if option.doc:
            words = option.default_in_words or f"`{value}`"
            yield f"`{prefix}{name}`", words, option.doc
        if isinstance(value, Section):
            yield from _options(value, f"{prefix}{name}.")
        elif not option.doc:
            raise SystemExit(f"the option {prefix}{name} has no doc")


FACTS: dict[str, Callable[[], str]] = {
    "options": lambda: table(
        ("option", "default", "meaning"),
        _options(RepositoryConfig(packing=PackingConfig()).resolved()),
    ),
    "header": _header,
    "snapshot-tables": lambda: _tables(
        schema.SNAPSHOT,
        schema.NODE_SNAPSHOT,
        schema.ARRAY_NODE_DATA,
        schema.DIMENSION_NAME,
        schema.DIMENSION_SHAPE_V2,
        schema.MANIFEST_REF,
        schema.MANIFEST_FILE_INFO_V2,
        schema.METADATA_ITEM,
    ),
    "manifest-tables": lambda: _tables(schema.MANIFEST, schema.ARRAY_MANIFEST, schema.CHUNK_REF),
    "log-tables": lambda: _tables(
        schema.TRANSACTION_LOG,
        schema.ARRAY_UPDATED_CHUNKS,
        schema.CHUNK_INDICES,
        schema.MOVE_OPERATION,
    ),
    "repo-tables": lambda: _tables(
        schema.REPO, schema.REF, schema.SNAPSHOT_INFO, schema.REPO_STATUS, schema.UPDATE
    ),
    "update-types": lambda: table(
        ("tag", "table", "fields"),
        (
            (tag, f"`{spec.name}`", ", ".join(f"`{name}`" for name in spec.fields) or "none")
            for tag, spec in schema.UPDATE_TYPES.items()
        ),
    ),
    "structure-columns": lambda: _columns(structure_schema(Profile.strict)),
    "manifest-columns": lambda: _columns(manifest_schema(Profile.strict)),
    "wide-structure-columns": lambda: _columns(structure_schema(Profile.wide)),
    "wide-manifest-columns": lambda: _columns(manifest_schema(Profile.wide)),
    "attributes-columns": lambda: _columns(attributes_schema()),
    "numbered-names": _names,
    "sequence-names": _sequence,
}


def with_facts(text: str) -> str:
    """A page with every block made anew."""

    def made(block: re.Match[str]) -> str:
        return f"{block[1]}{FACTS[block['name']]()}\n{block[3]}"

    return _BLOCK.sub(made, text)


def main() -> int:
    """Rewrite the pages, or say which are stale."""
    stale = []
    for page in sorted(PAGES.rglob("*.md")):
        text = page.read_text()
        if with_facts(text) != text:
            stale.append(page)
            if "--check" not in sys.argv:
                page.write_text(with_facts(text))
    if stale and "--check" in sys.argv:
        names = ", ".join(page.name for page in stale)
        print(f"stale facts in {names}: run python tools/make_format_pages.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
