"""Migrates a repository of any generation, with history and refs, to spec version 2 or 1."""
