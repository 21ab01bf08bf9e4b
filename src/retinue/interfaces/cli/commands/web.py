"""`retinue web` and `retinue serve`: the page in the browser, and the same as an API."""

from __future__ import annotations

import asyncio
import signal
import sys
import webbrowser
from typing import Any

import click

from retinue.config.environment import Environment
from retinue.errors import UsageError
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import combine, directory_option, optional_run_argument
from retinue.interfaces.cli.terminal.output import print_line
from retinue.interfaces.web.service import Address, WebService
from retinue.project import existing_file, project_root

server_options = combine(
    directory_option,
    click.option(
        "--port", type=click.IntRange(0, 65_535), default=0, help="The port.  [default: any free]"
    ),
    click.option("--read-only", is_flag=True, help="Accept no commands; only show runs."),
    click.option(
        "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Listen here."
    ),
    click.option(
        "--tls-cert", metavar="FILE", type=click.Path(exists=True), help="Certificate for https."
    ),
    click.option("--tls-key", metavar="FILE", type=click.Path(exists=True), help="Its key."),
    click.option(
        "--unsafe-no-tls", is_flag=True, help="Allow other machines to connect without encryption."
    ),
)


@click.command()
@optional_run_argument
@server_options
@click.option("--no-open", is_flag=True, help="Print the address, and open no browser.")
@async_command
async def web(run: str | None, directory: str, no_open: bool, **options: Any) -> None:
    """Show the runs of this directory in a browser, live, and control them there.

    RUN opens one run. It may also be a file that `retinue export` has written. The server listens
    on this machine only, and its address contains a token. Ctrl-C stops it.

    Example: retinue web k3f9
    """
    exported = None if run is None or existing_file(run) is None else run
    service = WebService(project_root(directory), Environment.current(), exported=exported)
    read_only = options["read_only"] or exported is not None
    stopped = stop_request()
    async with service.serving(address_of(options), page=True, read_only=read_only):
        fragment = f"#/run/{await service.run_id(run)}" if run is not None else ""
        print_line(f"Open {service.url}{fragment}")
        if not no_open and can_open_browser(Environment.current()):
            # Other users can see the arguments of the browser, so its token works once.
            await asyncio.to_thread(webbrowser.open, service.one_time_url + fragment)
        print_line("Ctrl-C stops the server.")
        await stopped.wait()


@click.command()
@server_options
@click.option("--resume", is_flag=True, help="Resume runs whose process is gone, here and now.")
@async_command
async def serve(directory: str, resume: bool, **options: Any) -> None:
    """Serve the runs of this directory as an HTTP API, without the page.

    The API is described at /api/openapi.json. Send the token as `Authorization: Bearer TOKEN`.
    With --resume, the server also waits for runs that lose their process, and continues them.

    Example: retinue serve --port 8765
    """
    read_only = options["read_only"]
    if resume and read_only:
        raise UsageError("--read-only accepts no commands, and --resume works on runs; use one.")
    service = WebService(project_root(directory), Environment.current())
    on_resumed = print_line if resume else None
    stopped = stop_request()
    async with service.serving(
        address_of(options), page=False, read_only=read_only, on_resumed=on_resumed
    ):
        print_line(f"Serving {service.origin}/api/openapi.json")
        print_line(f"Token: {service.token}")
        await stopped.wait()


def address_of(options: dict[str, Any]) -> Address:
    """Where to listen. Raises UsageError for an address that others could listen in on."""
    host, cert, key = options["host"], options["tls_cert"], options["tls_key"]
    if (cert is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key belong together; give both.")
    address = Address(host=host, port=options["port"], tls_cert=cert, tls_key=key)
    if not address.is_loopback and cert is None and not options["unsafe_no_tls"]:
        raise UsageError(
            f"On {host}, other machines can connect. Give --tls-cert and --tls-key, or accept that"
            " everything can be read on the way with --unsafe-no-tls."
        )
    return address


def can_open_browser(environment: Environment) -> bool:
    """Whether a browser would open in a window. One in this terminal would hide the output."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(map(environment.get, names))


def stop_request() -> asyncio.Event:
    """An event that Ctrl-C sets, or a request to end."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped
