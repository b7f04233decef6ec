"""The kinds of repository there are: one folder each, chosen when a repository is opened."""
