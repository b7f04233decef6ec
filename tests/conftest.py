"""What holds for every test: how hard the property tests try, and the servers tests share.

`HYPOTHESIS_PROFILE` chooses between `default`, `ci` and `nightly`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers import S3Server, s3_server_process

# No deadlines anywhere: on a shared machine they measure the neighbours, and a real hang is
# ended by pytest-timeout.
settings.register_profile("default", max_examples=50, deadline=None)
# The same inputs on every run, so that a red result always belongs to the change at hand.
settings.register_profile(
    "ci", max_examples=50, deadline=None, derandomize=True, database=None, print_blob=True
)
# New inputs every night; the blob lets a failure be repeated elsewhere.
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell starts background jobs with this signal ignored, and children of the tests would inherit
# that. Some tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options have to be known before the folder that uses them is looked into."""
    parser.addoption(
        "--fuzz-cases",
        type=int,
        default=5_000,
        help="how many damaged files of each type tests/fuzz tries",
    )
    parser.addoption(
        "--differential-programs",
        type=int,
        default=48,
        help="how many programs tests/differential runs on official icechunk and on icefloe",
    )
    parser.addoption(
        "--differential-seed",
        type=int,
        default=0,
        help="the seed of the first of them; the others follow",
    )


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server in a process of its own, one per test process; `storage()` makes a place."""
    with s3_server_process() as server:
        yield server
