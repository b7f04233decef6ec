"""The formats of sources: `opening` finds the format, the others describe and read it."""
