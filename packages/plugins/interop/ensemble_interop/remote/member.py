"""A member that another model server runs: its node, and the kind of member that makes the node."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deployments.contract import clock
from deployments.contract.batch import NO_SCORES, Batch, Work, failed, predicted
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import AttributeValue, Item
from deployments.contract.member import PREPROCESSING_FIELDS, MemberInterface, Signature
from deployments.contract.nodes import Node
from deployments.contract.options import MAX_CLASSES
from deployments.contract.payload import Images, Probabilities
from deployments.contract.preprocessing import AsSent, Preprocessing
from deployments.repository.address import RepositoryAddress
from deployments.repository.errors import ModelError
from deployments.repository.labels import class_names, read_labels
from ensemble_interop.remote.client import CallError, InvalidResponse, TimedOut
from ensemble_interop.remote.config import RemoteConfig
from ensemble_interop.remote.endpoints import Endpoint, Endpoints, described
from ensemble_interop.remote.tensors import Binding, IncompatibleModel, bind, convert_pixels, pad, probabilities, split
from ensemble_serving.answer import Version

logger = logging.getLogger("ray.serve")

UNKNOWN = "unknown"
# Characters of a version, which every answer has; of a longer one the last three are dots.
MOST_VERSION = 64
# The delay before the first retry, at random up to twice as long; it doubles with each retry.
MIN_BACK_OFF_S = 0.025
# A call that had less time than this and was not answered does not count as a failure of the server.
FAIR_TIME_S = 1.0
LOG_EVERY_S = 5.0
# A model whose batch size is fixed answers at most so many images.
MAX_FIXED_BATCH = 1024
# How long a start waits for a server to describe its model.
DESCRIBE_AT_START_S = 3.0


class Answer(NamedTuple):
    """The probabilities that a server computed, the model's version, and how often a server was called for them."""

    scores: Probabilities
    version: str
    tries: int


class RemoteMember:
    """Calls another model server. Whatever that does, only this member's answers are lost."""

    def __init__(self, config: RemoteConfig, interface: MemberInterface, max_batch_size: int) -> None:
        """Set the configuration, the member's interface, and the most images of a batch."""
        self.name = config.name
        self.version: Version = UNKNOWN
        self._config, self._interface = config, interface
        max_scores = max(max_batch_size, MAX_FIXED_BATCH) * len(interface.labels)
        self._endpoints = Endpoints(config, max_scores, self._check)
        self._logged = float("-inf")

    def addresses(self) -> tuple[int, int]:
        """Count the server's addresses that are healthy, and the ejected ones."""
        return self._endpoints.count()

    def _check(self, binding: Binding) -> None:
        """Raise IncompatibleModel if a model does not take what this member gets, or give what it must answer."""
        images = self._interface.images
        size = images.size if isinstance(images, Preprocessing) else None
        binding.check(isinstance(images, AsSent), size, len(self._interface.labels))

    async def __call__(self, batch: Batch[Images]) -> Batch[Probabilities]:
        """Predict: pixels, uint8 [N,H,W,3] BGR, or images as they were sent, to probabilities, float32 [N,C].

        If the call fails, every image fails. An image whose scores are no distribution fails alone.
        """
        work = Work(self._config.operation, batch)
        if len(work.payload) == 0:
            return predicted(work, self.name, NO_SCORES, [])
        attributes: dict[str, AttributeValue] = {
            "ensemble.model.name": self._config.model_name,
            "server.address": self._config.address[0],
            "server.port": self._config.address[1],
        }
        span = secrets.token_hex(8)
        try:
            with work.elsewhere():
                answers = await self._infer(work.payload, work.batch.items, span)
        except CallError as err:
            self._log(err)
            error = err.kind(f"member {self.name!r} has no answer from its server; the server's log has the cause")
            return failed(work, error, attributes=attributes, span=span)
        scores = np.concatenate([answer.scores for answer in answers])
        versions = [answer.version for answer in answers for _ in answer.scores]
        self.version = versions[-1]
        attributes["ensemble.model.version"] = self.version
        attributes["ensemble.remote.tries"] = sum(answer.tries for answer in answers)
        hint = "; if they are logits, set `scores: logits`"
        return predicted(work, self.name, scores, versions, hint, attributes=attributes, span=span)

    async def _infer(self, images: Images, items: Sequence[Item], span: str) -> list[Answer]:
        """Call the server for the images, in parts if it takes fewer at once; raises CallError."""
        live = [item for item in items if item.error is None]
        deadlines = [item.deadline for item in live if item.deadline is not None]
        timeout_s = self._config.timeout_ms / 1000
        if len(deadlines) == len(live):
            timeout_s = min(timeout_s, max(deadlines) - clock.now())
        give_up = time.monotonic() + timeout_s
        headers = {"traceparent": _trace_parent(live, span)}
        try:
            async with asyncio.timeout(timeout_s):
                bindings = [each.binding for each in await self._endpoints.healthy(timeout_s)]
                sizes = [self._config.max_batch_size, *(each.batch_size for each in bindings if each is not None)]
                parts = split(images, min((size for size in sizes if size), default=None))
                calls = [asyncio.ensure_future(self._infer_part(part, headers, give_up)) for part in parts]
                try:
                    return await asyncio.gather(*calls)
                finally:
                    # If one has failed, so has the batch, and nobody waits for the others.
                    for call in calls:
                        call.cancel()
        except TimeoutError:
            raise TimedOut(f"no answer in {timeout_s * 1000:.0f} ms") from None

    async def _infer_part(self, images: Images, headers: Mapping[str, str], give_up: float) -> Answer:
        """Call one endpoint; after a failure that allows it, call another one or the same again."""
        called: list[Endpoint] = []
        while True:
            healthy = await self._endpoints.healthy(give_up - time.monotonic())
            endpoint = min(healthy, key=lambda each: (called.count(each), each.in_flight, each.called))
            endpoint.called = time.monotonic()
            called.append(endpoint)
            try:
                scores, version = await self._call(endpoint, images, headers, give_up)
                return Answer(scores, version or UNKNOWN, len(called))
            except CallError as err:
                back_off_s = MIN_BACK_OFF_S * 2 ** (len(called) - 1) * random.uniform(1, 2)
                if not err.retry or len(called) > self._config.retries or time.monotonic() + back_off_s >= give_up:
                    raise
            await asyncio.sleep(back_off_s)

    async def _call(
        self, endpoint: Endpoint, images: Images, headers: Mapping[str, str], give_up: float
    ) -> tuple[Probabilities, str]:
        binding = endpoint.binding
        assert binding is not None
        padded = pad(images, binding.batch_size)
        sent: Any = padded if binding.as_sent else convert_pixels(np.asarray(padded), binding, self._config)
        began = time.monotonic()
        endpoint.in_flight += 1
        try:
            output = await endpoint.client.infer(binding, sent, headers, give_up - began)
            scores = self._probabilities(output.values, len(sent))
        except (CallError, asyncio.CancelledError) as err:
            # A client with a short deadline, or one that disconnects, is not the server's failure.
            had_time = time.monotonic() - began >= min(FAIR_TIME_S, self._config.timeout_ms / 1000)
            if isinstance(err, asyncio.CancelledError):
                if had_time and time.monotonic() >= give_up:
                    endpoint.failed(TimedOut("no answer in time"))
            elif had_time or not isinstance(err, TimedOut):
                endpoint.failed(err)
            raise
        finally:
            endpoint.in_flight -= 1
        endpoint.succeeded()
        version = output.version or binding.version
        if len(version) > MOST_VERSION:
            version = f"{version[: MOST_VERSION - 3]}..."
        return scores[: len(images)], version

    def _probabilities(self, values: Any, rows: int) -> Probabilities:
        try:
            return probabilities(values, rows, len(self._interface.labels), self._config.scores == "logits")
        except ValueError as err:
            raise InvalidResponse(str(err)) from err

    def _log(self, error: CallError) -> None:
        """Log why there is no answer, but not with every batch."""
        now = time.monotonic()
        if now >= self._logged + LOG_EVERY_S:
            self._logged = now
            logger.warning("member %r has no answer: %s: %s", self.name, type(error).__name__, error)


def _trace_parent(items: Sequence[Item], span: str) -> str:
    """Write the `traceparent` of a call: a span of its own in the trace of the first sampled image."""
    parents = [item.trace_parent for item in items if item.trace_parent]
    sampled = [parent for parent in parents if int(parent[-2:], 16) & 1]
    first = next(iter(sampled or parents), f"00-{secrets.token_hex(16)}-{span}-00")
    return f"{first[:36]}{span}{first[52:]}"


class RemoteKind(RemoteConfig):
    """A kind of member on another server: a protocol is a subclass with clients of its own."""

    def class_names(self) -> tuple[str, ...] | None:
        """Return the configured labels; raises ConfigurationError if a file can't be read or a class has no name."""
        try:
            if isinstance(self.labels, Path):
                return read_labels(self.labels)
            return self.labels and class_names(self.labels, "the list")
        except (OSError, ModelError) as err:
            raise ConfigurationError(f"members: {self.name!r}: labels: can't be read: {err}") from err

    def signature(self, repository: RepositoryAddress) -> Signature:
        """Combine the server's description with the configuration; without a server, the configuration alone counts.

        Raises:
            ConfigurationError: the server's model can't be a member.
        """
        labels = self.class_names()
        # In a thread, because this one may have an event loop already.
        with ThreadPoolExecutor(1) as pool:
            binding = pool.submit(asyncio.run, self._describe(None if labels is None else len(labels))).result()
        classes = binding.classes if binding is not None else None
        return Signature(
            classes=classes if labels is None else len(labels),
            version=binding.version if binding is not None else None,
            labels=labels,
            size=self.size or (binding.size if binding is not None else None),
            **{name: getattr(self, name) for name in PREPROCESSING_FIELDS},
            as_sent=binding.as_sent if binding is not None else bool(self.as_sent),
        )

    async def _describe(self, classes: int | None) -> Binding | None:
        """Find the tensors of the server's model; None if no server answers."""
        try:
            async with asyncio.timeout(DESCRIBE_AT_START_S):
                binding = bind(await described(self, MAX_CLASSES, DESCRIBE_AT_START_S), self)
            binding.check(self.as_sent, self.size, classes)
            return binding
        except IncompatibleModel as err:
            raise ConfigurationError(f"members: {self.name!r}: {self.url}: {err}") from err
        except TimeoutError:
            error: Exception | str = f"no response in {DESCRIBE_AT_START_S:.0f} s"
        except (CallError, OSError) as err:
            error = err
        logger.warning("members: %r: %s: %s; it is asked again while we serve", self.name, self.url, error)
        return None

    def make(
        self, repository: RepositoryAddress, agreed: MemberInterface, max_batch_size: int
    ) -> Node[Any, Probabilities]:
        """Make the node that calls the server; see `MemberConfig.make`."""
        return RemoteMember(self, agreed, max_batch_size)
