"""Doing what a plan says: scan, fill, commit. Engines do the work.

- `request`, `destination`: the arguments, and where data goes
- `run_ingest`: the loop, and the engine of one process
- `transfer`, `insertion`: one piece of a plan; late data in the middle of a dimension
"""
