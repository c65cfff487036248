"""What the load generator needs of a protocol."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path

from ensemble_serving.transports import Request, Transport


class Protocol(typing.Protocol):
    """How images become a request, by a name on the command line."""

    name: typing.ClassVar[str]

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> Protocol:
        """The same protocol, with what the server describes of its model.

        Raises:
            ScriptError: the server is not there, has no such model, or one that images can't be made for.
        """
        ...

    def request(self, images: Sequence[bytes]) -> Request:
        """The request that carries these encoded images.

        Raises:
            ScriptError: the model can't take them.
        """
        ...

    def seen(self, body: bytes, label: str) -> int:
        """What a successful response shows, as flags of a record; the label is empty if the right one is not known."""
        ...
