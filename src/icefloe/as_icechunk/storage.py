"""Where repositories and virtual chunks are."""

from icefloe.api.named_numbers import ChunkType
from icefloe.as_icechunk.new_storage import put_on_class
from icefloe.config import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.storage.constructors.cloud import azure_storage, gcs_storage
from icefloe.storage.constructors.common import (
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    redirect_storage,
)
from icefloe.storage.constructors.s3 import (
    hf_storage,
    r2_storage,
    s3_object_store_storage,
    s3_storage,
    tigris_storage,
)
from icefloe.storage.spec import Storage

__all__ = [
    "AnyObjectStoreConfig",
    "ChecksumAlgorithm",
    "ChunkType",
    "ObjectStoreConfig",
    "S3Options",
    "Storage",
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "azure_storage",
    "azure_store",
    "gcs_storage",
    "gcs_store",
    "hf_storage",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "local_filesystem_storage",
    "local_filesystem_store",
    "r2_storage",
    "redirect_storage",
    "s3_object_store_storage",
    "s3_storage",
    "s3_store",
    "tigris_storage",
]

put_on_class()
