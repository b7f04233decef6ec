"""A test kit for programs that use icefloe, and for icefloe itself. Nothing in icefloe imports it.

`faults` has storage that fails on command, `latency` one that answers late, `schedule` runs
operations through every order of their storage calls, `simulate` a storage with time, faults and
delays for worlds of clients.
"""
