"""Members that ONNX Runtime runs on this machine, from the model repository."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from deployments.contract import clock
from deployments.contract.batch import NO_SCORES, Batch, Work, crashed, predicted
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import STREAMS, THREADS, AttributeValue
from deployments.contract.member import MemberInterface, Signature, preprocessing_fields
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Size
from deployments.contract.settings import describe
from deployments.cpus import available_cores
from deployments.members.local import Health, LoadedModel
from deployments.members.versioned import VersionedMember
from deployments.repository.address import RepositoryAddress
from deployments.repository.errors import ModelError
from deployments.repository.repository import Model
from ensemble_interop.remote.tensors import (
    FLOATS,
    Binding,
    IncompatibleModel,
    ModelMetadata,
    Tensor,
    TensorSettings,
    bind,
    convert_pixels,
    pad,
    probabilities,
    split,
)

# The names of the Open Inference Protocol for ONNX Runtime's data types.
DATATYPES = {
    "tensor(uint8)": "UINT8",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}
# The fields of `TensorSettings` that a model's `metadata.json` may have in its `input`, too.
OF_METADATA = ("layout", "color", "mean", "scale")
# A model of floating-point pixels has these nowhere in its file.
REQUIRED_FOR_FLOATS = ("color", "mean", "scale")


class OnnxRuntime(TensorSettings, VersionedMember):
    """One ONNX model of the repository."""

    kind: Literal["onnxruntime"] = Field(description="ONNX Runtime on this machine; needs `pip install onnxruntime`")

    def describe(self, model: Model) -> Signature:
        """See `LocalMember.describe`."""
        binding, _ = self.bind(model, self.session(model, optimized=False))
        return Signature(
            classes=binding.classes,
            version=model.version,
            labels=model.labels,
            size=binding.size,
            **preprocessing_fields(model.input),
        )

    def identity(self, repository: RepositoryAddress) -> str:
        """Describe the model's files and the tensor settings; see `MemberConfig.identity`."""
        settings = self.model_dump_json(include=set(TensorSettings.model_fields), exclude_unset=True)
        return f"{self.kind} {self.name} {settings} {self.file_digests(repository)}"

    def load(self, model: Model, interface: MemberInterface, max_batch_size: int) -> LoadedModel:
        """See `LocalMember.load`."""
        return OnnxModel(self, model, interface, max_batch_size)

    def session(self, model: Model, optimized: bool = True) -> Any:
        """Open an inference session of a version.

        Raises:
            ModelError: the model is no ONNX file, its files are damaged, or ONNX Runtime can't run it.
            ConfigurationError: ONNX Runtime is not installed.
        """
        try:
            import onnxruntime
        except ImportError as err:
            raise ConfigurationError(
                f"members: {self.name!r}: `kind: onnxruntime` needs ONNX Runtime: pip install onnxruntime ({err})"
            ) from err
        if model.path.suffix != ".onnx":
            raise ModelError(f"{model.path} is no ONNX model; remove `kind: onnxruntime` to have OpenVINO run it")
        model.verify()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self.thread_count
        # Threads that wait actively take the cores from the other members.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
        # ONNX Runtime's errors have no base class of their own.
        except Exception as err:
            raise ModelError(f"ONNX Runtime can't load {model.path}: {err}") from err

    @property
    def thread_count(self) -> int:
        """The number of threads that compute an inference."""
        return self.threads or available_cores()

    def bind(self, model: Model, session: Any) -> tuple[Binding, TensorSettings]:
        """Find the tensors of a version, by the configuration and by the version's `metadata.json`.

        Raises:
            ModelError: there are no such tensors, or it can't be known what pixels the model takes.
        """
        inputs, outputs = (
            [Tensor(each.name, DATATYPES.get(each.type, each.type), _extents(each.shape)) for each in tensors]
            for tensors in (session.get_inputs(), session.get_outputs())
        )
        given = {name: getattr(self, name) for name in TensorSettings.model_fields if name in self.model_fields_set}
        described = {name: model.input[name] for name in OF_METADATA if name in model.input}
        try:
            settings = TensorSettings.model_validate({**described, **given})
            binding = bind(ModelMetadata(inputs, outputs), settings)
        except ValidationError as err:
            raise ModelError(f"model {model.name!r}: metadata.json: input: {describe(err)}") from err
        except IncompatibleModel as err:
            raise ModelError(f"model {model.name!r}: {err}") from err
        if len(inputs) > 1:
            raise ModelError(f"model {model.name!r} has {len(inputs)} inputs; a member has one, which takes images")
        missing = [name for name in REQUIRED_FOR_FLOATS if name not in settings.model_fields_set]
        if binding.input.datatype in FLOATS and missing:
            raise ModelError(
                f"model {model.name!r} takes pixels as {binding.input.datatype}, and its file lacks their colour "
                f"order and normalization; set {', '.join(f'`{name}`' for name in missing)}, such as `color: RGB`, "
                "`mean: [0, 0, 0]` and `scale: [255, 255, 255]`"
            )
        return binding, settings


def _extents(shape: Any) -> tuple[int, ...]:
    """Write -1 for each free extent of a shape, which ONNX names or leaves out."""
    return tuple(extent if isinstance(extent, int) else -1 for extent in shape)


class OnnxModel:
    """One version of an ONNX model: a thread runs one batch at a time, with the session's threads."""

    def __init__(self, config: OnnxRuntime, model: Model, interface: MemberInterface, max_batch_size: int) -> None:
        """Load the version, and run it; see `LocalMember.load`."""
        self._name, self._operation, self._classes = config.name, config.operation, len(interface.labels)
        self._version = model.version
        self._attributes: dict[str, AttributeValue] = {
            "ensemble.model.name": model.name,
            "ensemble.model.version": model.version,
            THREADS: config.thread_count,
            STREAMS: 1,
        }
        self.health = Health(config.name)
        try:
            self._session = config.session(model)
            self._binding, self._settings = config.bind(model, self._session)
        except ModelError as err:
            raise ConfigurationError(f"members: {config.name!r}: {err}") from err
        try:
            self._try_out(interface.size, max_batch_size)
        # ONNX Runtime's errors have no base class of their own.
        except Exception as err:
            raise ConfigurationError(f"members: {config.name!r}: model {model.name!r} does not run: {err}") from err
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="onnxruntime")
        self._turn, self._thread_count = asyncio.Lock(), config.thread_count

    def _try_out(self, size: Size, max_batch_size: int) -> None:
        """Run the smallest and the largest batch; raise ValueError unless the scores are what the settings say."""
        random = np.random.default_rng(0)
        for count in (1, max_batch_size):
            output = self._run(random.integers(0, 256, (count, *size, 3), np.uint8))
            is_distribution = not np.isnan(probabilities(output, count, self._classes, logits=False)).any()
            if is_distribution == (self._settings.scores == "logits"):
                other = "probabilities" if is_distribution else "logits"
                raise ValueError(
                    f"its output does not hold {self._settings.scores}; if it holds {other}, set `scores: {other}`"
                )

    def _run(self, pixels: Pixels) -> NDArray[Any]:
        """Compute the output for pixels; a model with a fixed batch size is called several times."""
        size = self._binding.batch_size
        outputs = []
        for part in split(pixels, size):
            tensor = convert_pixels(np.asarray(pad(part, size)), self._binding, self._settings)
            outputs.append(
                self._session.run([self._binding.output], {self._binding.input.name: tensor})[0][: len(part)]
            )
        return np.concatenate(outputs)

    def _predict(self, pixels: Pixels) -> tuple[Probabilities, int]:
        """Compute the scores; returns them, and the time when inference began, nanoseconds since the epoch."""
        began_ns = clock.now_ns()
        with self.health.inference():
            output = self._run(pixels)
        return probabilities(output, len(pixels), self._classes, self._settings.scores == "logits"), began_ns

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """Predict probabilities, float32 [N,C], rows that sum to 1, from pixels, uint8 [N,H,W,3] BGR.

        If inference fails, every image fails with `InferenceFailed`; an image whose scores are none fails alone.
        """
        work = Work(self._operation, batch)
        if len(work.payload) == 0:
            return predicted(work, self._name, NO_SCORES, [])
        loop = asyncio.get_running_loop()
        try:
            # Once the thread is free, the session's CPU time counts for this batch.
            with work.elsewhere():
                async with self._turn:
                    with work.elsewhere(self._thread_count):
                        scores, began_ns = await loop.run_in_executor(self._executor, self._predict, work.payload)
        except Exception:
            return crashed(work, self._name, attributes=self._attributes)
        versions = [self._version] * len(scores)
        return predicted(work, self._name, scores, versions, began_ns=began_ns, attributes=self._attributes)

    def close(self) -> None:
        """Free the thread and, once no batch is in flight, the session."""
        self._executor.shutdown(wait=False)
