"""A model that the protocol serves: one input, named outputs, and what is counted of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from deployments.contract.answer import Answer
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import InvalidParameter
from deployments.contract.options import Options
from deployments.ingress.open_inference.metadata import ModelMetadata
from deployments.ingress.open_inference.tensors import Tensor, classified
from deployments.ingress.statistics import Statistics
from deployments.observe.tracing import Trace

NOTHING: Mapping[str, Any] = {}


class Requested(NamedTuple):
    """An output that a request asks for.

    Attributes:
        name: of the output.
        classes: as how many most probable classes it is told; 0 for as it is.
        parameters: of the output, as the caller sent them.
    """

    name: str
    classes: int = 0
    parameters: Mapping[str, Any] = NOTHING


class Inferred(NamedTuple):
    """A model's answer: a tensor for each output that was asked for, the response's parameters, and what they tell."""

    outputs: list[Tensor]
    parameters: dict[str, str]
    answers: list[Answer]


class Model(ABC):
    """A model with exactly one input.

    Attributes:
        max_batch_size: the rows that a request may hold where the first dimension is a batch's; 0 where it is none.
        labels: the names of its classes, in order of index.
        statistics: what was counted of it.
    """

    max_batch_size: int
    labels: Sequence[str]
    statistics: Statistics

    @property
    @abstractmethod
    def metadata(self) -> ModelMetadata:
        """Its version and its tensors."""

    @abstractmethod
    async def infer(
        self,
        tensor: Tensor,
        names: Sequence[str],
        asked: Options,
        parameters: Mapping[str, Any],
        *,
        began: float | None = None,
        trace: Trace | None = None,
        by: Caller = ANYONE,
    ) -> Inferred:
        """Answer a request.

        Args:
            tensor: its input, as `check_inputs` has let through.
            names: the outputs to answer.
            asked: the options of the request.
            parameters: of the request.
            began: when it began to arrive, seconds since the epoch; default: now.
            trace: the call's trace.
            by: who asks.

        Raises:
            EnsembleError: as `Ingress.classify`, and the first image's that failed.
        """

    def check_inputs(self, inputs: Sequence[Any], read: Callable[[Any], tuple[str, str]]) -> None:
        """Raise InvalidParameter unless the inputs, of which `read` gives (name, datatype), are the model's one."""
        [own] = self.metadata.inputs
        # Counted before any of them is looked at: a request can hold millions.
        if len(inputs) != 1:
            raise InvalidParameter(f"the request needs exactly one input, {own.name!r}; it has {len(inputs)}")
        name, datatype = read(inputs[0])
        if name != own.name:
            raise InvalidParameter(f"the request needs exactly one input, {own.name!r}; it has {name[:40]!r}")
        if datatype != own.datatype:
            what = ", an encoded image an element" if own.datatype == "BYTES" else ""
            raise InvalidParameter(f"the input {own.name!r} has datatype {own.datatype}{what}; got {datatype[:40]!r}")

    def requested(
        self, outputs: Sequence[Any], read: Callable[[Any], tuple[str, Mapping[str, Any]]]
    ) -> list[Requested]:
        """The outputs to answer: those asked for, of which `read` gives (name, parameters), or all.

        Raises:
            InvalidParameter: one is unknown or asked for twice, or its parameter `classification` is no number of
                classes.
        """
        known = [output.name for output in self.metadata.outputs]
        # Each is answered whole: a name of ten bytes, repeated, would ask for megabytes.
        if len(outputs) > len(known):
            raise InvalidParameter(f"{len(outputs)} outputs are asked for; there are {known}, name each once")
        asked: list[Requested] = []
        for name, parameters in map(read, outputs):
            if name not in known:
                raise InvalidParameter(f"there is no output {name[:40]!r}; the outputs are {known}")
            if any(name == other.name for other in asked):
                raise InvalidParameter(f"the output {name!r} is asked for twice; name it once")
            classes = parameters.get("classification", 0)
            if type(classes) is not int or not 0 <= classes <= 100_000:
                raise InvalidParameter(f"classification must be a number of classes; got {repr(classes)[:40]}")
            asked.append(Requested(name, classes, parameters))
        return asked or [Requested(name) for name in known]

    def told(self, outputs: Sequence[Tensor], requested: Sequence[Requested]) -> list[Tensor]:
        """The outputs as they were asked for: as they are, or as their most probable classes."""
        pairs = zip(outputs, requested, strict=True)
        return [classified(tensor, ask.classes, self.labels) if ask.classes else tensor for tensor, ask in pairs]
