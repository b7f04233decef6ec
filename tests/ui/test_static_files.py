"""The files of the page: all are served, none needs a network, none makes elements from text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import icefloe.ui
from icefloe.ui import PageServer
from tests.ui.asking import ask

STATIC = Path(icefloe.ui.__file__).parent / "static"
FILES = sorted(path.name for path in STATIC.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served(server: PageServer, name: str) -> None:
    reply = ask(server, f"/static/{name}")
    assert reply.status == 200
    assert reply.body == (STATIC / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_server(name: str) -> None:
    named = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", (STATIC / name).read_text()))
    assert named <= {"http://www.w3.org/2000/svg"}  # the name of a language, which is not fetched


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_import_files_of_the_page_and_never_parse_text(name: str) -> None:
    text = (STATIC / name).read_text()
    imported = re.findall(r'from "/static/([\w.]+)"', text)
    assert set(imported) <= set(FILES)
    assert len(imported) == len(re.findall(r"^import ", text, re.MULTILINE))
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    )
    assert re.findall(forbidden, text) == []
