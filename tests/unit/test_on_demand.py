"""Modules that are imported when they are used, without collections of garbage on the way."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icefloe import on_demand as modules
from icefloe.on_demand import import_quickly, on_demand, start_with


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a module that says whether collections were on while it was imported."""
    (tmp_path / "told_icefloe.py").write_text("import gc\nwas_on = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "told_icefloe"
    sys.modules.pop("told_icefloe", None)
    gc.enable()


def test_collections_wait_for_an_import_and_go_on_afterwards(name: str) -> None:
    assert not import_quickly(name).was_on
    assert gc.isenabled()
    assert not gc.get_freeze_count()
    assert import_quickly(name) is sys.modules[name]


def test_collections_that_are_off_stay_off(name: str) -> None:
    gc.disable()
    import_quickly(name)
    assert not gc.isenabled()


def test_collections_go_on_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_quickly("no_such_module_of_icefloe")
    assert gc.isenabled()


def test_objects_that_the_program_has_frozen_stay_frozen(name: str) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        import_quickly(name)
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()


def test_a_package_is_started_before_its_first_import(name: str) -> None:
    started: list[bool] = []
    start_with(name, lambda: started.append(name in sys.modules))
    module = on_demand(name)
    assert started == []
    assert not module.was_on
    assert started == [False]
    assert name not in modules._STARTS
