"""Clients that nobody here wrote, in environments of their own; perf_analyzer asks one placement, the others two."""

import json
import os
import subprocess
from base64 import b64encode

import httpx
import numpy as np
import pytest

from tests.environments import ask
from tests.levels import expected, level
from tests.networks import CLASSES
from tests.server.server import eventually
from tests.server.shared.conftest import HERE
from tests.server.shared.servers import only


def assert_answer(answer):
    np.testing.assert_allclose(answer["probabilities"], [expected(250)], atol=1e-5)
    assert answer["index"] == [expected(250).argmax()]
    assert answer["label"] == [CLASSES[answer["index"][0]]]


@only(2)
def test_tritonclient(server, pythons, picture):
    answers = ask(
        pythons("tritonclient"), HERE / "triton_script.py", server.url.removeprefix("http://"), server.grpc, picture
    )
    order = np.argsort(-expected(250), kind="stable")[:2].tolist()
    for protocol in ("http", "grpc"):
        answer = answers[protocol]
        assert_answer(answer)
        told = [text.split(":") for text in answer["classes"]]
        assert [(int(index), label) for _, index, label in told] == [(i, CLASSES[i]) for i in order]
        assert [float(value) for value, _, _ in told] == pytest.approx(expected(250)[order].tolist(), abs=1e-5)
        assert [tensor["name"] for tensor in answer["metadata"]["inputs"]] == ["image"]
        assert "binary_tensor_data" in answer["server"]["extensions"]
        [described] = answer["config"]["input"]
        assert (described["name"], described["data_type"], [int(extent) for extent in described["dims"]]) == (
            "image",
            "TYPE_STRING",
            [-1],
        )
        assert {"name": "ensemble", "version": "1", "state": "READY"}.items() <= answer["models"][0].items()
        assert answer["statistics"][0]["name"] == "ensemble"
        assert "invalid_image" in answer["no_picture"]
        assert "nothing" in answer["no_model"]
    assert answers["grpc"]["not_built"].startswith("StatusCode.UNIMPLEMENTED")
    assert answers["http"]["not_built"].startswith("404")
    for answer in answers["compressed"]:
        assert_answer(answer)
    for protocol in ("http_aio", "grpc_aio"):
        for probabilities in answers[protocol]:
            np.testing.assert_allclose(probabilities, [expected(250)] * len(probabilities), atol=1e-5)
        assert [len(probabilities) for probabilities in answers[protocol]] == [2, 2, 2, 2, 1]
    assert answers["health"] == ["SERVING"] * 3


@only(2)
def test_kserve(server, pythons, picture):
    answers = ask(pythons("kserve"), HERE / "kserve_script.py", server.url, server.grpc, picture)
    assert answers["ready"] == [[True, True], [False, False]]
    assert answers["live"] == [True, True, True]
    assert_answer(answers["rest"])
    assert_answer(answers["grpc"])


@only(2)
def test_ovmsclient(server, pythons, picture):
    answers = ask(
        pythons("tensorflow"), HERE / "ovms_script.py", server.url.removeprefix("http://"), server.grpc, picture
    )
    for answer in answers.values():
        outputs = answer["outputs"]
        np.testing.assert_allclose(outputs["probabilities"], [expected(250)] * 2, atol=1e-5)
        assert outputs["index"] == [expected(250).argmax()] * 2
        assert outputs["label"] == [CLASSES[index] for index in outputs["index"]]
        np.testing.assert_allclose(answer["versioned"], [expected(250)], atol=1e-5)
        assert answer["status"] == {"1": {"state": "AVAILABLE", "error_code": 0, "error_message": ""}}
        names = [name for name, _ in answer["errors"]]
        assert names == ["InvalidInputError", "InvalidInputError", "ModelNotFoundError", "ModelNotFoundError"]
        assert "Servable not found for request: Latest(nothing)" in answer["errors"][2][1]
    described = answers["grpc"]["metadata"]
    assert described["inputs"] == {"image": {"shape": [-1], "dtype": "DT_STRING"}}
    assert described["outputs"]["probabilities"] == {"shape": [-1, 8], "dtype": "DT_FLOAT"}
    assert answers["http"]["metadata"]["model_spec"]["name"] == "ensemble"


@pytest.fixture(scope="session")
def perf_analyzer(pythons, tmp_path_factory):
    """The program and an environment in which it finds its libraries: two of them come with another package."""
    python = pythons("perf-analyzer")
    libraries = next(python.parent.parent.glob("lib/python*/site-packages/nvidia_pytriton.libs"))
    folder = tmp_path_factory.mktemp("libraries")
    for wanted, pattern in (("libb64.so.0d", "libb64-*"), ("libcudart.so.12", "libcudart-*")):
        (folder / wanted).symlink_to(next(libraries.glob(pattern)))
    return python.with_name("perf_analyzer"), {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def measure(perf_analyzer, server, protocol, *options):
    """A short run of perf_analyzer to its end; what it prints."""
    program, environment = perf_analyzer
    url = server.grpc if protocol == "grpc" else server.url.removeprefix("http://")
    # Three windows in a row of twenty requests, whatever their spread; one in which none ends does not count.
    short = ["--measurement-mode", "count_windows", "--measurement-request-count", "20", "-s", "1000", "-r", "30"]
    command = [program, "-u", url, "-i", protocol, *short, "--concurrency-range", "2", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@only(1)
@pytest.mark.parametrize("options", [("http",), ("http", "--input-tensor-format", "json"), ("grpc",)], ids="-".join)
def test_perf_analyzer(server, perf_analyzer, tmp_path, options):
    protocol, *more = options
    image = level(250)
    # In JSON it sends the text that it reads, and in binary what it decodes: an element is its length, and it.
    text = b64encode(image if more else len(image).to_bytes(4, "little") + image).decode()
    content = [text] if more else {"b64": text}
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"image": {"content": content, "shape": [1]}}]}))
    printed = measure(perf_analyzer, server, protocol, "-m", "ensemble", "--input-data", data, *more)
    assert "Throughput:" in printed
    assert "Compute Input" in printed or "compute input" in printed


@only(1)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_of_a_member(server, perf_analyzer, protocol):
    """It makes pixels up by itself."""
    printed = measure(perf_analyzer, server, protocol, "-m", "brightness", "-b", "4")
    assert "Throughput:" in printed


@only(2)
def test_statistics_are_of_what_was_asked(server):
    def counted():
        [model] = httpx.get(f"{server.url}/v2/models/ensemble/stats").json()["model_stats"]
        return model

    before = counted()
    files = [("image", (f"{i}.png", level(i), "image/png")) for i in range(3)]
    files.append(("image", ("bad.png", b"bad", "image/png")))
    assert httpx.post(f"{server.url}/classify", files=files, timeout=60).status_code == 200
    assert eventually(lambda: counted()["inference_count"] == before["inference_count"] + 3)
    after = counted()
    changes = {
        name: after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"]
        for name in after["inference_stats"]
    }
    assert (changes["success"], changes["fail"], changes["cache_hit"]) == (3, 1, 0)
    assert after["execution_count"] > before["execution_count"]
    assert sum(batch["compute_infer"]["count"] for batch in after["batch_stats"]) == after["execution_count"]
    parts = sum(after["inference_stats"][name]["ns"] for name in ("compute_input", "compute_infer", "compute_output"))
    assert parts > 0
