import pytest

from deployments.contract.errors import ConfigurationError, RateLimited, Unauthenticated
from deployments.ingress.access import Access, AccessConfig
from deployments.ingress.keys import digest
from graph.config import parse
from tests.unit.deployments.ingress.clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def access(tmp_path, clock):
    file = tmp_path / "keys"
    file.write_text(f"any {digest('a').hex()}\nfive {digest('b').hex()} 5\nseldom {digest('c').hex()} 0.25\n")
    return Access(file, clock)


@pytest.mark.parametrize("authorization", ["Bearer a", "bearer a", "BEARER  a "])
def test_a_key_is_let_in_by_its_name(access, authorization):
    assert access.admit(authorization) == "any"


@pytest.mark.parametrize(
    ("authorization", "told"),
    [
        (None, "a key is needed; send"),
        ("", "a key is needed"),
        ("a", "a key is needed"),
        ("Basic YTpi", "a key is needed"),
        ("Bearera", "a key is needed"),
        ("Bearer", "a key is needed"),
        ("Bearer ", "the key is not known"),
        ("Bearer d", "the key is not known"),
        ("Bearer a, Bearer a", "the key is not known"),
    ],
)
def test_nothing_else_is_let_in(access, authorization, told):
    with pytest.raises(Unauthenticated, match=told) as caught:
        access.admit(authorization)
    assert "d" not in caught.value.message.split()


def admitted(access, authorization, times):
    """How many of so many requests at one moment are let in, and when the next one is due."""
    count = 0
    for _ in range(times):
        try:
            access.admit(authorization)
        except RateLimited as err:
            return count, err.retry_after_s
        count += 1
    return count, 0.0


def test_a_key_comes_no_faster_than_it_may(access, clock):
    assert admitted(access, "Bearer a", 1000) == (1000, 0.0)
    # A second's worth was saved up.
    count, wait = admitted(access, "Bearer b", 1000)
    assert (count, round(wait, 6)) == (5, 0.2)
    clock.now += 0.21
    assert admitted(access, "Bearer b", 1000)[0] == 1
    clock.now += 1000
    assert admitted(access, "Bearer b", 1000)[0] == 5
    # Seldom is seldom, and what one key has used is no other's.
    assert admitted(access, "Bearer c", 9)[0] == 1
    clock.now += 3
    count, wait = admitted(access, "Bearer c", 9)
    assert (count, round(wait, 6)) == (0, 1.0)
    clock.now += 1
    assert admitted(access, "Bearer c", 9)[0] == 1


def test_a_path_is_whole_and_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert AccessConfig().keys is None
    (tmp_path / "keys").write_text("")
    assert AccessConfig(keys="keys").keys == tmp_path / "keys"
    (tmp_path / "keys").write_text("mobile")
    with pytest.raises(ValueError, match="line 1: a line has a name"):
        AccessConfig(keys="keys")


def test_operators_are_names_of_keys_or_anyone_where_there_are_none(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"ops {digest('a').hex()}\n")

    def operators(**access):
        return parse({"members": [{"name": "one"}], "access": access}).access.field("operators")

    assert operators() is None
    assert operators(operators="anyone") == "anyone"
    assert operators(keys=file, operators=["ops"]) == ("ops",)
    with pytest.raises(ConfigurationError, match="operators: anyone, but there are keys; list the names"):
        operators(keys=file, operators="anyone")
    with pytest.raises(ConfigurationError, match="operators: names of keys need `keys`"):
        operators(operators=["ops"])
