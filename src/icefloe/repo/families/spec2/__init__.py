"""Spec version 2: the `repo` object has the refs, the history and the configuration."""
