"""A kind of member: it calls an image light or dark, by its mean brightness, without a model."""

import numpy as np

from deployments.contract.batch import Batch, Work, predicted
from deployments.contract.member import MemberConfig, MemberInterface, Signature
from deployments.contract.payload import Pixels, Probabilities


class Brightness(MemberConfig):
    """`kind: brightness`; a field here is a field in the YAML file."""

    def signature(self, _repository: object) -> Signature:
        """Answer two classes, of version 1, for pixels of 32 x 32."""
        return Signature(classes=2, version=1, labels=("dark", "light"), size=(32, 32))

    def make(self, _repository: object, _interface: MemberInterface, _max_batch_size: int) -> "Judge":
        """Make the node, in the process where it runs."""
        return Judge(self.name)


class Judge:
    """The node: pixels, uint8 [N,32,32,3], to probabilities, float32 [N,2]."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """Judge each image of a batch."""
        work = Work(f"predict {self.name}", batch)
        light = work.payload.mean(axis=(1, 2, 3), dtype=np.float32) / 255
        return predicted(work, self.name, np.stack([1 - light, light], axis=1), [1] * len(light))
