"""Columns that the files of the format are made of: bytes, texts, chunk indices."""
