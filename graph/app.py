"""Builds the Serve application: `import_path: graph.app:build`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from ray import serve
from ray.serve import Application
from ray.serve.grpc_util import RayServegRPCContext
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from deployments.combiner import Combiner
from deployments.grpc import GrpcServer
from deployments.http import HttpServer
from deployments.ingress import Ingress
from deployments.labeler import Labeler
from deployments.observer import Observer
from deployments.predictor import Predictor, class_count, input_size, load
from deployments.protocol import inference_pb2 as pb
from deployments.transformer import JpegTransformer
from graph import exporters
from graph.batch import Classification
from graph.config import (
    CombinerSettings,
    EnsembleConfig,
    IngressSettings,
    LabelerSettings,
    MemberConfig,
    Placement,
    Schema,
    TransformerSettings,
    deployment_name,
    parse,
)
from graph.ensemble import Ensemble
from graph.errors import ConfigurationError, EnsembleError
from graph.metrics import report_state
from graph.placement import Factory, LiveSettings, NodeDeployment, check_health, place
from graph.tracing import ROOT, Tracing
from models.repository import Model, find

logger = logging.getLogger("ray.serve")

Where = DeploymentHandle[Any] | Factory
WARM_UP_RETRY_S = 1.0

T = TypeVar("T")
S = TypeVar("S", bound=Schema)


class IngressDeployment:
    """The application's door, and the deployment that inline nodes run in."""

    def __init__(
        self,
        settings: IngressSettings,
        transformer: Where,
        members: dict[str, Where],
        combiner: Where,
        labeler: Where,
        classes: int,
        services: dict[str, str],
    ) -> None:
        """Place the nodes: each is a handle, or made here. `services` has the trace's service name of each."""
        graph = Ensemble(
            place(transformer), {name: place(where) for name, where in members.items()}, place(combiner), place(labeler)
        )
        self._observer = Observer(Tracing(exporters.from_environment(), services))
        self._ingress = Ingress(graph, settings, classes, self._observer)
        self._nodes = {
            "Ingress": self._ingress,
            "JpegTransformer": graph.transformer,
            "Combiner": graph.combiner,
            "Labeler": graph.labeler,
            **graph.members,
        }
        self._settings = LiveSettings(self._nodes)
        self._ready = False
        self._http = HttpServer(self._ingress, classes, lambda: self._ready)
        self._grpc = GrpcServer(self._ingress, classes, lambda: self._ready)
        report_state(self._nodes)
        self._warm_up = asyncio.get_event_loop().create_task(self._warm_up_until_ready())

    async def _warm_up_until_ready(self) -> None:
        while not self._ready:
            try:
                await self._ingress.warm_up()
                self._ready = True
            except Exception:
                logger.exception("not every member has answered yet; asking again in %s s", WARM_UP_RETRY_S)
                await asyncio.sleep(WARM_UP_RETRY_S)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a changed `user_config`: the ingress' settings, and under `nodes` those of inline nodes, by name."""
        own = {name: value for name, value in user_config.items() if name != "nodes"}
        nodes = user_config.get("nodes", {})
        self._settings.apply({"Ingress": own, **(nodes if isinstance(nodes, dict) else {"nodes": nodes})})

    def check_health(self) -> None:
        """Raise if an inline node says that it can't work any more."""
        for node in self._nodes.values():
            check_health(node)

    def __del__(self) -> None:
        """Serve calls this when it stops the replica: the last spans go out."""
        if hasattr(self, "_observer"):
            self._observer.close()

    async def classify(
        self,
        image: bytes,
        *,
        top_k: int | None = None,
        members: bool = False,
        timeout_ms: int | None = None,
        traceparent: str | None = None,
    ) -> Classification:
        """Classify one encoded image; for callers with a handle. A W3C `traceparent` continues the caller's trace.

        Raises:
            EnsembleError: as over HTTP and gRPC.
        """
        if not isinstance(image, bytes):
            raise TypeError(f"image must be bytes, the content of an image file; got {type(image).__name__}")
        headers = {} if traceparent is None else {"traceparent": traceparent}
        with self._observer.call("handle", headers, {}) as call:
            [outcome] = await self._ingress.classify(
                [image], top_k=top_k, members=members, timeout_ms=timeout_ms, trace=call.trace
            )
            if isinstance(outcome, EnsembleError):
                raise outcome
            return outcome

    async def __call__(self, request: Request) -> Response:
        """HTTP."""
        return await self._http(request)

    async def ServerLive(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:  # noqa: N802
        """The protocol's call of that name."""
        return self._grpc.server_live()

    async def ServerReady(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:  # noqa: N802
        """The protocol's call of that name."""
        return self._grpc.server_ready()

    async def ServerMetadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:  # noqa: N802
        """The protocol's call of that name."""
        return self._grpc.server_metadata()

    async def ModelReady(  # noqa: N802
        self, request: pb.ModelReadyRequest, grpc_context: RayServegRPCContext
    ) -> pb.ModelReadyResponse:
        """The protocol's call of that name."""
        return self._grpc.model_ready(request, grpc_context)

    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, grpc_context: RayServegRPCContext
    ) -> pb.ModelMetadataResponse:
        """The protocol's call of that name."""
        return self._grpc.model_metadata(request, grpc_context)

    async def ModelInfer(  # noqa: N802
        self, request: pb.ModelInferRequest, grpc_context: RayServegRPCContext
    ) -> pb.ModelInferResponse:
        """The protocol's call of that name."""
        return await self._grpc.model_infer(request, grpc_context)


def build(args: dict[str, Any]) -> Application:
    """Bind the nodes into the application that the arguments describe.

    Raises:
        ConfigurationError: a field is wrong, a model can't be served, or the members don't fit together.
    """
    config = parse(args)
    models = {member.name: _find(config, member) for member in config.members}
    sizes, counts = _signatures(models)
    size = config.transformer.size or _agreed("input size", sizes)
    if size is None:
        raise ConfigurationError("transformer.size: no member fixes its input size, so the transformer must")
    if misfits := [name for name, taken in sizes.items() if taken not in {None, size}]:
        raise ConfigurationError(f"transformer.size: {size}, but member {misfits[0]!r} takes {sizes[misfits[0]]}")
    classes = _agreed("number of classes", counts)
    labels = _agreed("labels", {name: model.labels for name, model in models.items()})
    assert classes is not None
    if labels is not None and len(labels) != classes:
        raise ConfigurationError(f"the models have {classes} classes but {len(labels)} labels")
    crop_ratio = config.transformer.crop_ratio or _agreed(
        "crop ratio (transformer.crop_ratio overrides it)", {name: model.crop_ratio for name, model in models.items()}
    )
    return _deployment(IngressDeployment, "Ingress").bind(
        config.ingress,
        _placed(
            "JpegTransformer",
            config.transformer.placement,
            partial(
                JpegTransformer,
                _settings(TransformerSettings, config.transformer),
                size,
                crop_ratio or 1.0,
                config.transformer.threads,
            ),
        ),
        {
            member.name: _placed(
                deployment_name(member),
                member.placement,
                partial(Predictor, member, models[member.name], size, config.ingress.max_batch_size),
            )
            for member in config.members
        },
        _placed(
            "Combiner",
            config.combiner.placement,
            partial(
                Combiner,
                _settings(CombinerSettings, config.combiner),
                {member.name: member.weight for member in config.members},
            ),
        ),
        _placed(
            "Labeler",
            config.labeler.placement,
            partial(
                Labeler,
                _settings(LabelerSettings, config.labeler),
                labels or tuple(str(index) for index in range(classes)),
            ),
        ),
        classes,
        {
            ROOT: os.environ.get("OTEL_SERVICE_NAME") or "Ingress",
            "decode": "JpegTransformer",
            **{f"predict {member.name}": deployment_name(member) for member in config.members},
            "combine": "Combiner",
            "label": "Labeler",
        },
    )


def _find(config: EnsembleConfig, member: MemberConfig) -> Model:
    try:
        return find(config.model_repository, member.model or member.name, member.version)
    except ConfigurationError as err:
        raise ConfigurationError(f"members: {member.name!r}: {err}") from err


def _signatures(models: dict[str, Model]) -> tuple[dict[str, tuple[int, int] | None], dict[str, int]]:
    """Each member's input size and number of classes, read from the models themselves."""
    networks = {name: load(model) for name, model in models.items()}
    sizes = {name: input_size(network) for name, network in networks.items()}
    return sizes, {name: class_count(network) for name, network in networks.items()}


def _agreed(what: str, values: Mapping[str, T | None]) -> T | None:
    """The value that every member that has one has; raises ConfigurationError, by name, if they differ."""
    given = {name: value for name, value in values.items() if value is not None}
    first = next(iter(given), None)
    for name, value in given.items():
        if first is not None and value != given[first]:
            raise ConfigurationError(
                f"members {first!r} and {name!r} disagree on the {what}: {given[first]} and {value}"
            )
    return given[first] if first is not None else None


def _settings(kind: type[S], config: Schema) -> S:
    """The part of a node's configuration that `user_config` can change."""
    return kind.model_validate(config.model_dump(include=set(kind.model_fields)))


def _deployment(cls: type, name: str) -> serve.Deployment:
    # Room for more calls than the ingress admits, so that its refusals are answered and not Serve's.
    decorate = serve.deployment(name=name, max_ongoing_requests=100_000, ray_actor_options={"num_cpus": 0.1})
    return decorate(cls)


def _placed(name: str, placement: Placement, factory: Factory) -> Application | Factory:
    return _deployment(NodeDeployment, name).bind(name, factory) if placement == "separate" else factory
