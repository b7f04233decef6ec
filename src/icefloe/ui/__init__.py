"""The web page of `icefloe ui`: a repository to look at in a browser, read only.

`serve` starts it. A server answers GET requests from one opened repository: `web_server` checks
requests, `routes` has the answers by address, the other modules make them. The page itself is in
`static`: HTML, style sheets and scripts without dependencies.
"""

from __future__ import annotations

from icefloe.ui.web_server import PageServer, page_server

__all__ = ["PageServer", "page_server"]
