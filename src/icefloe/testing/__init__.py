"""A test kit for programs that use icefloe, and for icefloe itself. Nothing in icefloe imports it.

`faults` has storage that fails on command, `schedule` runs operations through every order of
their storage calls.
"""
