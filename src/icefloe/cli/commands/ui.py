"""`ui`: a repository as a web page on this machine."""

from __future__ import annotations

import webbrowser
from threading import Thread
from typing import Any

import click

from icefloe.cli.common import REPOSITORY, Target, allow_virtual_option
from icefloe.ui.web_server import is_loopback, page_server


@click.command(params=[REPOSITORY])
@click.option("--port", type=click.IntRange(0, 65535), default=8765, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", help="Listen on this address instead.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
@allow_virtual_option
def ui(target: Target, port: int, host: str, no_browser: bool, allowed: dict[str, Any]) -> None:
    """Look at a repository in a browser: history, arrays, chunks, differences.

    The page is read only and needs no network. It can be reached from this machine only, unless
    --host names another address.
    """
    view = "" if target.address.ref is None else f"#/history?snapshot={target.snapshot_id}"
    repo = target.repo_with(allowed)
    try:
        server = page_server(repo, name=target.address.url, host=host, port=port)
    except (OSError, TypeError) as error:  # a host that is no text is a TypeError
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {getattr(error, 'strerror', None) or error}. "
            "Choose another one with --port, or --port 0 for any."
        ) from None
    if not is_loopback(host):
        click.echo(f"Anyone who can reach {host} can read this repository.", err=True)
    click.echo(f"{target.address.url} is at {server.url}{view}\nCtrl-C ends it.")
    if not no_browser:
        Thread(target=webbrowser.open, args=(server.url + view,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        server.server_close()
