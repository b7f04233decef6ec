"""Expiration, garbage collection, statistics, inspection, migration."""
