"""Starting Spark so that it works at once."""
