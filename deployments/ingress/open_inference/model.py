"""The models that the protocol serves, each with one input and named outputs: the ensemble, and each member."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from deployments.contract.answer import Answer, Classification
from deployments.contract.errors import EnsembleError, InvalidParameter
from deployments.contract.options import MAX_CLASSES, SHOWN, Options
from deployments.ingress.ingress import Ingress
from deployments.ingress.open_inference.metadata import VERSION, ModelMetadata, TensorMetadata
from deployments.ingress.open_inference.tensors import Tensor, classified
from deployments.ingress.options import quoted
from deployments.ingress.protocol import TensorStore
from deployments.ingress.single_member import MemberModelInfo
from deployments.ingress.statistics import Statistics
from deployments.observe.observer import Call

NOTHING: Mapping[str, Any] = {}
# The fields of an answer that some answers have, whatever their requests show.
FIELDS = msgspec.structs.fields(Classification)
NOTED = [field.name for field in FIELDS if field.default is None and field.name not in SHOWN]
# The name of the ensemble as a model, and of its input; and the names of a member's input and output.
MODEL, INPUT = "ensemble", "image"
PIXELS, PROBABILITIES = "pixels", "probabilities"


class Requested(NamedTuple):
    """An output that a request asks for.

    Attributes:
        name: of the output.
        classes: how many of the most probable classes are answered in its place; 0 for the output as it is.
        parameters: of the output, as the caller sent them.
        place: where the output is written, by `TensorStore`; None for the answer itself.
    """

    name: str
    classes: int = 0
    parameters: Mapping[str, Any] = NOTHING
    place: Any = None


class Inferred(NamedTuple):
    """A model's answer: a tensor for each requested output, the response's parameters, and their classifications."""

    outputs: list[Tensor]
    parameters: dict[str, str]
    answers: list[Answer]


class Model(ABC):
    """A model with exactly one input.

    Attributes:
        labels: the names of its classes, in order of index.
        max_batch_size: the rows that a request may hold where the first dimension is a batch's; 0 where it is none.
    """

    def __init__(
        self,
        ingress: Ingress,
        metadata: ModelMetadata,
        labels: Sequence[str],
        max_batch_size: int,
        versions: MutableMapping[str, str],
    ) -> None:
        """Set the ingress of its images, the model's description, and the members' versions by name."""
        self._ingress, self._metadata, self._versions = ingress, metadata, versions
        self.labels, self.max_batch_size = labels, max_batch_size

    @property
    def metadata(self) -> ModelMetadata:
        """Its version, of the last answer or loaded since, and its tensors."""
        known = self._versions.get(self._metadata.name, self._metadata.versions[0])
        if [known] != self._metadata.versions:
            self._metadata = replace(self._metadata, versions=[known])
        return self._metadata

    @property
    def takes_images(self) -> bool:
        """Whether its input is encoded images, and not pixels."""
        return self._metadata.inputs[0].datatype == "BYTES"

    @property
    def statistics(self) -> Statistics:
        """Its counts."""
        return self._ingress.execution.statistics

    @abstractmethod
    def images(self, tensor: Tensor) -> Sequence[bytes]:
        """Return the images of an input that has passed `check_inputs`; raise InvalidParameter for another shape."""

    async def infer(
        self,
        tensor: Tensor,
        names: Sequence[str],
        asked: Options,
        call: Call,
        began: float | None = None,
    ) -> Inferred:
        """Answer a request.

        Args:
            tensor: its input, which `check_inputs` has let through.
            names: the outputs to answer.
            asked: the options of the request.
            call: the caller, and the trace.
            began: when it began to arrive, seconds since the epoch; default: now.

        Raises:
            EnsembleError: as `Ingress.classify`, and the first image's that failed.
        """
        images = self.images(tensor)
        answers = succeeded(await self._ingress.classify(images, asked, began=began, trace=call.trace, by=call.caller))
        name = self._metadata.name
        if (version := answers[0].classification.model_versions.get(name)) is not None:
            self._versions[name] = str(version)
        return Inferred([_output(name, answers) for name in names], response_parameters(answers, asked), answers)

    def check_inputs(self, inputs: Sequence[Any]) -> None:
        """Raise InvalidParameter unless the inputs, each with a `name` and a `datatype`, are the model's one."""
        [own] = self.metadata.inputs
        # Counted before any of them is looked at: a request can hold millions.
        if len(inputs) != 1:
            raise InvalidParameter(f"the request needs exactly one input, {own.name!r}; it has {len(inputs)}")
        name, datatype = inputs[0].name, inputs[0].datatype
        if name != own.name:
            raise InvalidParameter(f"the request needs exactly one input, {own.name!r}; it has {name[:40]!r}")
        if datatype != own.datatype:
            what = ", an encoded image an element" if own.datatype == "BYTES" else ""
            raise InvalidParameter(f"the input {own.name!r} has datatype {own.datatype}{what}; got {datatype[:40]!r}")

    def requested(
        self,
        outputs: Sequence[Any],
        store: TensorStore,
        values: Callable[[Any], Mapping[str, Any]] = lambda parameters: parameters,
    ) -> list[Requested]:
        """Return the outputs to answer: the outputs that a request names, or all.

        Args:
            outputs: of the request, each with a `name` and `parameters`.
            store: where clients keep tensors outside their requests.
            values: makes Python's values of the parameters of one.

        Raises:
            InvalidParameter: one is unknown or asked for twice, its parameter `classification` is no number of classes,
                or it is asked for classes and has none.
            EnsembleError: an output can't be written where its parameters say.
        """
        known = {output.name: output for output in self.metadata.outputs}
        # Each is answered whole: a name of ten bytes, repeated, would ask for megabytes.
        if len(outputs) > len(known):
            raise InvalidParameter(f"{len(outputs)} outputs are asked for; there are {list(known)}, name each once")
        asked: dict[str, Requested] = {}
        for output in outputs:
            if output.name in asked:
                raise InvalidParameter(f"the output {output.name!r} is asked for twice; name it once")
            parameters = values(output.parameters)
            if (place := store.place(parameters)) is not None:
                store.check(place)
            asked[output.name] = self._requested(output.name, parameters, known)._replace(place=place)
        return list(asked.values()) or [Requested(name) for name in known]

    def _requested(self, name: str, parameters: Mapping[str, Any], known: Mapping[str, TensorMetadata]) -> Requested:
        """Return an output to answer; raises as `requested` does."""
        if name not in known:
            raise InvalidParameter(f"there is no output {name[:40]!r}; the outputs are {list(known)}")
        classes = parameters.get("classification", 0)
        if type(classes) is not int or not 0 <= classes <= MAX_CLASSES:
            raise InvalidParameter(f"classification must be a number of classes; got {quoted(classes)}")
        if classes and (known[name].datatype == "BYTES" or len(known[name].shape) != 2):
            raise InvalidParameter(f"the output {name!r} has no classes; ask for the classes of 'probabilities'")
        return Requested(name, classes, parameters)

    def as_requested(self, outputs: Sequence[Tensor], requested: Sequence[Requested]) -> list[Tensor]:
        """Return each output as the request asks for it: whole, or as its most probable classes."""
        pairs = zip(outputs, requested, strict=True)
        return [classified(tensor, ask.classes, self.labels) if ask.classes else tensor for tensor, ask in pairs]


class Ensemble(Model):
    """All members together, with the transformer before them."""

    def __init__(self, ingress: Ingress, labels: Sequence[str]) -> None:
        """Set where images go, and the classes' names, in order of index."""
        outputs = [("label", "BYTES", [-1]), ("index", "INT64", [-1]), ("probabilities", "FP32", [-1, len(labels)])]
        metadata = ModelMetadata(
            MODEL,
            [VERSION],
            "openvino_ensemble",
            [TensorMetadata(INPUT, "BYTES", [-1])],
            [TensorMetadata(*output) for output in outputs],
        )
        # The images of a request are its only dimension, so there is none of a batch before others.
        super().__init__(ingress, metadata, labels, max_batch_size=0, versions={})

    def images(self, tensor: Tensor) -> Sequence[bytes]:
        """Return the elements of a tensor of shape [-1] or [-1, 1]; see `Model.images`."""
        images: Sequence[bytes] = tensor.data
        self._ingress.admission.check_count(len(images))
        if tensor.shape not in ([len(images)], [len(images), 1]):
            raise InvalidParameter(
                f"the input {INPUT!r} has shape {tensor.shape} but {len(images)} elements; send [{len(images)}]"
            )
        return images


class Member(Model):
    """One member without the transformer before it: uint8 [N,H,W,3], blue, green and red."""

    def __init__(
        self,
        name: str,
        ingress: Ingress,
        info: MemberModelInfo,
        labels: Sequence[str],
        versions: MutableMapping[str, str],
    ) -> None:
        """Set its name, the ingress of its pixels, its description, the classes' names, and the members' versions."""
        inputs, outputs = (
            [TensorMetadata(PIXELS, "UINT8", [-1, *info.size, 3])],
            [TensorMetadata(PROBABILITIES, "FP32", [-1, len(labels)])],
        )
        metadata = ModelMetadata(name, [info.version], info.kind, inputs, outputs)
        super().__init__(ingress, metadata, labels, ingress.settings.max_parts, versions)

    def images(self, tensor: Tensor) -> Sequence[bytes]:
        """Return the rows of a tensor of pixels; see `Model.images`."""
        wanted = self.metadata.inputs[0].shape
        if len(tensor.shape) != len(wanted) or tensor.shape[1:] != wanted[1:]:
            raise InvalidParameter(f"the input {PIXELS!r} has shape {tensor.shape}; send {wanted}")
        # One row more than are taken is enough to be refused.
        return [row.tobytes() for row in tensor.data[: self._ingress.settings.max_parts + 1]]


def succeeded(outcomes: Sequence[Answer | EnsembleError]) -> list[Answer]:
    """Return the answers to a request's images.

    Raises:
        EnsembleError: the first image's that failed, since the protocol has no error for a single element.
    """
    answers: list[Answer] = []
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, EnsembleError):
            where = f"image {position}: " if len(outcomes) > 1 else ""
            raise type(outcome)(f"{where}{outcome.message}", retry_after_s=outcome.retry_after_s)
        answers.append(outcome)
    return answers


def _output(name: str, answers: Sequence[Answer]) -> Tensor:
    """Make an output for each image: `label`, `index` or `probabilities`."""
    if name == "label":
        return Tensor(name, "BYTES", [len(answers)], [answer.classification.label.encode() for answer in answers])
    if name == "index":
        index = np.array([answer.classification.index for answer in answers], np.int64)
        return Tensor(name, "INT64", list(index.shape), index)
    probabilities = np.stack([answer.probabilities for answer in answers])
    return Tensor(name, "FP32", list(probabilities.shape), probabilities)


def response_parameters(answers: Sequence[Answer], asked: Options) -> dict[str, str]:
    """Return the parts of the answers that the protocol has no tensor for.

    `trace_id`; and as JSON, an element for each image: `missing` where members did not answer, `warning` for an odd
    file, and what features say of the images. `classifications` has the answers if an option asks for them.
    """
    each = [answer.classification for answer in answers]
    listed: dict[str, Sequence[Any]] = {
        **{name: [getattr(one, name) for one in each] for name in NOTED},
        "missing": [one.missing or {} for one in each],
        "warning": [one.warning or "" for one in each],
        "classifications": each if any(attrgetter(*SHOWN)(asked)) else (),
    }
    texts = {name: msgspec.json.encode(values).decode() for name, values in listed.items() if any(values)}
    return {"trace_id": each[0].trace_id, **texts}
