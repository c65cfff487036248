import os
import re

import pytest

from scripts.errors import ScriptError
from scripts.serve.exposure import CERTIFICATE, CERTIFICATE_KEY, certificate_named
from tests.certificates import self_signed


@pytest.fixture
def asked_for(monkeypatch, tmp_path):
    """An environment that asks for TLS with a good certificate, seen from the certificate's folder."""
    self_signed(tmp_path)
    monkeypatch.chdir(tmp_path)
    environment = {CERTIFICATE: "server.pem", CERTIFICATE_KEY: "server.key"}
    monkeypatch.setattr(os, "environ", environment)
    return environment


def test_a_certificate_with_its_key_will_do(asked_for, tmp_path):
    assert certificate_named({}) == (tmp_path / "server.pem", tmp_path / "server.key")


def test_without_a_word_of_it_there_is_none(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    assert certificate_named({"http_options": {"port": 1}}) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({CERTIFICATE_KEY: ""}, f"needs {CERTIFICATE_KEY}"),
        ({CERTIFICATE: ""}, f"needs {CERTIFICATE}"),
        ({CERTIFICATE_KEY: "none.key"}, r"none\.key can't be read"),
        ({CERTIFICATE_KEY: "other.key"}, "no certificate with its key"),
        ({CERTIFICATE_KEY: "locked.key"}, "unencrypted"),
        ({CERTIFICATE: "server.key"}, "no certificate with its key"),
    ],
)
def test_what_it_cannot_be_served_with_is_told(asked_for, tmp_path, change, told):
    self_signed(tmp_path, "other")
    os.system(f"openssl pkey -in {tmp_path}/server.key -aes256 -passout pass:1234 -out {tmp_path}/locked.key")
    asked_for |= change
    with pytest.raises(ScriptError, match=told):
        certificate_named({})


def test_serves_own_way_is_refused_with_ours(asked_for):
    with pytest.raises(ScriptError, match=re.escape(f"set {CERTIFICATE} and {CERTIFICATE_KEY}")):
        certificate_named({"http_options": {"ssl_certfile": "server.pem", "ssl_keyfile": "server.key"}})
