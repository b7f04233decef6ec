"""AWS profiles as people have them: keys, single sign-on, assumed roles, credential processes.

Each runs in a process with a home of its own. The services that hand out keys are small servers;
the S3 server tells which key has signed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.servers import BUCKET, S3Server, serving

SECRET = "hush-hush"
PROGRAM = """
import sys, uuid, icefloe
storage = icefloe.s3_storage(
    bucket=sys.argv[2], prefix=uuid.uuid4().hex, endpoint_url=sys.argv[1], allow_http=True,
    force_path_style=True, from_env=True,
)
try:
    icefloe.Repository.create(storage)
except icefloe.IcefloeError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


class KeyServices(BaseHTTPRequestHandler):
    """The two calls that hand out keys: the portal's of single sign-on, and AssumeRole of STS."""

    def do_GET(self) -> None:
        role = parse_qs(urlsplit(self.path).query)["role_name"][0]
        if self.headers["x-amz-sso_bearer_token"] != "signed-in":
            self.answer(401, {"message": "Session token not found or invalid"})
            return
        ends = (datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000
        keys = {"accessKeyId": f"test-sso-{role}", "secretAccessKey": SECRET, "sessionToken": "t"}
        self.answer(200, {"roleCredentials": {**keys, "expiration": int(ends)}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        role = parse_qs(body)["RoleArn"][0].rpartition("/")[2]
        if role == "forbidden":
            reason = "<Code>AccessDenied</Code><Message>not you</Message>"
            self.answer(403, f"<ErrorResponse><Error>{reason}</Error></ErrorResponse>")
            return
        ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        self.answer(
            200,
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleResult><Credentials><AccessKeyId>test-role-{role}</AccessKeyId>"
            f"<SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>t</SessionToken>"
            f"<Expiration>{ends}</Expiration></Credentials></AssumeRoleResult>"
            "</AssumeRoleResponse>",
        )

    def answer(self, status: int, body: Any) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        pass


class Home:
    """A home directory with the files of the AWS tools."""

    def __init__(self, folder: Path, server: S3Server, services: str) -> None:
        self.folder, self.server, self.services = folder, server, services
        (folder / ".aws" / "sso" / "cache").mkdir(parents=True)

    def write(self, config: str, credentials: str = "") -> None:
        (self.folder / ".aws" / "config").write_text(config)
        if credentials:
            (self.folder / ".aws" / "credentials").write_text(credentials)

    def sign_in(self, token: str) -> None:
        """What `aws sso login` leaves behind."""
        name = hashlib.sha1(b"https://example.awsapps.com/start").hexdigest()
        ends = (datetime.now(UTC) + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
        token_file = self.folder / ".aws" / "sso" / "cache" / f"{name}.json"
        token_file.write_text(json.dumps({"accessToken": token, "expiresAt": ends}))

    def run(
        self, profile: str | None, before: str = "", bucket: str = BUCKET, **variables: str
    ) -> tuple[str, set[str]]:
        """What a program says on stderr, and the new keys that have signed its requests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        kept |= {"HOME": str(self.folder), "AWS_EC2_METADATA_DISABLED": "true"}
        kept |= {
            "AWS_ENDPOINT_URL_SSO": self.services,
            "AWS_ENDPOINT_URL_STS": self.services,
            **({"AWS_PROFILE": profile} if profile else {}),
            **variables,
        }
        before_run = self.server.requests()["keys"]
        done = subprocess.run(
            [sys.executable, "-c", before + PROGRAM, self.server.endpoint_url, bucket],
            env=kept,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        keys = self.server.requests()["keys"]
        assert SECRET not in done.stderr
        assert (done.returncode == 0) == (done.stderr == ""), done.stderr
        return done.stderr.strip(), {
            key for key, count in keys.items() if count > before_run.get(key, 0)
        }


@pytest.fixture
def home(tmp_path: Path, s3_server: S3Server) -> Iterator[Home]:
    pytest.importorskip("botocore", reason="AWS profiles are read with botocore")
    with serving(KeyServices) as services:
        yield Home(tmp_path, s3_server, services)


KEYS = f"""
[default]
aws_access_key_id = test-default
aws_secret_access_key = {SECRET}
[other]
aws_access_key_id = test-other
aws_secret_access_key = {SECRET}%y
"""
SSO = """
[profile people]
sso_start_url = https://example.awsapps.com/start
sso_region = us-east-1
sso_account_id = 123456789012
sso_role_name = reader
region = us-east-1
"""


@pytest.mark.parametrize(("profile", "key"), [(None, "test-default"), ("other", "test-other")])
def test_keys_come_from_the_profile(home: Home, profile: str | None, key: str) -> None:
    home.write("[profile other]\nregion = us-east-1\n", KEYS)
    assert home.run(profile) == ("", {key})


def test_variables_go_before_the_profile(home: Home) -> None:
    home.write("", KEYS)
    variables = {"AWS_ACCESS_KEY_ID": "test-variable", "AWS_SECRET_ACCESS_KEY": SECRET}
    assert home.run("other", **variables) == ("", {"test-variable"})


def test_single_sign_on(home: Home) -> None:
    home.write(SSO)
    home.sign_in("signed-in")
    assert home.run("people") == ("", {"test-sso-reader"})


@pytest.mark.parametrize("token", [None, "long-gone"])
def test_who_has_not_signed_in_is_told_how(home: Home, token: str | None) -> None:
    home.write(SSO)
    if token:
        home.sign_in(token)
    error, keys = home.run("people")
    assert error.startswith("StorageError: the credentials of the AWS profile 'people' cannot be")
    assert "aws sso login --profile people" in error
    assert keys == set()


ROLES = """
[profile fetcher]
role_arn = arn:aws:iam::123456789012:role/fetcher
source_profile = other
region = us-east-1
[profile forbidden]
role_arn = arn:aws:iam::123456789012:role/forbidden
source_profile = other
region = us-east-1
"""


def test_a_role_is_assumed(home: Home) -> None:
    home.write(ROLES, KEYS)
    assert home.run("fetcher") == ("", {"test-role-fetcher"})


def test_a_role_that_must_not_be_assumed(home: Home) -> None:
    home.write(ROLES, KEYS)
    error, keys = home.run("forbidden")
    assert "the AWS profile 'forbidden' cannot be had" in error
    assert "AccessDenied" in error
    assert keys == set()


def test_a_program_hands_out_keys(home: Home) -> None:
    keys = {"Version": 1, "AccessKeyId": "test-program", "SecretAccessKey": SECRET}
    program = home.folder / "keys.py"
    program.write_text(f"print('''{json.dumps(keys)}''')")
    home.write(f"[profile tool]\ncredential_process = {sys.executable} {program}\n")
    assert home.run("tool") == ("", {"test-program"})


@pytest.mark.parametrize("command", ["/no/such/program", f"{sys.executable} -c exit(3)"])
def test_a_program_that_fails_is_named(home: Home, command: str) -> None:
    home.write(f"[profile tool]\ncredential_process = {command}\n")
    error, _ = home.run("tool")
    assert "the credentials of the AWS profile 'tool' cannot be had" in error


def test_a_misspelt_profile_is_named_with_the_known_ones(home: Home) -> None:
    home.write(SSO, KEYS)
    error, keys = home.run("poeple")
    assert error == (
        f"StorageError: there is no AWS profile 'poeple' (AWS_PROFILE) in "
        f"{home.folder}/.aws/config or {home.folder}/.aws/credentials; the profiles there are: "
        "default, other, people"
    )
    assert keys == set()


def test_a_file_that_cannot_be_read_is_named(home: Home) -> None:
    home.write("[profile other\nregion")
    error, _ = home.run("other")
    assert str(home.folder / ".aws" / "config") in error


@pytest.mark.parametrize("profile", [None, "other"])
def test_without_the_package_the_extra_is_named(home: Home, profile: str | None) -> None:
    home.write("", KEYS)
    error, _ = home.run(profile, before="import sys; sys.modules['botocore'] = None\n")
    assert "pip install 'icefloe[aws]'" in error


def test_no_credentials_at_all_says_what_to_do(home: Home) -> None:
    error, _ = home.run(None, AWS_METADATA_ENDPOINT="http://127.0.0.1:9")
    assert "anonymous=True" in error
    assert "AWS_PROFILE" in error
