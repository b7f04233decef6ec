"""The file formats that sources have: describing them and reading their values."""
