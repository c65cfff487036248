import os

import pytest

from deployments.contract.errors import ConfigurationError
from deployments.ingress import keys
from deployments.ingress.keys import Key, KeyFile, digest, parse, read
from tests.unit.deployments.ingress.clock import Clock

A, B = digest("a").hex(), digest("b").hex()
SOON, PAST = "2999-01-01T00:00:00Z", "2001-01-01T00:00:00+02:00"


def test_a_file_has_a_key_a_line_and_comments():
    text = f"# ours\n\nmobile {A}\nweb-2.x  {B}   0.5 # half a request a second\n"
    assert parse(text) == (Key("mobile", digest("a")), Key("web-2.x", digest("b"), 0.5))
    assert parse("") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mobile", "line 1: a line has a name"),
        (f"# fine\nmobile {A[:-1]}", "line 2: a line has a name"),
        (f"mobile {A.upper()}", "small hexadecimal"),
        (f"mobile {A} 1 2", "line 1"),
        (f"mobile {A} 0", "above 0"),
        (f"mobile {A} nan", "above 0"),
        (f"mobile {A} inf", "above 0"),
        (f"mobile {A} often", "above 0"),
        (f"mo/bile {A}", "line 1"),
        (f"{'n' * 65} {A}", "at most 64 letters"),
        (f"mobile {A}\nmobile {B}", "line 2: the name 'mobile' is used twice"),
        (f"mobile {A} until={SOON}\nmobile {A} until={SOON}\nmobile {B}", "line 3: the name 'mobile' is used twice"),
        (f"mobile {A} until=tomorrow", "TIME with a zone"),
        (f"mobile {A} until=2026-12-01T12:00:00", "TIME with a zone"),
        (f"mobile {A} until={SOON} 5", "line 1"),
        ("\n".join(f"n{i} {A}" for i in range(keys.MOST_KEYS + 1)), "more than 1000 keys"),
    ],
)
def test_a_line_at_fault_is_told(text, told):
    with pytest.raises(ConfigurationError, match=told):
        parse(text)


def test_a_file_that_is_none_is_told(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none can't be read: .*No such file"):
        read(tmp_path / "none")
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"keys can't be read: .*utf-8"):
        read(tmp_path / "keys")
    (tmp_path / "keys").write_bytes(b"#" * (keys.MOST_BYTES + 1))
    with pytest.raises(ConfigurationError, match="more than 262144 bytes"):
        read(tmp_path / "keys")


def test_only_a_key_of_the_file_is_found(tmp_path):
    (tmp_path / "keys").write_text(f"one {A}\ntwo {B} 7")
    found = KeyFile(tmp_path / "keys")
    assert found.find("a") == Key("one", digest("a"))
    assert found.find("b") == Key("two", digest("b"), 7.0)
    # A digest is no key; and text may be half a character.
    for none in ("", "c", "A", "a ", A, "\udcff", "\ud800"):
        assert found.find(none) is None


def test_a_name_has_two_keys_until_the_end_of_one(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"one {A} until={SOON}\none {B} 7\n")
    both = KeyFile(file)
    assert [both.find(key).name for key in "ab"] == ["one", "one"]
    file.write_text(f"one {A} 7 until={PAST}\none {B} 7\n")
    later = KeyFile(file)
    assert later.find("a") is None
    assert later.find("b") == Key("one", digest("b"), 7.0)


def test_a_changed_file_is_read_again_and_a_bad_one_refused(tmp_path, caplog):
    file, clock = tmp_path / "keys", Clock()
    file.write_text(f"one {A}\n")
    found = KeyFile(file, clock)
    file.write_text(f"two {B}\n")
    # Not looked at with each request.
    assert found.find("a") is not None
    clock.now += 2 * keys.LOOK_EVERY_S
    assert found.find("a") is None
    assert found.find("b").name == "two"
    for bad in ("two", None):
        if bad is None:
            file.unlink()
        else:
            file.write_text(bad)
        clock.now += 2 * keys.LOOK_EVERY_S
        caplog.clear()
        assert found.find("b").name == "two"
        assert "the keys before stay in force" in caplog.text
    file.write_text("")
    os.utime(file, ns=(1, 1))
    clock.now += 2 * keys.LOOK_EVERY_S
    assert found.find("b") is None
