"""Bringing NetCDF, HDF5, GRIB, Zarr and sets of references into repositories, as copies or not.

`scan` describes one source, `plan_ingest` decides what many of them become, `ingest_local` does
it in one process; `icefloe.spark` does it on many.
"""

from icefloe.virtual.formats.opening import open_native, scan
from icefloe.virtual.ingest.run_ingest import IngestReport, ingest_local
from icefloe.virtual.model.description import (
    GroupDescription,
    SourceDescription,
    SourceError,
    SourceVersion,
    VariableDescription,
)
from icefloe.virtual.planning.file_boxes import Existing
from icefloe.virtual.planning.plan import ArrayPlan, IngestOptions, IngestPlan, Problem
from icefloe.virtual.planning.planner import plan_ingest
from icefloe.virtual.sources import SourceAccess, list_sources

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
