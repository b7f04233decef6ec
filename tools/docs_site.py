"""Hooks of the documentation site (mkdocs.yml).

The navigation is what docs/README.md lists, section by section, so that a new page is added in one
place. Documents of the top folder that pages link to are pages of the site, too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent.parent / "docs"
_HEADING = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)]+)\)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)(#[^)]*)?\)")
TOP = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


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


def on_files(files: Any, *, config: Any) -> Any:
    """Add the documents of the top folder."""
    for name in TOP:
        text = (DOCS.parent / name).read_text()
        files.append(File.generated(config, f"project/{name}", content=_LINK.sub(_inside, text)))
    return files


def _inside(link: re.Match[str]) -> str:
    """A link of a document of the top folder, as it is in the folder `project` of the site."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if target in TOP or ":" in target:
        return link[0]
    if target.startswith("docs/"):
        return f"[{text}](../{target.removeprefix('docs/')}{anchor})"
    if not (DOCS.parent / target).exists():
        raise ValueError(f"a document of the top folder links to {target}, which does not exist")
    return text


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point links from docs/ to documents of the top folder at their pages."""

    def to_page(link: re.Match[str]) -> str:
        folder = posixpath.dirname(page.file.src_uri)
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if not target.startswith("../"):
            return link[0]
        name = target.removeprefix("../")
        if name not in TOP:
            raise ValueError(f"{page.file.src_uri} links to {link[2]}, which is not on the site")
        up = posixpath.relpath(f"project/{name}", folder or ".")
        return f"[{link[1]}]({up}{link[3] or ''})"

    return _LINK.sub(to_page, markdown)
