import numpy as np
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from deployments.contract.batch import Batch
from deployments.contract.item import Item, Note, Step
from deployments.contract.options import Options
from ensemble_features.cascade.flow import LoadState
from ensemble_features.cascade.section import CascadeSection
from ensemble_features.cascade.settings import UnderLoadSettings


def waited(*milliseconds, **options):
    """A batch whose images waited so long until a node took them."""
    taken = [Step(Note("decode", 10**9 + int(each * 1e6), 0, {}, ("", 0))) for each in milliseconds]
    items = [Item(options=Options(**options), queued_ns=10**9, steps=(step,)) for step in taken]
    return Batch({"small": np.arange(len(items), dtype=np.uint8)}, tuple(items))


def strain(**settings):
    return LoadState(UnderLoadSettings(exit_at=(0.1,), **settings))


def test_it_begins_at_one_wait_and_ends_at_a_shorter_one():
    load = strain(from_queue_ms=20, until_queue_ms=5)
    seen = []
    for ms in (4, 19.9, 20, 10, 5.1, 5, 10, 21):
        load.see(waited(ms))
        seen.append(load.is_on)
    assert seen == [False, False, True, True, True, False, False, True]


def test_the_image_that_waited_longest_decides_and_one_that_did_not_wait_says_nothing():
    load = strain()
    load.see(waited(1, 100, 2))
    assert load.is_on
    load.see(Batch({}, (Item(), replace(waited(1).items[0], queued_ns=0))))
    assert load.is_on


def test_full_quality_is_granted_always_and_under_load_to_a_share():
    load = strain(full_share=0.25)
    full, any_ = waited(0, quality="full").items[0], Item()
    assert [load.grants(full) for _ in range(20)] == [True] * 20
    assert not load.grants(any_)
    load.see(waited(*[100] * 40))
    assert sum(load.grants(full) for _ in range(40)) == 10
    # A new beginning counts anew.
    load.see(waited(0))
    load.see(waited(*[100] * 8))
    assert sum(load.grants(full) for _ in range(8)) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"under_load": {"exit_at": [0.1]}},
        {"cascade": {"order": ["a", "b"], "exit_at": [0.5]}, "under_load": {"exit_at": [0.6]}},
        {"cascade": {"order": ["a", "b"], "exit_at": [0.5]}, "under_load": {"exit_at": [0.1, 0.1]}},
        {
            "cascade": {"order": ["a", "b"], "exit_at": [0.5]},
            "under_load": {"exit_at": [0.1], "from_queue_ms": 5, "until_queue_ms": 5},
        },
    ],
)
def test_what_does_not_fit_a_cascade_is_refused(settings):
    with pytest.raises(ValidationError, match=r"under_load|until_queue_ms"):
        CascadeSection.model_validate(settings)
