"""Loads of the small servers, and records that are made up."""

import numpy as np

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import DTYPE


def target(url, images=(b"\xff\xd8\xffone", b"\xff\xd8\xfftwo"), **more):
    return Target(url, more.pop("protocol", Classify()), tuple(images), **more)


def sent(to, mode, seconds):
    """A load that has ended: the generator, with what became of every request."""
    with Generator(to, mode) as generator:
        generator.run(seconds)
    return generator


def made(*rows):
    """Records: when due, when sent, when done, status and flags of each."""
    return np.array([(due, begun, done, status, flags, 1) for due, begun, done, status, flags in rows], DTYPE)
