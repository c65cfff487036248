"""True labels over HTTP: whose requests they are of, and how many lines a request has."""

from dataclasses import replace

from deployments.ingress.access import Access
from deployments.ingress.http.server import HttpServer
from deployments.ingress.keys import digest
from deployments.ingress.protocol import Served, Serves
from ensemble_features.feedback.labels import MAX_LABELS, routes
from tests.door import Door


class TakesLabels(Serves):
    """Keeps the labels that come."""

    def __init__(self):
        self.told = []

    async def _take(self, *label):
        self.told.append(label)

    def serve(self, service):
        return Served(routes(service.ingress, self._take))


def test_a_label_is_of_a_request_of_the_key_that_is_shown(tmp_path):
    (tmp_path / "keys").write_text("".join(f"{name} {digest(name).hex()}\n" for name in ("mine", "yours")))
    door, labels = Door(), TakesLabels()
    door._http = HttpServer(replace(door.service, access=Access(tmp_path / "keys"), features=[labels]))
    line = b'{"request_id": "r", "label": "cat"}\n'
    for key, body in (("mine", line), ("yours", line), ("mine", line * 2)):
        headers = [("Authorization", f"Bearer {key}".encode())]
        assert door.ask("/feedback", body, headers)[1]["accepted"] == body.count(b"\n")
    assert labels.told == [("r", "cat", 0, key) for key in ("mine", "yours", "mine", "mine")]


def test_lines_are_counted_before_they_are_made():
    door, labels = Door(), TakesLabels()
    door._http = HttpServer(replace(door.service, features=[labels]))
    line = b'{"request_id": "r", "label": "cat"}\n\n'
    status, told = door.ask("/feedback", line * MAX_LABELS)
    assert (status, told["accepted"], len(labels.told)) == (200, MAX_LABELS, MAX_LABELS)
    status, told = door.ask("/feedback", line + b"\n" * 2**20, chunk=10**6)
    assert status == 413
    status, told = door.ask("/feedback", line + b"\n" * (2**20 - len(line)), chunk=10**6)
    assert (status, "at most 8192 lines" in told["error"]["message"]) == (422, True)
    assert len(labels.told) == MAX_LABELS
