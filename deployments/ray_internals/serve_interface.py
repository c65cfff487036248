"""Serve's REST interface in one process: what `serve deploy` and `serve status` ask, without Ray's dashboard around it.

The dashboard runs it in four processes, which together take 230 MB.
"""

import argparse
import asyncio
import inspect
import socket
from pathlib import Path
from typing import Any, cast

import aiohttp
import ray
from ray._private import ray_constants
from ray._private.authentication.http_token_authentication import get_token_auth_middleware
from ray.dashboard.modules.serve.serve_head import ServeHead
from ray.dashboard.optional_utils import get_browser_request_middleware
from ray.dashboard.subprocesses.module import SubprocessModuleConfig

from deployments.contract.hosts import LOOPBACK
from deployments.ray_internals.dashboard import PORT

# The methods that browsers may use: a web page may change nothing.
OF_BROWSERS = {"GET", "HEAD", "OPTIONS"}


def make_module(gcs_address: str) -> ServeHead:
    """Make the part of the dashboard that has the interface; it logs on stderr."""
    gcs = cast(Any, ray._raylet).GcsClient(address=gcs_address)
    known = {
        "cluster_id_hex": gcs.cluster_id.hex(),
        "gcs_address": gcs_address,
        "session_name": gcs.internal_kv_get(b"session_name", b"session").decode(),
        "logging_level": "INFO",
    }
    # Whatever else there is has to do with the dashboard's files.
    fields = inspect.signature(SubprocessModuleConfig).parameters
    return ServeHead(SubprocessModuleConfig(**{name: known.get(name, "") for name in fields}))  # type: ignore


def make_application(serve_head: ServeHead) -> aiohttp.web.Application:
    """Make the application with the interface's routes; it requires Ray's token, as the dashboard does."""
    middlewares = [get_token_auth_middleware(aiohttp), get_browser_request_middleware(aiohttp, OF_BROWSERS)]
    made = aiohttp.web.Application(client_max_size=ray_constants.DASHBOARD_CLIENT_MAX_SIZE, middlewares=middlewares)
    for name, handler in inspect.getmembers(ServeHead, lambda each: hasattr(each, "__route_method__")):
        made.router.add_route(handler.__route_method__, handler.__route_path__, getattr(serve_head, name))
    return made


def listen(port: int) -> socket.socket:
    """Listen on a port of loopback, or on another port if another process listens there."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError:
        return socket.create_server((LOOPBACK, 0))


def announce(gcs_address: str, address: str, file: Path) -> None:
    """Write where the interface listens into Ray's key-value store, where clients look, and into a file.

    It is written once the socket listens: of two clusters that start at the same time, both would find the same port
    free before, and one's requests would go to the other.
    """
    gcs = cast(Any, ray._raylet).GcsClient(address=gcs_address)
    for key in (b"webui:url", ray_constants.DASHBOARD_ADDRESS.encode()):
        gcs.internal_kv_put(key, address.encode(), True, ray_constants.KV_NAMESPACE_DASHBOARD)
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(address, encoding="ascii")
    unfinished.rename(file)


async def serve(args: argparse.Namespace) -> None:
    """Answer until the process is ended."""
    serve_head = make_module(args.gcs_address)
    runner = aiohttp.web.AppRunner(make_application(serve_head), access_log=None)
    await runner.setup()
    known = args.address_file.exists()
    port = int(args.address_file.read_text(encoding="ascii").rpartition(":")[2]) if known else PORT
    with listen(port) as listener:
        await aiohttp.web.SockSite(runner, listener).start()
        announce(args.gcs_address, f"{LOOPBACK}:{listener.getsockname()[1]}", args.address_file)
        await asyncio.Event().wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gcs-address", required=True)
    parser.add_argument("--address-file", type=Path, required=True, help="gets the address where it listens")
    args = parser.parse_args()
    cast(Any, ray._raylet).setproctitle("ray::ServeInterface")
    asyncio.run(serve(args))


if __name__ == "__main__":
    main()
