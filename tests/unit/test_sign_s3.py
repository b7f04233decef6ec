"""Signatures of S3 requests, against the example that Amazon's documentation works through."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import icefloe
from icefloe.storage.locations import S3Location
from icefloe.storage.signing import s3_signer, signed_headers

KEYS = {
    "access_key_id": "AKIAIOSFODNN7EXAMPLE",
    "secret_access_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}


def test_the_documented_example() -> None:
    headers = signed_headers(
        KEYS,
        "us-east-1",
        "examplebucket.s3.amazonaws.com",
        "/test.txt",
        datetime(2013, 5, 24, tzinfo=UTC),
        {"range": "bytes=0-9"},
    )
    assert headers["Authorization"].endswith(
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_anonymous_requests_are_not_signed() -> None:
    location = S3Location("b", "", icefloe.s3_anonymous_credentials(), requester_pays=True)
    assert s3_signer(location)("h", "/p") == {"x-amz-request-payer": "requester"}


def test_keys_are_asked_for_again_before_they_end() -> None:
    asked = []

    def get() -> icefloe.S3StaticCredentials:
        asked.append(datetime.now(UTC))
        ends = timedelta(seconds=30 if len(asked) == 1 else 3600)
        return icefloe.S3StaticCredentials(f"K{len(asked)}", "s", "token", asked[-1] + ends)

    sign = s3_signer(S3Location("b", "", icefloe.s3_refreshable_credentials(get)))
    signed = [sign("h", "/p") for _ in range(4)]
    assert len(asked) == 2
    assert "Credential=K2/" in signed[-1]["Authorization"]
    assert signed[-1]["x-amz-security-token"] == "token"
