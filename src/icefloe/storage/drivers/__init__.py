"""What keeps the objects of a repository: memory, a directory, an object store."""
