"""The generations of the format before spec version 1: their bytes, without any I/O."""
