"""What a transaction means: edits, splits and new files, decided without touching storage."""
