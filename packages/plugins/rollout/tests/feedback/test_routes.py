"""True labels over HTTP: whose requests they are of."""

from dataclasses import replace

from deployments.ingress.access import Access
from deployments.ingress.http.server import HttpServer
from deployments.ingress.keys import digest
from deployments.ingress.protocol import Extension
from ensemble_rollout.feedback.labels import routes
from tests.door import Door


def test_a_label_is_of_a_request_of_the_key_that_is_shown(tmp_path):
    told = []

    async def take(*label):
        told.append(label)

    class TakesLabels(Extension):
        def routes(self, service):
            return routes(service.ingress, take)

    (tmp_path / "keys").write_text("".join(f"{name} {digest(name).hex()}\n" for name in ("mine", "yours")))
    door = Door()
    door._http = HttpServer(replace(door.service, access=Access(tmp_path / "keys"), extensions=[TakesLabels()]))
    line = b'{"request_id": "r", "label": "cat"}\n'
    for key, body in (("mine", line), ("yours", line), ("mine", line * 2)):
        headers = [("Authorization", f"Bearer {key}".encode())]
        assert door.ask("/feedback", body, headers)[1]["accepted"] == body.count(b"\n")
    assert told == [("r", "cat", 0, key) for key in ("mine", "yours", "mine", "mine")]
