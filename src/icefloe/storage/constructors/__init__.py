"""The functions people call to say where a repository is."""
