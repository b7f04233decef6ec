"""The kinds of repository, one folder each; the kind is chosen when a repository is opened."""
