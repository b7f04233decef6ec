"""Writing from many tasks into one session."""
