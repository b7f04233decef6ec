"""Repositories with numbered branch files: document 000, and Icechunk to 0.1.3."""
