"""Flatbuffers read and written with numpy, many tables at once."""
