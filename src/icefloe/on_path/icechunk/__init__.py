"""Found on PYTHONPATH by processes that one with `icefloe.as_icechunk` installed has started."""

from icefloe.as_icechunk import install

install()
