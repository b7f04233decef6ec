"""What the operations log is made of."""

from icefloe.api.values import Update, UpdateType
from icefloe.maintenance.summary import GCSummary

__all__ = ["GCSummary", "Update", "UpdateType"]
