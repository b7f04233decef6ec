"""Hooks of the documentation site (mkdocs.yml).

The navigation is what docs/README.md lists, section by section, so that a new page is added in one
place, and the search prefers pages by their section. Documents of the top folder that pages link
to are pages of the site, too. A notebook is shown as a page, with its outputs and pictures.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent.parent / "docs"
_HEADING = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)]+)\)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)(#[^)]*)?\)")
_BOOST = {"Getting started": 4.0, "How-to guides": 2.0, "Concepts": 1.0, "Reference": 0.5}
_OTHER_BOOST = 0.25
"""How the search weighs a hit by the section of its page: a guide comes before the format."""
TOP = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "PROVENANCE.md")


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


def index_sections() -> list[tuple[str, list[tuple[str, str]]]]:
    """The sections of docs/README.md."""
    return sections((DOCS / "README.md").read_text())


def on_config(config: Any) -> Any:
    """Make the navigation."""
    config["nav"] = [{"Start": "README.md"}] + [
        {title: [{name: _page_of(file)} for name, file in pages]}
        for title, pages in index_sections()
    ]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the documents of the top folder, and pages of notebooks."""
    for path in sorted(DOCS.glob("*.ipynb")):
        text, pictures = notebook_page(path)
        files.append(File.generated(config, f"{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, name, content=picture))
    for name in TOP:
        text = (DOCS.parent / name).read_text()
        files.append(File.generated(config, f"project/{name}", content=_LINK.sub(_inside, text)))
    return files


def _page_of(file: str) -> str:
    """The page that shows a file of the index."""
    return file.replace(".ipynb", ".md")


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text")})
            if "image/png" in data:
                name = f"images/{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![What the cell above draws]({name})")
            else:
                text = "".join(data["text/plain"]).strip("\n")
                parts.append(f"```text\n{text}\n```")
    download = f"[Download this page as a notebook]({path.name})"
    return "\n\n".join([*parts, download]) + "\n", pictures


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
    """Weigh the page for the search; point links to documents of the top folder at their pages."""
    titles = {_page_of(file): title for title, rows in index_sections() for _, file in rows}
    boost = _BOOST.get(titles.get(page.file.src_uri, ""), _OTHER_BOOST)
    page.meta.setdefault("search", {"boost": boost})

    def to_page(link: re.Match[str]) -> str:
        folder = posixpath.dirname(page.file.src_uri)
        if link[2].endswith(".ipynb") and page.file.src_uri != _page_of(link[2]):
            return f"[{link[1]}]({_page_of(link[2])}{link[3] or ''})"
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if not target.startswith("../"):
            return link[0]
        name = target.removeprefix("../")
        if name not in TOP:
            raise ValueError(f"{page.file.src_uri} links to {link[2]}, which is not on the site")
        up = posixpath.relpath(f"project/{name}", folder or ".")
        return f"[{link[1]}]({up}{link[3] or ''})"

    return _LINK.sub(to_page, markdown)
