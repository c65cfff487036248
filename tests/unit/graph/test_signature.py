import pytest

from deployments.contract.errors import ConfigurationError
from deployments.contract.preprocessing import AsSent, Preprocessing
from graph.config import parse
from graph.signature import resolve_signatures
from tests.networks import constant, store

CLASSES = ("x", "y")


@pytest.fixture
def agreed(tmp_path):
    """What members agree on, each made with its size (None: any) and what its metadata tells of its input."""

    def make(transformer=None, **members):
        for name, (size, told) in members.items():
            store(tmp_path, name, constant([0.5, 0.5], size=size or -1), classes=CLASSES, input=told)
        args = {"model_repository": str(tmp_path), "members": [{"name": name} for name in members]}
        return resolve_signatures(parse({**args, "transformer": transformer or {}}))

    return make


def test_members_that_want_the_same_pixels_share_them(agreed):
    found = agreed(a=(32, {}), b=(32, {"crop_ratio": 1.0}), c=(64, {"crop_ratio": 0.875}))
    assert set(found.wanted.values()) == {Preprocessing((32, 32)), Preprocessing((64, 64), 0.875)}
    assert found.preprocessing["a"].key == found.preprocessing["b"].key != found.preprocessing["c"].key


def test_what_a_model_tells_of_its_pixels_is_what_it_gets(agreed):
    told = {"resize": "letterbox", "interpolation": "cubic", "border": [1, 2, 3], "crop_ratio": 0.9}
    assert agreed(a=(32, told)).preprocessing["a"] == Preprocessing((32, 32), 0.9, "letterbox", "cubic", (1, 2, 3))


@pytest.mark.parametrize("ratio", ["much", -1, 0, 1.143, 87.5, float("nan")])
def test_a_model_is_cropped_within_the_image(agreed, ratio):
    message = r"^members: 'a': `input` in the model's metadata.json: Expected `float.* - at `\$.crop_ratio`$"
    with pytest.raises(ConfigurationError, match=message):
        agreed(a=(32, {"crop_ratio": ratio}))


@pytest.mark.parametrize(
    "wrong", [{"resize": "shear"}, {"border": [1]}, {"border": [300, 0, 0]}, {"border": [0, 0, -1]}]
)
def test_a_model_whose_metadata_are_wrong_is_refused(agreed, wrong):
    with pytest.raises(ConfigurationError, match="members: 'a': "):
        agreed(a=(32, wrong))


def test_the_transformers_configuration_is_for_all(agreed):
    found = agreed({"crop_ratio": 0.5, "size": [32, 32]}, a=(32, {"crop_ratio": 0.9}), b=(None, {}))
    assert set(found.wanted.values()) == {Preprocessing((32, 32), 0.5)}


def test_a_member_of_any_size_takes_what_the_others_take(agreed):
    assert agreed(a=(32, {}), any=(None, {})).preprocessing["any"].size == (32, 32)


def test_a_member_of_any_size_among_members_that_differ_is_told(agreed):
    with pytest.raises(
        ConfigurationError, match=r"'any' takes any size and the others differ: \[\(32, 32\), \(64, 64\)"
    ):
        agreed(a=(32, {}), b=(64, {}), any=(None, {}))


def test_some_member_must_fix_its_size(agreed):
    with pytest.raises(ConfigurationError, match="no member fixes its input size"):
        agreed(any=(None, {}))


ELSEWHERE = {"kind": "open_inference", "url": "http://127.0.0.1:9"}


def test_a_remote_member_without_a_server_takes_what_the_others_take(tmp_path):
    store(tmp_path, "here", constant([0.5, 0.5]), classes=CLASSES, input={"crop_ratio": 0.875})
    members = [{"name": "here"}, {"name": "far", **ELSEWHERE}, {"name": "decodes", **ELSEWHERE, "as_sent": True}]
    found = resolve_signatures(parse({"model_repository": str(tmp_path), "members": members}))
    assert found.labels == CLASSES
    assert found.preprocessing["far"] == found.preprocessing["here"] == Preprocessing((32, 32), 0.875)
    assert found.preprocessing["decodes"] == AsSent()
    assert set(found.wanted) == {found.preprocessing["here"].key, AsSent().key}


def test_labels_of_a_remote_member_are_compared(tmp_path):
    store(tmp_path, "here", constant([0.5, 0.5]), classes=CLASSES)
    members = [{"name": "here"}, {"name": "far", **ELSEWHERE, "labels": ["x", "z"]}]
    with pytest.raises(ConfigurationError, match="'far' and 'here' disagree on the labels, as 'y'"):
        resolve_signatures(parse({"model_repository": str(tmp_path), "members": members}))


def test_members_with_the_classes_in_another_order_are_matched_by_name(tmp_path):
    for name, classes in (("a", CLASSES), ("b", CLASSES[::-1])):
        store(tmp_path, name, constant([0.8, 0.2]), classes=classes)
    members = [{"name": "a"}, {"name": "b"}]
    found = resolve_signatures(parse({"model_repository": str(tmp_path), "members": members}))
    assert (found.labels, found.reordered) == (CLASSES, ("b",))
    # A member on another server answers in its own order, which the others take.
    members = [{"name": "a"}, {"name": "far", **ELSEWHERE, "labels": list(CLASSES[::-1])}]
    found = resolve_signatures(parse({"model_repository": str(tmp_path), "members": members}))
    assert (found.labels, found.reordered) == (CLASSES[::-1], ("a",))


def test_somebody_must_tell_the_classes(tmp_path):
    members = [{"name": "far", **ELSEWHERE, "size": [8, 8]}]
    with pytest.raises(ConfigurationError, match="none tells its classes"):
        resolve_signatures(parse({"model_repository": str(tmp_path), "members": members}))
