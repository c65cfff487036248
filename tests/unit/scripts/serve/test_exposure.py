import pytest

from scripts.configuration import IMPORT_PATH
from scripts.errors import ScriptError
from scripts.serve.exposure import OTHERS, UNENCRYPTED, check_exposure

OURS, CLOSED = {"import_path": IMPORT_PATH}, {"import_path": IMPORT_PATH, "args": {"access": {"keys": "keys"}}}
ANOTHER = {"import_path": "x:y", "args": {"access": {"keys": "keys"}}}


def config(host, *applications):
    return {"http_options": {"host": host}, "applications": list(applications)}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_loopback_anyone_may_come(host, capsys):
    check_exposure(config(host, OURS), without_keys=False, tls=False)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])
@pytest.mark.parametrize("applications", [[OURS], [CLOSED, OURS], [ANOTHER], []])
def test_beyond_it_only_with_keys_or_a_word(host, applications, capsys):
    with pytest.raises(ScriptError, match="--without-keys"):
        check_exposure(config(host, *applications), without_keys=False, tls=True)
    check_exposure(config(host, *applications), without_keys=True, tls=True)
    check_exposure(config(host, CLOSED), without_keys=False, tls=True)
    assert set(capsys.readouterr().out.splitlines()) == {OTHERS}
    check_exposure(config(host, CLOSED), without_keys=False, tls=False)
    assert set(capsys.readouterr().out.splitlines()) == {OTHERS, UNENCRYPTED}


def test_beyond_it_not_anyone_loads_members():
    anyone = {"import_path": IMPORT_PATH, "args": {"access": {"operators": "anyone"}}}
    check_exposure(config("127.0.0.1", anyone), without_keys=False, tls=True)
    with pytest.raises(ScriptError, match=r"access\.operators lets anyone change it"):
        check_exposure(config("0.0.0.0", anyone), without_keys=True, tls=True)
    some = {"import_path": IMPORT_PATH, "args": {"access": {"keys": "keys", "operators": ["ops"]}}}
    check_exposure(config("0.0.0.0", some), without_keys=False, tls=True)


def test_with_keys_grpc_does_not_describe_itself():
    closed, without = config("127.0.0.1", CLOSED), config("127.0.0.1", OURS)
    for each in (closed, without):
        check_exposure(each, without_keys=False, tls=False)
    assert closed["grpc_options"]["enable_reflection"] is False
    assert "grpc_options" not in without
    empty = {**config("127.0.0.1", CLOSED), "grpc_options": None}
    check_exposure(empty, without_keys=False, tls=False)
    assert empty["grpc_options"]["enable_reflection"] is False


def test_keys_that_are_named_in_the_wrong_place_are_none():
    wrong = {"import_path": IMPORT_PATH, "args": {"access": "/etc/keys"}}
    check_exposure(config("127.0.0.1", wrong), without_keys=False, tls=False)
    with pytest.raises(ScriptError, match=r"\(access: \{keys: FILE\}\)"):
        check_exposure(config("0.0.0.0", wrong), without_keys=False, tls=False)
