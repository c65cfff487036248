"""Seldon's API, asked by the client that nobody here wrote."""

from base64 import b64decode
from pathlib import Path

import numpy as np

from tests.environments import ask, environment
from tests.levels import expected
from tests.networks import CLASSES

HERE = Path(__file__).parent
LEVEL = 250


def rows(answer):
    """The probabilities of an answer, in whichever form."""
    data = answer["response"]["data"]
    assert data["names"] == list(CLASSES)
    if "tftensor" in data:
        shape = [int(dim["size"]) for dim in data["tftensor"]["tensorShape"]["dim"]]
        return np.frombuffer(b64decode(data["tftensor"]["tensorContent"]), "<f4").reshape(shape)
    if "tensor" in data:
        return np.reshape(data["tensor"]["values"], data["tensor"]["shape"])
    return np.array(data["ndarray"])


def test_seldon_core(server, picture):
    answers = ask(
        environment("seldon", HERE / "requirements-seldon.lock"),
        HERE / "seldon_script.py",
        server.url.removeprefix("http://"),
        server.grpc,
        picture,
        str(LEVEL),
    )
    for transport, told in answers.items():
        for name in ("binData", "puid", "tensor", "ndarray", "tftensor", "encoded"):
            assert told[name]["success"], told[name]
            found = rows(told[name])
            assert len(found) == (1 if name in {"binData", "puid"} else 2)
            np.testing.assert_allclose(found, [expected(LEVEL)] * len(found), atol=1e-5)
        assert told["puid"]["response"]["meta"]["puid"] == f"own-{transport}"
        assert told["binData"]["response"]["meta"]["puid"]
        assert [told[name]["success"] for name in ("by name", "by index")] == [True, True]
        assert told["by name"]["response"]["meta"]["puid"] == f"own-{transport}"
    for name, code, reason in (
        ("text", "422", "invalid_parameter"),
        ("no_picture", "400", "invalid_image"),
        ("normalized", "422", "invalid_parameter"),
        ("again", "409", "already_labelled"),
        ("no truth", "422", "invalid_parameter"),
    ):
        rest, grpc = answers["rest"][name], answers["grpc"][name]
        assert (rest["success"], grpc["success"]) == (False, False)
        assert rest["message"].startswith(code)
        status = rest["response"]["status"]
        assert (str(status["code"]), status["reason"], status["status"]) == (code, reason, "FAILURE")
        assert f"{reason}: " in grpc["message"]
