"""The JPEG transformer: encoded images in, uint8 pixels out, one set for each preprocessing of the members."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import ConfigurationError, EnsembleError, InvalidImage
from deployments.contract.image_probe import ImageProbe, probe
from deployments.contract.payload import Decoded, Deferred, Images, Pixels, PixelSets
from deployments.contract.preprocessing import AsSent, MemberInput, Preprocessing
from deployments.cpus import available_cpus
from deployments.transformer.settings import Isolate, TransformerConfig, TransformerSettings

logger = logging.getLogger("ray.serve")

__all__ = ["JpegTransformer", "TransformerConfig", "TransformerSettings"]

OPERATION, RESIZE = "decode", "resize"
DecodingOutcome = Decoded | EnsembleError
# An encoded image, and what it declares.
Probed = tuple[bytes, ImageProbe]
T = TypeVar("T")
R = TypeVar("R")


class JpegTransformer:
    """Decodes batches of images.

    JPEGs of the usual size are decoded in a thread pool, and a small one that is alone in its batch on the event loop.
    Everything else is decoded in as many processes, because its decoders are less proven and need more memory: a
    decoder that hangs or crashes costs its image alone.
    """

    def __init__(
        self,
        settings: TransformerSettings,
        wanted: Mapping[str, MemberInput],
        threads: int | None,
        isolate: Isolate = "others",
    ) -> None:
        """Set the limits, the members' inputs by their keys, the decoding threads, and the images for processes."""
        self.settings = settings
        self._max_image_bytes = settings.max_image_bytes
        self._isolates_all = isolate == "all"
        self._now = {key: each for key, each in wanted.items() if isinstance(each, Preprocessing)}
        self._later: dict[str, Preprocessing] = {}
        self._as_sent = [key for key, each in wanted.items() if isinstance(each, AsSent)]
        self._threads = threads or available_cpus()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        # Imported where it runs: a process without a transformer saves OpenCV's memory.
        from deployments.transformer import decoding
        from deployments.transformer.isolation.pool import IsolatedPool

        self._decoding = decoding
        self._isolated = IsolatedPool(self._threads)

    def check(self, settings: TransformerSettings) -> None:
        """Raise ConfigurationError for larger images than at the start, of which the ingress reads no more."""
        if settings.max_image_bytes > self._max_image_bytes:
            raise ConfigurationError(
                f"max_image_bytes is {self._max_image_bytes} from the start; deploy it with more in `args`"
            )

    def defer_others(self, keys: Collection[str]) -> None:
        """Make pixels of other keys than these only when a member asks for them; see `Deferred`."""
        self._later = {key: each for key, each in self._now.items() if key not in keys}
        self._now = {key: each for key, each in self._now.items() if key in keys}

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[PixelSets]:
        """Decode images to pixels, uint8 [N,H,W,3] BGR by key; an image that can't be decoded fails alone.

        Images are decoded even if every member takes them as they were sent, because a damaged one would fail the whole
        batch at a member's server.
        """
        work = Work(OPERATION, batch)
        outcomes = await self._decode_all(work)
        errors = {row: outcome for row, outcome in enumerate(outcomes) if isinstance(outcome, EnsembleError)}
        decoded = [outcome for outcome in outcomes if isinstance(outcome, Decoded)]
        sets: dict[str, Images | Deferred] = {
            key: np.array([each.pixels[position] for each in decoded], np.uint8).reshape(-1, *wanted.size, 3)
            for position, (key, wanted) in enumerate(self._now.items())
        }
        sets |= {key: Deferred(decoded, partial(self._resize_later, key)) for key in self._later}
        sets |= {key: [image for row, image in enumerate(work.payload) if row not in errors] for key in self._as_sent}
        noted = [{"image_size": each.size, "warning": each.warning} for each in decoded]
        return work.done(sets, noted.__getitem__, errors=errors)

    async def _decode_all(self, work: Work[Sequence[bytes]]) -> list[DecodingOutcome]:
        """Decode each image where it belongs: in a thread, on the event loop, or in a process of its own."""
        items = [work.batch.items[position] for position in work.batch.live]
        probed = [(image, item.probe or probe(image)) for item, image in zip(items, work.payload, strict=True)]
        isolated = [row for row, (_, found) in enumerate(probed) if self._isolates_all or not found.is_plain]
        if not isolated:
            is_quick = len(probed) == 1 and probed[0][1].is_quick
            return self._decode(probed) if is_quick else await self._in_threads(work, self._decode, probed)
        plain = sorted({*range(len(probed))} - {*isolated})
        sent = [(probed[row][0], items[row].deadline) for row in isolated]
        wanted = (*self._now.values(), *self._later.values())
        with work.elsewhere():
            in_threads, (in_processes, cpu_ns) = await asyncio.gather(
                self._in_threads(work, self._decode, [probed[row] for row in plain]),
                self._isolated.decode(sent, wanted, self.settings),
            )
        work.others_ns += cpu_ns
        outcomes = dict(zip([*plain, *isolated], [*in_threads, *in_processes], strict=True))
        return [outcomes[row] for row in range(len(probed))]

    async def _in_threads(
        self, work: Work[Any], function: Callable[[Sequence[T]], list[R]], images: Sequence[T]
    ) -> list[R]:
        """Call a function with as many chunks of images as there are threads; return the results in one list."""
        loop = asyncio.get_running_loop()
        size = -(-len(images) // self._threads) or 1
        chunks = [images[first : first + size] for first in range(0, len(images), size)]
        calls = [loop.run_in_executor(self._pool, function, each) for each in chunks]
        with work.elsewhere(len(calls)):
            results = await asyncio.gather(*calls) if len(calls) > 1 else [await call for call in calls]
        return list(chain.from_iterable(results))

    def _decode(self, images: Sequence[Probed]) -> list[DecodingOutcome]:
        """Decode images, one after the other; called in a thread of the pool."""
        outcomes: list[DecodingOutcome] = []
        now, later = tuple(self._now.values()), tuple(self._later.values())
        for encoded, found in images:
            try:
                header = self._decoding.read_header(encoded, self.settings, found.jpeg)
                outcomes.append(self._decoding.decode(encoded, header, now, later))
            except EnsembleError as err:
                outcomes.append(err.with_traceback(None))
            except Exception:
                # The batch's other images have answers.
                logger.exception("failed to decode an image of %d bytes", len(encoded))
                outcomes.append(InvalidImage("the image can't be decoded; send it in another format"))
        return outcomes

    async def _resize_later(self, key: str, batch: Batch[Deferred]) -> Batch[Pixels]:
        """Make the deferred pixels of a key, uint8 [N,H,W,3] BGR."""
        work, wanted = Work(RESIZE, batch), self._later[key]
        position = len(self._now) + list(self._later).index(key)

        def make(images: Sequence[Decoded]) -> list[Pixels]:
            # A process that decodes makes all.
            return [each.pixels[position] if each.make is None else each.make(wanted) for each in images]

        images = work.payload.images
        # To wake a thread takes longer than one image does.
        made = make(images) if len(images) == 1 else await self._in_threads(work, make, images)
        return work.done(np.array(made, np.uint8).reshape(-1, *wanted.size, 3))
