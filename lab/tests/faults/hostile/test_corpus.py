from collections import Counter
from random import Random

import pytest

from deployments.contract.errors import EnsembleError
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer import decoding
from deployments.transformer.transformer import TransformerSettings
from lab.faults.hostile.corpus import SHARES, made
from lab.faults.hostile.pictures import FORMATS, well_formed

SEED = 3


def test_an_input_is_made_of_its_seed_and_number():
    assert [made(SEED, number) for number in range(50)] == [made(SEED, number) for number in range(50)]
    assert made(SEED, 7) == made(SEED, 7) != made(SEED + 1, 7)


def test_every_family_is_in_a_few_hundred():
    assert sum(share for share, _ in SHARES) == 100
    seen = Counter(made(SEED, number).kind.partition(":")[0] for number in range(400))
    families = {"mutated pictures", "truncated pictures", "bombs", "forms", "JSON", "gRPC messages", "HTTP/2 frames"}
    assert set(seen) == {*families, "HTTP"}


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_to_be_damaged_was_whole(name):
    decoded = 0
    for number in range(12):
        image = well_formed(name, Random(number))
        try:
            decoding.decode(image, decoding.read_header(image, TransformerSettings()), [Preprocessing((32, 32))])
            decoded += 1
        except EnsembleError:
            continue
    assert decoded >= 10
