"""Addresses of services that speak S3 without being Amazon's."""

from __future__ import annotations


def r2_endpoint(account_id: str) -> str:
    """Where the buckets of a Cloudflare account are."""
    return f"https://{account_id}.r2.cloudflarestorage.com"


def tigris_endpoint() -> str:
    """Where Tigris is, wherever you are."""
    return "https://t3.storage.dev"


def hf_endpoint(namespace: str) -> str:
    """Where the buckets of a user or an organisation at Hugging Face are."""
    return f"https://s3.hf.co/{namespace}"
