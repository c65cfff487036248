"""What every kind of remote member does, whatever its protocol."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import Agreed, Signature
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.remote.failures import CallError, Late, Misfit, Unreachable
from deployments.remote.settings import RemoteConfig
from models.sources import Where

if TYPE_CHECKING:
    from deployments.remote.credentials import Token
    from deployments.remote.server import Server
    from deployments.remote.tensors import Fit

logger = logging.getLogger("ray.serve")

# How long a start waits for a server to tell what its model takes.
AT_START_S = 3.0
# Of classes that nobody has told, for the bound on an answer.
MOST_CLASSES = 100_000


class RemoteKind(RemoteConfig):
    """A kind of remote member; its protocol is what `connect` makes."""

    def connect(self, where: str, token: Token, scores: int) -> Server:
        """What asks an IP address by this protocol; an answer holds at most so many scores."""
        raise NotImplementedError

    def signature(self, repository: Where) -> Signature:
        """What the server tells of its model, and the configuration; the latter alone while no server is there.

        Raises:
            ConfigurationError: the server's model can't be a member.
        """
        labels = self.class_names()
        # A loop of its own: there may be one in this thread already.
        with ThreadPoolExecutor(1) as pool:
            how = pool.submit(lambda: asyncio.run(self._ask())).result()
        classes = how.classes if how is not None else None
        if labels is not None and classes not in {None, len(labels)}:
            raise ConfigurationError(
                f"members: {self.name!r}: {len(labels)} labels, but the model has {classes} classes"
            )
        return Signature(
            classes=classes if labels is None else len(labels),
            version=how.version if how is not None else None,
            labels=labels,
            size=self.size or (how.size if how is not None else None),
            crop_ratio=self.crop_ratio,
            resize=self.resize,
            interpolation=self.interpolation,
            border=self.border,
            as_sent=how.as_sent if how is not None else bool(self.as_sent),
        )

    async def _ask(self) -> Fit | None:
        """How the model is asked, if a server is there to tell."""
        from deployments.remote.addresses import resolve
        from deployments.remote.credentials import Token
        from deployments.remote.tensors import fit

        error: CallError = Unreachable("its name does not resolve")
        try:
            async with asyncio.timeout(AT_START_S):
                for where in await resolve(self.host, self.port):
                    server = self.connect(where, Token(self.token_file), MOST_CLASSES)
                    try:
                        return fit(await server.describe(AT_START_S), self)
                    except Misfit as err:
                        raise ConfigurationError(f"members: {self.name!r}: {self.url}: {err}") from err
                    except CallError as err:
                        error = err
                    finally:
                        await server.close()
        except TimeoutError:
            error = Late(f"no answer in {AT_START_S:.0f} s")
        except OSError as err:
            error = Unreachable(str(err))
        logger.warning("members: %r: %s: %s; it is asked again while we serve", self.name, self.url, error)
        return None

    def make(self, repository: Where, agreed: Agreed, max_batch_size: int) -> Node[Any, Probabilities]:
        """The node that asks the server; see `MemberConfig.make`."""
        from deployments.remote.credentials import Token
        from deployments.remote.member import RemoteMember

        token = Token(self.token_file)
        # A model of a fixed number of images answers that many.
        scores = max(max_batch_size, 1024) * len(agreed.labels)
        return RemoteMember(self, agreed, lambda where: self.connect(where, token, scores))
