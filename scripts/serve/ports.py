"""Looks whether ports are free."""

from __future__ import annotations

import socket

from scripts.errors import ScriptError


def check_ports(*addresses: tuple[str, int]) -> None:
    """Raise ScriptError if another program listens on one of the addresses."""
    for host, port in addresses:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as err:
                raise ScriptError(f"{host}:{port} can't be listened on: {err.strerror}; stop what uses it") from err
