"""Hooks of the documentation site (mkdocs.yml).

The navigation is what docs/README.md lists, section by section, so that a new page is added in one
place. Links that leave docs/ lead to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
_HEADING = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)]+)\)")
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#:]+)(#[^)]*)?\)")


def sections(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The pages of an index, by section: title and file of each row that links into docs/."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for line in text.splitlines():
        heading, row = _HEADING.match(line), _ROW.match(line)
        if heading:
            found.append((heading[1], []))
        elif row and found and not row[2].startswith("../"):
            found[-1][1].append((row[1], row[2]))
    return [(title, pages) for title, pages in found if pages]


def on_config(config: Any) -> Any:
    """Make the navigation."""
    index = (DOCS / "README.md").read_text()
    config["nav"] = [{"Start": "README.md"}] + [
        {title: [{name: file} for name, file in pages]} for title, pages in sections(index)
    ]
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links to files outside docs/ at the repository."""

    def absolute(link: re.Match[str]) -> str:
        folder = posixpath.dirname(page.file.src_uri)
        target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        if not (DOCS.parent / target).exists():
            raise ValueError(f"{page.file.src_uri} links to {link[2]}, which does not exist")
        return f"{link[1]}{config['extra']['social'][0]['link']}/blob/main/{target}{link[3] or ''})"

    return _LINK.sub(absolute, markdown)
