"""What a bounded cache keeps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.assets.cache import BoundedCache

puts = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6), st.integers(0, 60)), max_size=30)


@given(puts)
def test_neither_weight_nor_bytes_go_over_and_the_latest_stay(
    items: list[tuple[int, int, int]],
) -> None:
    cache: BoundedCache[int] = BoundedCache(10, max_bytes=100)
    model: dict[int, tuple[int, int]] = {}
    for key, weight, nbytes in items:
        cache.put(key, key * 2, weight, nbytes)
        model.pop(key, None)
        model[key] = weight, nbytes
        while sum(w for w, _ in model.values()) > 10 or sum(b for _, b in model.values()) > 100:
            model.pop(next(iter(model)))
        assert [cache.get(each) for each in model] == [each * 2 for each in model]
        assert len(cache) == len(model)
        assert cache.nbytes == sum(nbytes for _, nbytes in model.values())


def test_what_is_too_large_alone_does_not_push_others_out() -> None:
    cache: BoundedCache[str] = BoundedCache(10, max_bytes=100)
    cache.put("a", "A", 1, 1)
    cache.put("heavy", "H", 11, 1)
    cache.put("long", "L", 1, 101)
    assert cache.get("a") == "A"
    assert "heavy" not in cache
    assert "long" not in cache


def test_dropping_makes_room() -> None:
    cache: BoundedCache[str] = BoundedCache(2)
    cache.put("a", "A", 1)
    cache.put("b", "B", 1)
    cache.drop(["a", "never there"])
    cache.put("c", "C", 1)
    assert cache.get("a") is None
    assert (cache.get("b"), cache.get("c")) == ("B", "C")


FORKED_WHILE_LOCKED = """
import os, signal
from icefloe.assets.cache import BoundedCache

cache = BoundedCache(10)
cache.put("a", 1, 1)
cache._lock.acquire()  # what a thread that is at work here holds at that moment
child = os.fork()
if child == 0:
    signal.alarm(20)
    assert cache.get("a") is None
    cache.put("b", 2, 1)
    os._exit(0 if cache.get("b") == 2 else 1)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_does_not_wait_for_a_thread_it_does_not_have() -> None:
    program = [sys.executable, "-c", FORKED_WHILE_LOCKED]
    assert subprocess.run(program, timeout=300, check=False).returncode == 0
