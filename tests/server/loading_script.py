"""Run with tritonclient's Python: loads and unloads members by both protocols while others ask; prints what came.

Members "apart" and "inside" begin with version 1; there is a version 2 of each, and a torn version 3 of "apart".
"""

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

HTTP, GRPC, PICTURE = sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()
IN_A_ROW = 24


def said(library, client):
    """The versions that made an answer, and who was missing."""
    tensor = library.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([PICTURE], dtype=np.object_))
    response = client.infer("ensemble", [tensor], parameters={"top_k": 1}).get_response()
    told = response["parameters"] if library is over_http else response.parameters
    text = told["classifications"] if library is over_http else told["classifications"].string_param
    [answer] = json.loads(text)
    return answer["model_versions"], answer.get("missing", {})


class Asking(threading.Thread):
    """Asks one time after the other on one connection."""

    def __init__(self, library, address):
        super().__init__()
        self.library, self.address = library, address
        self.stopped, self.answers, self.seen = threading.Event(), 0, set()

    def run(self):
        client = self.library.InferenceServerClient(self.address)
        while not self.stopped.is_set():
            try:
                self.seen.add(json.dumps(said(self.library, client), sort_keys=True))
                self.answers += 1
            except Exception as err:
                self.seen.add(repr(err))


def settled(versions, missing):
    """Wait until many answers in a row, by whichever replicas, are of these versions; the last one."""
    row, give_up = 0, time.monotonic() + 60
    while row < IN_A_ROW and time.monotonic() < give_up:
        last = said(over_http, http)
        row = row + 1 if last == (versions, missing) else 0
    return [*last, row]


def unready(model):
    """Wait until many answers in a row, over both protocols, say that a model is not ready."""
    row, give_up = 0, time.monotonic() + 60
    while row < IN_A_ROW and time.monotonic() < give_up:
        row = 0 if http.is_model_ready(model) or grpc.is_model_ready(model) else row + 1


def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except InferenceServerException as err:
        return f"{err.status()} {err.message()}"
    return "done"


def version(number):
    return json.dumps({"version_policy": {"specific": {"versions": [number]}}})


def pixels(library):
    tensor = library.InferInput("pixels", [1, 32, 32, 3], "UINT8")
    tensor.set_data_from_numpy(np.zeros((1, 32, 32, 3), np.uint8))
    return [tensor]


http, grpc = over_http.InferenceServerClient(HTTP), over_grpc.InferenceServerClient(GRPC)
asking = [Asking(over_http, HTTP), Asking(over_grpc, GRPC)]
for each in asking:
    each.start()
steps = {}
try:
    http.load_model("apart", config=version(2))
    steps["named"] = settled({"apart": 2, "inside": 1}, {})
    grpc.load_model("inside")
    steps["highest"] = settled({"apart": 2, "inside": 2}, {})
    steps["refused"] = [
        refused(http.load_model, "apart", config=version(3)),
        refused(grpc.load_model, "apart"),
        refused(http.load_model, "apart", config=version(9)),
        refused(grpc.load_model, "nothing"),
        refused(http.load_model, "ensemble"),
        refused(grpc.unload_model, "ensemble"),
        refused(http.load_model, "apart", config="{}", files={"file:1/model.xml": b"x"}),
    ]
    grpc.unload_model("apart")
    steps["unloaded"] = settled({"inside": 2}, {"apart": "unloaded"})
    unready("apart")
    steps["ready"] = [client.is_model_ready(name) for client in (http, grpc) for name in ("ensemble", "apart")]
    steps["ready"] += [http.is_server_ready(), grpc.is_server_ready()]
    steps["index"] = {each["name"]: [each["state"], each.get("reason", "")]
                      for each in http.get_model_repository_index()}  # fmt: skip
    steps["asked"] = [refused(http.infer, "apart", pixels(over_http)), refused(grpc.infer, "apart", pixels(over_grpc))]
    steps["needed"] = [refused(http.unload_model, "inside"), refused(grpc.unload_model, "inside")]
    http.load_model("apart", config=version(1))
    steps["again"] = settled({"apart": 1, "inside": 2}, {})
    steps["versioned"] = http.infer("apart", pixels(over_http), model_version="1").get_response()["model_version"]
    http.unload_model("inside")
    steps["other"] = settled({"apart": 1}, {"inside": "unloaded"})
    grpc.load_model("apart", config=version(2))
    steps["last"] = settled({"apart": 2}, {"inside": "unloaded"})
finally:
    for each in asking:
        each.stopped.set()
    for each in asking:
        each.join()
print(json.dumps({
    **steps,
    "answers": [each.answers for each in asking],
    "seen": sorted(set().union(*(each.seen for each in asking))),
}))  # fmt: skip
