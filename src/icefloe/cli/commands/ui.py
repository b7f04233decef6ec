"""`ui`: a repository as a web page on this machine."""

from __future__ import annotations

import webbrowser
from threading import Thread

import click

from icefloe.cli.common import Target, repository_argument
from icefloe.ui.web_server import is_loopback, page_server


@click.command()
@repository_argument
@click.option("--port", type=click.IntRange(0, 65535), default=8765, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", help="Listen on this address instead.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
def ui(target: Target, port: int, host: str, no_browser: bool) -> None:
    """Look at a repository in a browser: history, arrays, chunks, differences.

    The page is read only and needs no network. It can be reached from this machine only, unless
    --host names another address.
    """
    try:
        server = page_server(target.repo, name=target.address.url, host=host, port=port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {error.strerror}. "
            "Choose another one with --port, or --port 0 for any."
        ) from None
    address = (
        server.url if target.address.ref is None else f"{server.url}#/history/{target.snapshot_id}"
    )
    if not is_loopback(host):
        click.echo(f"Anyone who can reach {host} can read this repository.", err=True)
    click.echo(f"{target.address.url} is at {address}\nCtrl-C ends it.")
    if not no_browser:
        Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        server.server_close()
