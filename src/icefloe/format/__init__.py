"""Bytes to values and back. No I/O, clock, randomness or logging in here."""
