"""Keys and bytes: object stores, directories and memory, with conditional writes.

Knows nothing about the format. What people call is re-exported by `icefloe`.
"""
