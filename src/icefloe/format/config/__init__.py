"""`RepositoryConfig` as bytes, in both spec versions."""
