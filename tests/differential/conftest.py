"""Quiet official code: it logs every opened folder, which would bury a failure's report."""

from __future__ import annotations

import os

os.environ.setdefault("ICECHUNK_LOG", "off")  # read once, when the library is imported
