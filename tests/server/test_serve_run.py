"""Plain `serve run serve_config.yaml`, without this project's commands."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import httpx
import yaml

from ensemble_serving.protocol import inference_pb2 as pb
from tests.conftest import ROOT
from tests.server.server import eventually, free_ports


def answered(url):
    try:
        return httpx.get(f"{url}/v2/health/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_shipped_configuration_answers_over_http_and_grpc(tmp_path):
    content = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    http, rpc = content["http_options"]["port"], content["grpc_options"]["port"] = free_ports(2)
    (tmp_path / "serve_config.yaml").write_text(yaml.safe_dump(content))
    temporary = tempfile.mkdtemp(prefix="es-")
    command = [Path(sys.executable).with_name("serve"), "run", "serve_config.yaml"]
    environment = {**os.environ, "RAY_TMPDIR": temporary}
    image, url = (ROOT / "tests" / "cat.jpg").read_bytes(), f"http://127.0.0.1:{http}"
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as run:
        try:
            assert eventually(lambda: answered(url), 120)
            answer = httpx.post(f"{url}/classify", content=image, headers={"content-type": "image/jpeg"}, timeout=60)
            assert (answer.status_code, answer.json()["label"]) == (200, "cat")
            request = pb.ModelInferRequest(
                model_name="ensemble", raw_input_contents=[len(image).to_bytes(4, "little") + image]
            )
            request.inputs.add(name="image", datatype="BYTES", shape=[1])
            with grpc.insecure_channel(f"127.0.0.1:{rpc}") as channel:
                call = channel.unary_unary(
                    "/inference.GRPCInferenceService/ModelInfer",
                    request_serializer=pb.ModelInferRequest.SerializeToString,
                    response_deserializer=pb.ModelInferResponse.FromString,
                )
                response = call(request, timeout=60, metadata=(("application", "ensemble"),))
            assert b"cat" in response.raw_output_contents[0]
        finally:
            # Not SIGINT, which a shell's background jobs ignore, and so do their children.
            run.terminate()
            try:
                run.wait(60)
            except subprocess.TimeoutExpired:
                run.kill()
    shutil.rmtree(temporary, ignore_errors=True)
