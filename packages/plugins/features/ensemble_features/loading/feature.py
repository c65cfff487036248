"""Loading: operators load and unload members while the application serves, by the Open Inference Protocol.

The loaded version is a setting in `user_config`, which Serve gives to every replica, and to later ones.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.answer import Answer
from deployments.contract.errors import (
    Conflict,
    DeadlineExceeded,
    EnsembleError,
    Forbidden,
    ImageTooLarge,
    InvalidParameter,
    NotFound,
    NotReady,
)
from deployments.contract.nodes import Node
from deployments.ingress.error_style import AS_TEXT
from deployments.ingress.http import bodies
from deployments.ingress.ingress import Ingress
from deployments.ingress.open_inference.grpc import SERVICE, parameters
from deployments.ingress.open_inference.model import MODEL
from deployments.ingress.protocol import Served, Service
from deployments.ingress.routes import OF_ARRIVING, Calls, Route, Routes, Rpc, encoded
from deployments.ingress.single_member import MemberModelInfo
from deployments.observe.observer import Call
from ensemble_features.loading.deploying import Change, loadable, on_head
from ensemble_features.loading.flow import UnloadGate
from ensemble_features.loading.section import SECTION, Operators, OperatorsSection
from ensemble_serving.protocol import inference_pb2 as pb
from graph.feature import Feature, Site, Stage
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

OFF = "loading and unloading is off; access.operators turns it on"
LOOK_EVERY_S = 0.1
VersionNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
CONFIG_HINT = 'config is the JSON {"version_policy": {"specific": {"versions": [n]}}}, or {} for the highest version'


class Specific(msgspec.Struct, forbid_unknown_fields=True):
    """One version."""

    versions: Annotated[list[VersionNumber], msgspec.Meta(min_length=1, max_length=1)]


# The part of a model's configuration, as Triton's clients send it, that loading can change.
Config = dict[Literal["version_policy"], dict[Literal["specific"], Specific]]
DECODER = msgspec.json.Decoder(Config, strict=False)


# Brings a change to every replica; returns the version that is to be loaded.
Deploy = Callable[[Change], Awaitable[int | None]]


class ModelControl:
    """Loads and unloads members, one change at a time.

    Attributes:
        members: by name, every member that can be asked by itself.
    """

    def __init__(self, operators: Operators, gates: UnloadGate, deploy: Deploy) -> None:
        """Set who may change members, by their keys' names or `anyone`, and what brings a change to every replica."""
        self.members: Mapping[str, tuple[Ingress, MemberModelInfo]] = {}
        self._operators, self._gates, self._deploy = operators, gates, deploy
        self._changing = asyncio.Lock()

    @property
    def is_on(self) -> bool:
        """Whether anybody may load and unload members."""
        return bool(self._operators)

    def check_permitted(self, name: str) -> None:
        """Raise NotFound where loading is off, and Forbidden unless the key of that name, empty for none, may load."""
        if not self.is_on:
            raise NotFound(OFF)
        if self._operators != "anyone" and name not in self._operators:
            raise Forbidden(f"the key {name!r} may not load and unload members; access.operators lists who may")

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Make every replica of a member serve the version that the request's parameters name, or the highest.

        It returns when the member has answered by that version, and this replica takes no other one from a cache.

        Raises:
            NotFound: there is no such member, or no such version.
            InvalidParameter: the member can't be loaded, or a parameter is wrong.
            Conflict: the version can't be served; the current one stays.
            NotReady: Serve does not accept a change now.
            DeadlineExceeded: the member has not answered by that version in time.
        """
        version = version_to_load(parameters)
        loaded = await self._change(Change(name, False, version))
        ingress, info = self.members[name]
        pixels = bytes(info.size[0] * info.size[1] * 3)

        async def answers() -> bool:
            try:
                [outcome] = await ingress.classify([pixels])
            except EnsembleError:
                return False
            served = outcome.classification.model_versions if isinstance(outcome, Answer) else {}
            return served.get(name) == self._gates.settings.loaded.get(name) == loaded

        await self._until(name, answers, f"member {name!r} has not answered by version {loaded}")

    async def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Stop every replica from asking a member; return when this replica has stopped.

        Raises:
            NotFound: there is no such member.
            InvalidParameter: the member can't be unloaded, or a parameter is wrong.
            Conflict: the quorum needs the member.
            NotReady: Serve does not accept a change now.
            DeadlineExceeded: this replica has not got the change in time.
        """
        check_unload(parameters)
        await self._change(Change(name, True))

        async def is_unloaded() -> bool:
            return name in self._gates.settings.unloaded

        await self._until(name, is_unloaded, f"member {name!r} is still asked")

    async def _change(self, change: Change) -> int | None:
        name = change.name
        if name == MODEL:
            raise InvalidParameter(f"{MODEL!r} is made of its members; load and unload those")
        if name not in self.members:
            raise NotFound(f"there is no member {name[:80]!r}; the members are {sorted(self.members)}")
        if name not in self._gates.names:
            raise InvalidParameter(
                f"member {name!r} can't be loaded; it is on another server, a shadow, or has a canary"
            )
        if self._changing.locked():
            raise NotReady("another member is being loaded or unloaded; try again when that is done")
        async with self._changing:
            return await self._deploy(change)

    async def _until(self, name: str, done: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        timeout_ms = self.members[name][0].settings.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not await done():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise DeadlineExceeded(
                f"Serve has the change, but {otherwise} within {timeout_ms} ms; the log says why"
            ) from None


def version_to_load(parameters: Mapping[str, Any]) -> int | None:
    """Read the version to load from the parameter `version` or Triton's `config`; None for the highest.

    Raises:
        InvalidParameter: there is another parameter, or the version is none.
    """
    _check_known(parameters, "version", "config")
    if "version" in parameters:
        try:
            return msgspec.convert(parameters["version"], VersionNumber, strict=isinstance(parameters["version"], bool))
        except (msgspec.ValidationError, UnicodeError) as err:
            raise InvalidParameter(f"version: {err}") from err
    try:
        config = DECODER.decode(parameters.get("config") or "{}")
    except (msgspec.MsgspecError, TypeError, UnicodeError) as err:
        raise InvalidParameter(f"config: {err}; {CONFIG_HINT}") from err
    specific = config.get("version_policy", {}).get("specific")
    return None if specific is None else specific.versions[0]


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Raise InvalidParameter unless the only parameter is Triton's, which changes nothing: no model depends on one."""
    _check_known(parameters, "unload_dependents")


def _check_known(parameters: Mapping[str, Any], *known: str) -> None:
    if unknown := sorted(set(parameters) - set(known)):
        raise InvalidParameter(
            f"the parameter {unknown[0][:80]!r} is not known here; {list(known)} are, and a model comes from the "
            "server's repository alone"
        )


PATH = "/v2/repository/models/{model}"
MAX_BYTES = 64 * 1024
ChangeMember = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class RepositoryRequest(msgspec.Struct):
    """A request to load or unload a model."""

    parameters: dict[str, Any] = {}


def routes(ingress: Ingress, control: ModelControl) -> Routes:
    """Make the extension's paths; the ingress admits the requests."""

    def route(change: ChangeMember, summary: str) -> Route:
        async def handler(request: Request, call: Call) -> Response:
            control.check_permitted(call.caller.name)
            body, _ = await bodies.document(request, ingress.admission, call.caller, bodies.Limit(MAX_BYTES))
            await change(request.path_params["model"], bodies.parsed(body or b"{}", RepositoryRequest).parameters)
            return encoded({})

        described = f"Open Inference Protocol, model repository: {summary}"
        errors = (*OF_ARRIVING, Forbidden, NotFound, Conflict, NotReady)
        body = {"application/json": RepositoryRequest}
        return Route(
            "POST", handler, described, (dict[str, Any],), errors, AS_TEXT, body=body, is_on=lambda: control.is_on
        )

    return {
        f"{PATH}/load": route(control.load, "load a version of a member"),
        f"{PATH}/unload": route(control.unload, "unload a member"),
    }


def calls(control: ModelControl) -> Calls:
    """Make the extension's methods."""

    def rpc(change: ChangeMember, answer: type[Message]) -> Rpc:
        async def handler(request: Any, call: Call) -> Message:
            control.check_permitted(call.caller.name)
            if (size := request.ByteSize()) > MAX_BYTES:
                raise ImageTooLarge(f"the request has {size} bytes; at most {MAX_BYTES} are accepted")
            await change(request.model_name, parameters(request.parameters))
            return answer()

        return Rpc(handler)

    return {
        f"{SERVICE.full_name}/RepositoryModelLoad": rpc(control.load, pb.RepositoryModelLoadResponse),
        f"{SERVICE.full_name}/RepositoryModelUnload": rpc(control.unload, pb.RepositoryModelUnloadResponse),
    }


class Loading(Feature):
    """Puts gates before the members that can be unloaded, which the keys in `access.operators` may use.

    Without operators its paths and methods refuse.
    """

    # A gate stands before both versions of a member.
    order = 10
    always = of_any_shape = True
    sections = (OperatorsSection,)

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        operators = config.access.of(OperatorsSection).operators
        self._gates = UnloadGate(set(loadable(config)), config.spare, site.versions, site.pinned, site.left_out)
        self._control = ModelControl(operators, self._gates, partial(on_head, site.application, config, agreed))

    def wrap(self, stage: Stage, node: Node[Any, Any]) -> Node[Any, Any]:
        """Put a gate before a member."""
        is_gated = self._control.is_on and stage.kind == "node" and stage.name in self._gates.names
        return self._gates.before(stage.name, node) if is_gated else node

    def serve(self, service: Service) -> Served:
        """Serve the extension's paths and methods."""
        control = self._control
        control.members = service.members
        if not control.is_on:
            return Served(routes(service.ingress, control), calls(control))
        announces, live = ("model_repository",), {SECTION: self._gates}
        return Served(routes(service.ingress, control), calls(control), announces=announces, live=live)
