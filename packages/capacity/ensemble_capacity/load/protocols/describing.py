"""A server's description of its model, requested as a remote member requests it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from deployments.members.open_inference import OpenInference
from deployments.members.tensorflow_serving import TensorFlowServing
from deployments.remote.config import RemoteConfig
from deployments.remote.endpoints import resolve
from deployments.remote.errors import CallError, Unavailable
from ensemble_capacity.load.protocols.tensors import Input
from scripts.errors import ScriptError

TIMEOUT_S = 10.0
MAX_SCORES = 0


class _Keyed(RemoteConfig):
    """A remote member whose bearer token is known already."""

    key: str

    def authorization(self) -> dict[str, str]:
        """See `RemoteConfig.authorization`."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


class _OpenInference(_Keyed, OpenInference):
    pass


class _TensorFlowServing(_Keyed, TensorFlowServing):
    pass


KINDS: dict[str, type[_Keyed]] = {"open_inference": _OpenInference, "tensorflow_serving": _TensorFlowServing}


async def inputs(kind: str, url: str, model: str, key: str, ca_file: Path | None) -> tuple[Input, ...]:
    """The inputs of a server's model, asked as a kind of remote member, one of `KINDS`; the URL's path does not matter.

    Raises:
        ScriptError: the server is not there, or has no such model.
    """
    parts = urlsplit(url)
    trusted = ca_file if parts.scheme in {"https", "grpcs"} else None
    config = KINDS[kind](
        kind=kind, name="model", url=f"{parts.scheme}://{parts.netloc}", model=model, key=key, ca_file=trusted
    )
    try:
        where = (await resolve(config.host, config.port))[0]
        server = config.connect(where, MAX_SCORES)
        try:
            found = (await server.describe(TIMEOUT_S)).inputs
            return tuple(Input(each.name, each.datatype, tuple(each.shape)) for each in found)
        finally:
            await server.close()
    except (Unavailable, OSError) as err:
        raise ScriptError(f"URL: no server with a model {model!r} that is ready responds at {url}: {err}") from err
    except CallError as err:
        raise ScriptError(f"--model: {url} has no model {model!r}: {err}") from err
