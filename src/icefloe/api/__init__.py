"""The classes people touch. Each method is a docstring and a call of an operation."""
