"""Spec version 1: refs are small files, a snapshot knows its parent."""
