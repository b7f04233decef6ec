"""The Zarr store over a session.

- `zarr_store`, `operations`: the store; keys, nodes and chunks
- `pipeline`, `codecs`: Zarr's codec pipeline for whole selections
- `virtual`: virtual references, set as columns
"""
