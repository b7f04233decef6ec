"""Reading parts of objects that are not ours: virtual chunks."""
