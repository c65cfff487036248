import pytest

from deployments.contract.errors import InvalidParameter
from ensemble_features.loading.feature import check_unload, version_to_load


@pytest.mark.parametrize(
    ("parameters", "version"),
    [
        ({}, None),
        ({"version": 2}, 2),
        ({"version": "2"}, 2),
        ({"config": ""}, None),
        ({"config": "{}"}, None),
        ({"config": '{"version_policy": {}}'}, None),
        ({"config": '{"version_policy": {"specific": {"versions": [3]}}}'}, 3),
        ({"config": b'{"version_policy": {"specific": {"versions": ["3"]}}}'}, 3),
    ],
)
def test_the_version_that_is_wanted(parameters, version):
    assert version_to_load(parameters) == version


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"version": 0}, "version: "),
        ({"version": True}, "version: "),
        ({"version": "latest"}, "version: "),
        ({"version": 2**31}, "version: "),
        ({"version": None}, "version: "),
        ({"version": "\ud800"}, "version: "),
        ({"config": 1}, "config is the JSON"),
        ({"config": b"\xff"}, "config is the JSON"),
        ({"config": "no JSON"}, "config is the JSON"),
        ({"config": "[" * 100_000}, "config is the JSON"),
        ({"config": '{"max_batch_size": 1}'}, "config is the JSON"),
        ({"config": '{"version_policy": {"specific": {"versions": [1, 2]}}}'}, "config is the JSON"),
        ({"config": '{"version_policy": {"specific": {"versions": [0]}}}'}, "config is the JSON"),
        ({"config": '{"version_policy": {"latest": {"num_versions": 2}}}'}, "config is the JSON"),
        ({"file:1/model.xml": "..."}, "'file:1/model.xml' is not known here; .* from the server's repository alone"),
    ],
)
def test_what_names_no_version(parameters, told):
    with pytest.raises(InvalidParameter, match=told):
        version_to_load(parameters)


def test_unloading_takes_what_tritons_clients_send():
    check_unload({})
    check_unload({"unload_dependents": False})
    with pytest.raises(InvalidParameter, match="'version' is not known here"):
        check_unload({"version": 1})
