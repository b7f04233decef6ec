"""Arrow without pandas, for a process of the command line.

`pa.array` and `to_numpy` look for pandas when one of them is first called, and import it where it
is installed. That takes 0.2 to 0.3 s of CPU, as long as most commands; their values come from
numpy and from lists, never from pandas.
"""

from __future__ import annotations

import sys
from typing import Any


class _NoPandas:
    """A finder of modules. Its base class is left out, because importing it takes 10 ms."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def start_arrow_alone() -> None:
    """Import Arrow and let it look for pandas while there is none to be found.

    Pandas can be imported afterwards, and Arrow's `to_pandas` then imports it too.
    """
    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        import pyarrow as pa  # noqa: PLC0415 - few commands need it

        pa.array([])
    finally:
        sys.meta_path.remove(hidden)
