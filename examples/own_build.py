"""A graph of another shape, made of the same nodes: it answers only images that all members agree on.

    make serve CONFIG=examples/own_build.yaml

Two things differ from the default graph: how the nodes are joined, and an error of its own, which every protocol
answers with the status of its class. `members`, `transformer`, `combiner`, `labeler`, `ingress`, `edges`, `access`,
`page` and `feedback` of the configuration work as usual. `ensemble`, `cache`, canaries and shadows do nothing here,
because `graph.composition.ensemble` joins them to the nodes, and `compose` replaces it. `make serve` can't know whether
a `build` of your own checks keys, so to listen beyond loopback it needs `--without-keys`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ray.serve import Application

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError
from deployments.contract.names import COMBINER, LABELER, TRANSFORMER
from deployments.contract.nodes import Graph, Node
from deployments.contract.payload import PixelSets, Probabilities
from deployments.pipeline.member_client import Member
from deployments.pipeline.pipeline import Ensemble, Pipeline
from deployments.serving.spec import Nodes
from graph.app import application
from graph.config import parse
from graph.feature import Feature
from graph.signature import resolve_signatures


class Undecided(EnsembleError):
    """The members do not agree on this image."""

    code = "undecided"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    is_fault = False


class Unanimous:
    """An ensemble that fails the images on which its members name different classes."""

    def __init__(self, ensemble: Node[PixelSets, Probabilities]) -> None:
        self._ensemble = ensemble

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[Probabilities]:
        """Predict probabilities, float32 [N,C], from pixels by preprocessing; fail images that members disagree on."""
        answer = await self._ensemble(batch)
        named = {
            position: {each.index for each in answer.items[position].predictions.values()} for position in answer.live
        }
        return answer.fail(
            {
                position: Undecided(f"the members name {len(classes)} classes; look at the image yourself")
                for position, classes in named.items()
                if len(classes) > 1
            }
        )


def compose(pixels: Mapping[str, str], nodes: Nodes, _: Sequence[Feature]) -> Graph:
    """Join transformer, unanimous members and labeler; features change nothing here."""
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    return Pipeline(nodes[TRANSFORMER], Unanimous(Ensemble(members, nodes[COMBINER])), nodes[LABELER])


def build(args: dict[str, Any]) -> Application:
    """Build the application of `import_path: examples.own_build:build`."""
    config = parse(args)
    agreed = resolve_signatures(config)
    return application(config, agreed, partial(compose, agreed.pixels))
