"""What was measured with: the machine and the versions, without names of hosts or users."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

PACKAGES = ("icechunk", "icefloe", "zarr", "numpy", "pyarrow", "obstore", "pyspark", "xarray")


def about() -> dict[str, str]:
    """By what a reader asks for."""
    return {
        "Machine": f"{os.cpu_count()} cores of {_processor()}, {_memory_gb()} GB, "
        f"{platform.system()} on {platform.machine()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "Versions": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "Last measured": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "an unknown processor"


def _memory_gb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
