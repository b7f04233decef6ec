"""Doing what a plan says: scan, fill, commit. Engines do the work."""
