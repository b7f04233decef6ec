"""Repositories whose branches are numbered files: documents 000 and 004, and releases to 0.1.3."""
