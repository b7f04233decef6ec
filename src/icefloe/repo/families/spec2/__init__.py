"""Spec version 2: the `repo` object holds the refs, the history and the configuration."""
