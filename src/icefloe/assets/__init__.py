"""Typed access to stored files: from ids to decoded objects, with caches."""
