"""What a scan finds in a source, the same for every format: pure data."""
