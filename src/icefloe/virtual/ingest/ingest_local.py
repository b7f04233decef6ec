"""`ingest_local`: an ingest in one process, by the loop of `run_ingest.py`."""

from __future__ import annotations

from typing import Unpack

from icefloe.api.repository import Repository
from icefloe.virtual.ingest.destination import Destination
from icefloe.virtual.ingest.local_engine import LocalEngine
from icefloe.virtual.ingest.report import IngestReport
from icefloe.virtual.ingest.request import IngestArguments, make_request
from icefloe.virtual.ingest.run_ingest import run_ingest
from icefloe.virtual.places.globs import Sources


def ingest_local(
    sources: Sources, repository: Repository, **arguments: Unpack[IngestArguments]
) -> IngestReport:
    """Bring NetCDF, HDF5, GRIB, Zarr and kerchunk sources into a group, in one commit.

    The arguments are those of `icefloe.spark.ingest`, and so is the result; the work is done here.
    """
    request = make_request(sources, Destination.of(repository), arguments)
    return run_ingest(LocalEngine(request.access), request)
