"""Help, completion, names for repositories, the original's spellings, and first mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import icefloe
from icefloe.cli.aliases import aliases_path
from icefloe.cli.program import SECTIONS, program
from tests.cli.calling import call, here, told
from tests.servers import S3Server

OFFICIAL = Path(sys.executable).with_name("icechunk")
ALIASES = """\
repos:
  cloud: !S3
    location: {bucket: buck, prefix: pre/fix}
    object_store_config: {region: us-west-2, endpoint_url: null, anonymous: false}
    credentials: {s3_credential_type: from_env}
    config: {}
  mine: !LocalFileSystem
    path: PLACE
    config: {}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configuration files of this test only."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def test_help_has_every_command_once() -> None:
    context: Any = program.make_context("icefloe", ["--help"], resilient_parsing=True)
    listed = [name for commands in SECTIONS.values() for name in commands]
    assert sorted(listed) == sorted(program.list_commands(context))
    text = here("--help").stdout
    for name in listed:
        assert f"  {name} " in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_every_command_has_help() -> None:
    context: Any = program.make_context("icefloe", ["--help"], resilient_parsing=True)
    for name in program.list_commands(context):
        done = here(name, "--help")
        assert done.returncode == 0, name
        assert done.stdout.startswith(f"Usage: icefloe {name}"), name


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete"), ("zsh", "compdef"), ("fish", "")]
)
def test_a_shell_learns_to_complete(shell: str, word: str) -> None:
    done = here("completion", shell)
    assert done.returncode == 0
    assert f"_ICEFLOE_COMPLETE={shell}_complete" in done.stdout
    assert word in done.stdout
    assert here("completion", "tcsh").returncode == 2


def test_words_are_completed() -> None:
    done = call(_ICEFLOE_COMPLETE="bash_complete", COMP_WORDS="icefloe rew", COMP_CWORD="1")
    assert done.stdout.splitlines() == ["plain,rewrite-manifests"]


def test_names_of_the_original_are_understood(place: Path) -> None:
    aliases_path().parent.mkdir(parents=True)
    aliases_path().write_text(ALIASES.replace("PLACE", str(place)))
    assert told("config", "list") == {
        "cloud": "s3://buck/pre/fix?region=us-west-2",
        "mine": str(place),
    }
    assert told("log", "mine@v1", "-n", "1")[0]["message"] == "first"
    aliases_path().write_text("repos: [1]")
    assert here("log", "mine").returncode == 6
    aliases_path().write_text("repos: {a: !Nothing {}}")
    assert "Nothing" in here("config", "list").stderr


@pytest.mark.skipif(not OFFICIAL.exists(), reason="official's command line is not installed")
def test_the_original_understands_names_that_are_added(place: Path) -> None:
    assert here("config", "list").stdout.startswith("no names in")
    added = told("config", "add", "mine", place)
    assert added == {"name": "mine", "url": str(place)}
    assert here("config", "add", "mine", place).returncode == 4
    told("config", "add", "mine", place, "--force")
    told("config", "add", "cloud", "s3://buck/pre?region=us-west-2")
    done = subprocess.run(
        [OFFICIAL, "branch", "list", "mine"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == f"{told('branch', 'list', 'mine')['main']}  main\n"
    assert set(yaml.safe_load(aliases_path().read_text().replace("!", "#"))["repos"]) == {
        "mine",
        "cloud",
    }
    assert "can have a name" in here("config", "add", "web", "https://host/path").stderr


def test_spellings_of_the_original(tmp_path: Path) -> None:
    told("repo", "create", tmp_path / "new")
    told("branch", "create", tmp_path / "new", "dev", "main")
    told("tag", "create", tmp_path / "new", "v0", "dev")
    shown = here("ancestry", tmp_path / "new", "v0", "-n", "1").stdout.splitlines()
    assert shown[0].startswith("Snapshot: ")
    assert shown[3] == "  Repository initialized"
    assert here("branch", "create", f"{tmp_path}/new@main", "b", "main").returncode == 2
    assert here("ancestry", tmp_path / "new", "nope").returncode == 3
    assert here("config", tmp_path / "new").stdout.startswith("no configuration is saved")
    assert here("config", "show", tmp_path / "new").stdout.startswith("no configuration is saved")


def test_a_bucket_that_is_not_there(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    query = f"?region=us-east-1&endpoint_url={s3_server.endpoint_url}&allow_http=true"
    done = here("log", f"s3://no-such-bucket/weather{query}&force_path_style=true")
    assert done.returncode in (3, 5)
    assert "bucket" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_profile_that_is_misspelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text("[profile research]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "reserch")
    done = here("log", "s3://bucket/weather?region=us-east-1")
    assert done.returncode in (2, 5)
    assert "reserch" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_its_extra_the_program_names_it_and_exits_with_8() -> None:
    program = (
        "import sys, importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'click' else real(name, *a)\n"
        "from icefloe.cli import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 8
    assert "needs click" in done.stderr
    assert "pip install 'icefloe[cli]'" in done.stderr


def test_a_missing_package_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [name for name in sys.modules if name.startswith("icefloe.spark")]:
        monkeypatch.delitem(sys.modules, name)
    done = here("sql", place, "SELECT 1", "--engine", "spark")
    assert done.returncode == 8
    assert 'pip install "icefloe[spark]"' in done.stderr


def test_a_node_that_is_not_there(place: Path) -> None:
    for command, path in (("tree", "surface/t2n"), ("chunks", "t2m")):
        done = here(command, place, path)
        assert done.returncode == 3
        assert "Did you mean /surface/t2m" in done.stderr
    assert "`tree` lists all nodes" in here("chunks", place, "precipitation").stderr


def test_a_repository_is_made_once(place: Path) -> None:
    done = here("init", place)
    assert done.returncode == 2
    assert f"there is a repository already: icefloe info {place}" in done.stderr


@pytest.mark.parametrize("name", ["branch", "tag"])
def test_refs_are_listed_without_saying_so(place: Path, name: str) -> None:
    assert here(name, place).stdout == here(name, "list", place).stdout != ""
    assert here(name, place, "--json").stdout == here(name, "list", place, "--json").stdout
    assert "No such command 'creat'" in here(name, "creat", place, "new").stderr


def test_ingest_with_its_arguments_the_wrong_way_round(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.nc"
    file.write_bytes(b"CDF")
    with pytest.raises(icefloe.InvalidInputError, match=r"a file.*ingest\(sources, repository\)"):
        icefloe.ingest(place, file)
    for command in ("ingest", "import"):
        done = here(command, place, file)
        assert done.returncode == 2
        assert "is a file" in done.stderr
