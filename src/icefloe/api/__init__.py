"""The public classes. Each method is a docstring and a call of an operation."""
