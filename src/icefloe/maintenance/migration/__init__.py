"""A repository of any generation becomes one of spec version 2 or 1, history and refs included."""
