"""Bringing NetCDF, HDF5, GRIB, Zarr and sets of references into repositories, as copies or not.

`scan` describes one source, `plan_ingest` decides what many of them become, `ingest_local` does
it in one process; `icefloe.spark` does it on many.
"""

from icefloe.virtual.access import SourceAccess
from icefloe.virtual.arrangement import Existing
from icefloe.virtual.description import (
    GroupDescription,
    SourceDescription,
    SourceError,
    SourceVersion,
    VariableDescription,
)
from icefloe.virtual.formats import open_native, scan
from icefloe.virtual.globs import list_sources
from icefloe.virtual.ingest import ingest_local
from icefloe.virtual.plan import ArrayPlan, IngestOptions, IngestPlan, Problem
from icefloe.virtual.planning import plan_ingest
from icefloe.virtual.report import IngestReport

__all__ = [
    "ArrayPlan",
    "Existing",
    "GroupDescription",
    "IngestOptions",
    "IngestPlan",
    "IngestReport",
    "Problem",
    "SourceAccess",
    "SourceDescription",
    "SourceError",
    "SourceVersion",
    "VariableDescription",
    "ingest_local",
    "list_sources",
    "open_native",
    "plan_ingest",
    "scan",
]
