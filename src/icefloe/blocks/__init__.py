"""Computation on labelled blocks: lazy datasets whose blocks are xarray Datasets with coordinates.

`layout` says what a dataset looks like and how it is cut into blocks. `expressions` are lazy
datasets: a source, a selection, a function of blocks. `stages` are the two that move data between
blocks, rechunking and reduction. `plan` turns an expression into maps and shuffles, which an engine
runs: its own in this process, `icefloe.spark.datasets` on Spark.
"""
