"""Clients of object stores: making them, calling them, their errors."""
