"""Scanning HDF5, NetCDF and Zarr sources into descriptions and tables of references."""
