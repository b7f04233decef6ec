"""Where a repository can be: plain descriptions."""
