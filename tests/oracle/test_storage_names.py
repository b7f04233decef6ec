"""Keys with odd characters: official icechunk and icefloe find each other's files.

Spec version 1 puts the names of branches and tags into keys. In a directory official code
percent-encodes some characters, in a bucket none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

icechunk = pytest.importorskip("icechunk", minversion="2")

from icefloe.storage.driver import Driver  # noqa: E402
from icefloe.storage.run import run_blocking  # noqa: E402
from icefloe.storage.spec import local_filesystem_storage  # noqa: E402 - see above
from tests.servers import BUCKET, S3Server  # noqa: E402

EVERYWHERE = ["ä", "日本", "a b", "a%20b", "x~y", "a#1", "q?x", "a+b", "a\\b", ".", ".."]
IN_DIRECTORIES = [
    *("ä", "日本", "a b", "a%b", "a%20b", "x~y", "a#b", "q?x", "[x]", "a*b", "a+b", "a\\b", "~"),
    *("<>", "a|b", "a^b", "{x}", "a`b", 'a"b', "a:b", "a;b", "a=b", "a@b", "a&b", "a$b", "a!b"),
    *("a'b", "(x)", "a,b", ".", "..", ".a", "a..b", "a#1", "\x01", "\x7f", "-_"),
]
"""Control characters are among them, which the S3 client does not let through."""


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Driver]:
    """The same empty place, as official storage and as our driver."""
    if request.param == "local":
        ours = local_filesystem_storage(tmp_path / "repo")
        return icechunk.local_filesystem_storage(str(tmp_path / "repo")), ours.driver(blocking=True)
    server: S3Server = request.getfixturevalue("s3_server")
    theirs = icechunk.s3_storage(
        bucket=BUCKET,
        prefix=tmp_path.name,
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        allow_http=True,
        force_path_style=True,
        access_key_id="test",
        secret_access_key="test",
    )
    return theirs, server.storage(tmp_path.name).driver(blocking=True)


def test_odd_names_are_spelled_alike(place: tuple[Any, Driver]) -> None:
    storage, driver = place
    names = IN_DIRECTORIES if driver.is_local else EVERYWHERE
    repo = icechunk.Repository.create(storage, spec_version=1)
    snapshot = repo.lookup_branch("main")
    for name in names:
        repo.create_tag(name, snapshot)

    keys = {info.key for info in run_blocking(driver.list("refs/tag."))}
    assert keys == {f"refs/tag.{name}/ref.json" for name in names}
    text = bytes(run_blocking(driver.get("refs/branch.main/ref.json")))
    for name in names:
        assert bytes(run_blocking(driver.get(f"refs/tag.{name}/ref.json"))) == text
        run_blocking(driver.put_if(f"refs/tag.our {name}/ref.json", text, previous=None))

    reopened = icechunk.Repository.open(storage)
    assert [name for name in names if reopened.lookup_tag(f"our {name}") != snapshot] == []


def test_official_code_reads_what_was_written_under_a_condition(place: tuple[Any, Driver]) -> None:
    """Our write ids and locks lie next to the repository and disturb nobody."""
    storage, driver = place
    icechunk.Repository.create(storage)
    data, version = run_blocking(driver.get_versioned("repo"))
    run_blocking(driver.put_if("repo", data, previous=version))
    repo = icechunk.Repository.open(storage)
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    session.commit("on top of ours")
    assert len(list(repo.ancestry(branch="main"))) == 2
