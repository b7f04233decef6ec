"""Spec version 1: refs are small files, and a snapshot file has the id of its parent."""
