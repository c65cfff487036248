"""Serve logs the arguments of an application, and the tracebacks of a failed one."""

import traceback

import pytest

from deployments.contract.errors import ConfigurationError
from ensemble_features.cache.stores import CacheSettings
from graph.config import parse
from graph.feature import wanted

MEMBERS = {"members": [{"name": "m"}]}
WITH_SECRETS = {
    "redis://:hunter2@host/0": lambda url: {"cache": {"redis": url}},
    "redis://user:hunter2@host/0": lambda url: {"cache": {"redis": url}},
    "rediss://:sec/hunter2@host": lambda url: {"cache": {"redis": url}},
    "unix:///a/socket?db=1&Password=hunter2": lambda url: {"cache": {"redis": url}},
    "rediss://host?ssl_password=hunter2": lambda url: {"cache": {"redis": url}},
    "host:6379:hunter2": lambda url: {"cache": {"redis": url}},
    "https://user:hunter2@jaeger": lambda url: {"page": {"jaeger_url": url}},
    "https://user:hunter2@host/models": lambda url: {"model_repository": url},
    "az://container/models?sig=hunter2": lambda url: {"model_repository": url},
    "s3://key:hunter2@bucket/models/m": lambda url: {"members": [{"name": "m", "model": url}]},
    "https://host/models/m?sig=hunter2": lambda url: {"members": [{"name": "m", "model": url}]},
    "https://:hunter2@host": lambda url: {"members": [{"name": "m", "kind": "tensorflow_serving", "url": url}]},
    "https://host?token=hunter2": lambda url: {"members": [{"name": "m", "kind": "tensorflow_serving", "url": url}]},
    "grpc://:hunter2@a": lambda url: {"members": [{"name": "m", "kind": "no_such_kind", "url": url}]},
    "http://user:hunter2": lambda url: {"members": [{"name": "m", "kind": "tensorflow_serving", "url": url}]},
    "tcp://:hunter2@host": lambda url: {"members": [{"name": "m", "kind": "tensorflow_serving", "url": url}]},
}


@pytest.mark.parametrize("url", WITH_SECRETS)
def test_an_address_with_a_secret_is_refused_and_not_quoted(url):
    with pytest.raises(ConfigurationError) as caught:
        wanted(parse({**MEMBERS, **WITH_SECRETS[url](url)}))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["redis://host:6379/0", "redis://user@host", "unix:///a/socket?db=1", "rediss://host"])
def test_one_without_is_taken(url, tmp_path):
    section = {"redis": url, "redis_password_file": str(tmp_path / "password")}
    (tmp_path / "password").write_text("hunter2")
    assert CacheSettings.model_validate(section).redis == url


def test_the_hint_names_the_file():
    with pytest.raises(
        ConfigurationError, match=r"^cache\.redis: .* goes into a file that `redis_password_file` names"
    ):
        wanted(parse({**MEMBERS, "cache": {"redis": "redis://:hunter2@host"}}))
