import pytest

from deployments.combiner import Combiner, CombinerSettings
from deployments.labeler import Labeler, LabelerSettings
from deployments.reconfigure import LiveSettings


def live():
    nodes = {
        "Combiner": Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0}),
        "Labeler": Labeler(LabelerSettings(top_k=2), ("x", "y")),
        "a": object(),
    }
    return LiveSettings(nodes), nodes


def test_changes_are_made_to_the_initial_settings():
    settings, nodes = live()
    settings.apply({"Combiner": {"method": "majority_vote"}})
    settings.apply({"Combiner": {"weights": {"a": 2.0}}})
    assert nodes["Combiner"].settings == CombinerSettings(weights={"a": 2.0})
    assert nodes["Labeler"].settings.top_k == 2
    settings.apply({})
    assert nodes["Combiner"].settings == CombinerSettings()


BAD = [
    ({"Combiner": {"weights": {"c": 1}}}, "no member 'c'"),
    ({"Combiner": {"methods": "mean"}}, "methods"),
    ({"Labeler": {"top_k": 0}}, "top_k"),
    ({"Labeler": "all"}, "Labeler"),
    ({"a": {"threads": 2}}, "a takes no user_config"),
    ({"z": {}}, "z takes no user_config"),
    ({"nodes": None}, "nodes takes no user_config"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_bad_value_is_refused_and_all_of_it(change, message, caplog):
    settings, nodes = live()
    before = nodes["Combiner"].settings, nodes["Labeler"].settings
    settings.apply({"Labeler": {"top_k": 1}, **change})
    assert (nodes["Combiner"].settings, nodes["Labeler"].settings) == before
    assert settings.refused == 1
    assert message in caplog.text
