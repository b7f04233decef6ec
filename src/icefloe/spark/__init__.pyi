# The public names. Made by tools/make_stub.py from __init__.py: do not edit.
from icefloe.geometry import Region as Region
from icefloe.spark import maintenance as maintenance
from icefloe.spark.dataset_writer import DatasetReport as DatasetReport
from icefloe.spark.dataset_writer import WriteReport as WriteReport
from icefloe.spark.dataset_writer import write_dataset as write_dataset
from icefloe.spark.dataset_writer import write_regions as write_regions
from icefloe.spark.datasets import BlocksReport as BlocksReport
from icefloe.spark.datasets import SparkDataset as SparkDataset
from icefloe.spark.datasets import open_dataset as open_dataset
from icefloe.spark.ingest_engine import ingest as ingest
from icefloe.spark.ingest_engine import run_recipe as run_recipe
from icefloe.spark.maintenance.copies import migrate_repository as migrate_repository
from icefloe.spark.pyramids import pyramid as pyramid
from icefloe.spark.readers import Attached as Attached
from icefloe.spark.readers import attach as attach
from icefloe.spark.readers import read as read
from icefloe.spark.readers import table as table
from icefloe.spark.refreshing import RefreshReport as RefreshReport
from icefloe.spark.refreshing import refresh as refresh
from icefloe.spark.start import session as session
from icefloe.spark.table_writer import TableReport as TableReport
from icefloe.spark.table_writer import write_stream as write_stream
from icefloe.spark.table_writer import write_table as write_table
from icefloe.virtual.ingest.request import load_recipe as load_recipe
from icefloe.virtual.ingest.run_ingest import IngestReport as IngestReport

__all__: list[str]
NAMES_OF: dict[str, tuple[str, ...]]
