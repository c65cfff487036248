import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.errors import InvalidParameter
from deployments.contract.item import name_of
from deployments.contract.options import LOWER, Options
from deployments.ingress.headers import with_options
from deployments.ingress.options import added, every, from_keywords, from_parameters, noted
from ensemble_features.cache.flow import prediction_options
from ensemble_features.cascade.flow import LoadShed


def test_text_becomes_what_it_says():
    assert from_keywords({"top_k": "3", "members": "true", "timeout_ms": "200"}, strict=False) == Options(3, True, 200)
    said = [from_keywords({"members": text}, strict=False).members for text in ("1", "0", "TRUE", "false")]
    assert said == [True, False, True, False]
    assert from_keywords({}, strict=False) == Options()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"top_k": "0"}, "top_k: expected `int` >= 1; got '0'"),
        ({"top_k": "all"}, "top_k: expected `int`"),
        ({"top_k": "1.5"}, "top_k: expected `int`"),
        ({"top_k": "9" * 50}, "top_k: .*; got '9{39}$"),
        ({"members": "perhaps"}, "members: expected `bool`"),
        ({"timeout_ms": "-1"}, "timeout_ms: expected `int` >= 1"),
        ({"timeout_ms": "100000000"}, "timeout_ms: expected `int` <= 3600000"),
        *(({"tolerance": text}, "tolerance: expected `float` >= 0") for text in ("-0.1", "nan", "-inf")),
        ({"tolerance": "inf"}, "tolerance: expected `float` <= 100"),
        ({"tolerance": "half"}, "tolerance: expected `float`, got `str`; got 'half'"),
        ({"added": "1"}, "no parameter 'added'"),
        (
            {"topk": "1"},
            r"no parameter 'topk'; there are \['cache', 'members', 'priority', 'quality', 'receipt', 'timeout_ms', 'ti",
        ),
    ],
)
def test_a_wrong_query_is_told(query, told):
    with pytest.raises(InvalidParameter, match=told):
        from_keywords(query, strict=False)


def test_parameters_are_typed_and_a_clients_own_are_left_alone():
    assert from_parameters({"top_k": 2, "binary_data_output": False}) == Options(top_k=2)
    for wrong in ({"top_k": "2"}, {"top_k": True}, {"members": 1}, {"timeout_ms": 1.5}, {"top_k": 0}):
        with pytest.raises(InvalidParameter, match=next(iter(wrong))):
            from_parameters(wrong)


class Unread:
    def __repr__(self):
        raise AssertionError


def test_a_large_value_is_not_written_to_quote_its_beginning():
    with pytest.raises(InvalidParameter, match=r"top_k: .*; got \[0, 0, "):
        from_parameters({"top_k": [0] * 100 + [Unread()]})
    for name in every().__struct_fields__:
        with pytest.raises(InvalidParameter, match=name) as refused:
            from_parameters({name: "x" * 10_000})
        assert len(refused.value.message) < 200


@pytest.mark.parametrize("name", ["top_k", "members", "timeout_ms"])
def test_half_a_character_is_told(name):
    with pytest.raises(InvalidParameter, match="no text"):
        from_parameters({name: "\ud800"})


def test_keywords_are_typed_and_known():
    assert from_keywords({"members": True}) == Options(members=True)
    with pytest.raises(InvalidParameter, match="no parameter 'topk'"):
        from_keywords({"topk": 1})
    with pytest.raises(InvalidParameter, match="timeout_ms"):
        from_keywords({"timeout_ms": -1})


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)
NAME = st.one_of(st.sampled_from(sorted(every().__struct_fields__)), st.text(max_size=8))


@given(st.dictionaries(NAME, st.one_of(st.text(max_size=12), st.sampled_from(["1", "true", "\ud800", "1e3"]))))
def test_any_query_is_options_or_the_callers_mistake(query):
    with contextlib.suppress(InvalidParameter):
        assert isinstance(from_keywords(query, strict=False), Options)


@given(st.dictionaries(NAME, ANYTHING))
def test_any_parameters_are_options_or_the_callers_mistake(parameters):
    for read in (from_parameters, from_keywords):
        with contextlib.suppress(InvalidParameter):
            assert isinstance(read(parameters), Options)


def test_a_header_has_the_options_of_a_query():
    given = Options(top_k=2, timings=True)
    assert with_options(given, {"ensemble-options": "members=true&top_k=3"}) == Options(3, True, timings=True)
    assert with_options(given, {"ensemble-options": ""}) == given
    for wrong in ("topk=1", "top_k=", "top_k=0", "members"):
        with pytest.raises(InvalidParameter):
            with_options(given, {"ensemble-options": wrong})


def test_a_timeout_and_a_priority_are_as_tritons():
    assert from_parameters({"timeout": 1500, "priority": 0}) == Options(timeout_ms=2)
    assert from_parameters({"timeout": 1500, "timeout_ms": 70}) == Options(timeout_ms=70)
    assert from_parameters({"timeout": 0}) == Options()
    assert [from_parameters({"priority": each}).priority >= LOWER for each in (0, 1, 2, 9)] == [
        False,
        False,
        True,
        True,
    ]
    for wrong in ({"timeout": "1500"}, {"timeout": True}, {"timeout": -1}, {"priority": -1}, {"priority": 2**70}):
        with pytest.raises(InvalidParameter):
            from_parameters(wrong)


@pytest.mark.parametrize(("value", "is_lower"), [("u=7", True), ("i, u=7", True), ("u=4, i", False), ("u=77", False)])
def test_a_header_names_work_in_the_background(value, is_lower):
    assert (with_options(Options(), {"priority": value}).priority >= LOWER) == is_lower
    assert with_options(Options(priority=1), {"priority": value}).priority == 1
    # What changes no prediction is no part of a cache's key.
    assert not prediction_options(with_options(Options(), {"priority": value}))


def test_a_features_options_are_read_from_wherever_others_are():
    """Of two places that name options of one feature, both count."""
    asked = {"top_k": 2, "tolerance": 0.5, "tolerance_under_load": 1.0}
    by_header = with_options(from_keywords({"tolerance": 0.5}), {"ensemble-options": "tolerance_under_load=1&top_k=2"})
    texts = {name: str(value) for name, value in asked.items()}
    for read in (from_keywords(asked), from_parameters(asked), from_keywords(texts, strict=False), by_header):
        assert read.chosen() == asked
    assert from_keywords({"tolerance": None}) == Options()
    assert with_options(from_keywords({"tolerance": 0.5}), {"ensemble-options": "tolerance=0.2"}).chosen() == {
        "tolerance": 0.2
    }


def test_an_option_that_nothing_here_reads_is_refused_with_what_it_needs():
    asked = from_keywords({"tolerance": 0.5})
    with pytest.raises(InvalidParameter, match=r"tolerance: nothing here reads it; it needs .*ladder`"):
        noted(asked, {})
    [kind] = added()
    note = LoadShed()
    assert noted(asked, {kind: lambda each, options: note}) == {name_of(LoadShed): note}
    assert noted(Options(), {}) == {}
