import pytest

from deployments.combiner import Combiner, CombinerSettings
from deployments.contract.item import Item
from deployments.contract.rollout import CanaryConfig
from deployments.labeler import Labeler, LabelerSettings
from deployments.reconfigure import LiveSettings
from graph.features.canary.feature import counters
from graph.features.canary.trial import Trial


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


def test_a_canary_that_was_rolled_back_stays_so_until_its_own_settings_change():
    trial = Trial("a", CanaryConfig(version=2, share=0.5, least=1), counters())
    settings = LiveSettings({"canaries.a": trial, "Labeler": Labeler(LabelerSettings(), ("x", "y"))})
    settings.apply({"canaries.a": {"share": 2}})
    assert (settings.refused, trial.share) == (1, 0.5)
    for number in range(1, 10):
        trial.note("canary", [Item(queued_ns=number)], [True], 0.1)
    settings.apply({"Labeler": {"top_k": 2}})
    assert trial.share == 0.0
    settings.apply({"canaries.a": {"share": 0.1}})
    assert trial.share == 0.1
