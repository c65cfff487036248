import logging

import pytest

from deployments.contract.errors import ConfigurationError
from deployments.ingress.listeners import slot
from deployments.ingress.listeners.front import folder


def test_the_first_free_place_is_taken_and_kept(tmp_path):
    first, second = slot.take(tmp_path), slot.take(tmp_path)
    assert (first.number, second.number) == (1, 2)
    assert first.path("http") != second.path("http") != second.path("grpc")
    first.release()
    assert slot.take(tmp_path).number == 1


def test_more_replicas_than_places_are_refused(tmp_path):
    taken = [slot.take(tmp_path) for _ in range(slot.SLOTS)]
    with pytest.raises(ConfigurationError, match=f"knows {slot.SLOTS} replicas"):
        slot.take(tmp_path)
    taken[9].release()
    assert slot.take(tmp_path).number == 10


def test_where_replicas_listen_is_seen(tmp_path):
    for number in (3, 7):
        slot.path(tmp_path, "http", number).touch()
    assert slot.opened(tmp_path) == [3, 7]


def test_an_application_that_haproxy_is_not_in_front_of_is_told(tmp_path, monkeypatch, caplog):
    assert folder("ensemble") is None
    monkeypatch.setenv(slot.FOLDER, str(tmp_path))
    monkeypatch.setenv(slot.APPLICATION, "ensemble")
    assert folder("ensemble") == tmp_path
    with caplog.at_level(logging.WARNING, "ray.serve"):
        logging.getLogger("ray.serve").propagate = True
        assert folder("another") is None
    assert "no client reaches application 'another'" in caplog.text
