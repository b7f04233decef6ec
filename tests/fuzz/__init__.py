"""Damaged and hostile files against every decoder."""
