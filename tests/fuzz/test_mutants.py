"""Damaged files by the thousand: each is refused by name, or decodes to something consistent.

`--fuzz-cases` says how many there are of each file type. A failure prints the case; the line of
Python in it runs that case alone.
"""

from __future__ import annotations

import base64
import traceback

import pytest

from tests.fuzz.guard import TooSlowError, limited_memory, limited_time
from tests.fuzz.targets import TARGETS, Target

SHARDS = 8
_MOST_REPORTS = 5
_ENOUGH_TO_COUNT = 500


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_healthy_files_pass_the_same_checks(target: Target) -> None:
    for seed in target.seeds():
        assert target.check(seed.data), f"{seed.name} is not healthy"


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
@pytest.mark.timeout(0)  # the time of each case is limited instead
def test_damaged_files_are_refused_or_consistent(
    target: Target, shard: int, request: pytest.FixtureRequest
) -> None:
    total = request.config.getoption("--fuzz-cases")
    cases = range(total * shard // SHARDS, total * (shard + 1) // SHARDS)
    for seed in target.seeds():  # whatever is loaded on first use is loaded before the limit
        target.check(seed.data)
    reports: dict[str, str] = {}
    decoded = 0
    with limited_time(len(cases)) as start, limited_memory():
        for case in cases:
            start()
            try:
                decoded += target.run(case)
            except (Exception, TooSlowError) as error:  # noqa: BLE001 (all of them are reported)
                place = _place(error)
                reports.setdefault(place, _report(target, case, error))
                if len(reports) == _MOST_REPORTS:
                    break
    if reports:
        pytest.fail("\n\n".join(reports.values()), pytrace=False)
    # Damage that is always refused, or never, would test only half of this.
    if len(cases) >= _ENOUGH_TO_COUNT:
        share = decoded / len(cases)
        assert 0.02 < share < 0.9, f"{decoded} of {len(cases)} damaged files could be decoded"


def _place(error: BaseException) -> str:
    """Failures at the same line are reported once."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {frame.filename}:{frame.lineno}"


def _report(target: Target, case: int, error: BaseException) -> str:
    seed, data = target.damaged(case)
    trace = "".join(traceback.format_exception(error)[-6:])
    return (
        f"{target.name}, case {case}, from seed {seed.name!r}: {trace}"
        f'from tests.fuzz.targets import TARGETS; TARGETS["{target.name}"].run({case})\n'
        f"the damaged file in base64: {base64.b64encode(data).decode()}"
    )
