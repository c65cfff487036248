"""Run with seldon-core's Python: asks Seldon's API by its client over REST and gRPC; prints the answers as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
from seldon_core.proto import prediction_pb2 as pb
from seldon_core.proto.tensorflow.core.framework import tensor_pb2, types_pb2
from seldon_core.seldon_client import SeldonClient
from seldon_core.utils import seldon_message_to_json

PICTURE, LEVEL = Path(sys.argv[3]).read_bytes(), int(sys.argv[4])
PIXELS = np.full((2, 8, 6, 3), LEVEL)


def tftensor(**values):
    """The client makes one by TensorFlow, which is not there, or sends what it is given."""
    return pb.SeldonMessage(data={"tftensor": tensor_pb2.TensorProto(**values)})


def shape(*extents):
    return {"dim": [{"size": extent} for extent in extents]}


RAW = tftensor(
    dtype=types_pb2.DT_FLOAT, tensor_shape=shape(*PIXELS.shape), tensor_content=PIXELS.astype(np.float32).tobytes()
)
ENCODED = tftensor(dtype=types_pb2.DT_STRING, tensor_shape=shape(2), string_val=[PICTURE, PICTURE])


def told(prediction):
    response = prediction.response
    return {
        "success": prediction.success,
        "message": prediction.msg,
        "response": None if response is None else seldon_message_to_json(response),
    }


def asked(transport, endpoint):
    client = SeldonClient(gateway="seldon", transport=transport, gateway_endpoint=endpoint, client_return_type="proto")

    def raw(message):
        # Of a message the client's REST posts the JSON that its caller made of it.
        return client.predict(raw_data=message if transport == "grpc" else seldon_message_to_json(message))

    named = raw(pb.SeldonMessage(meta={"puid": f"own-{transport}"}, binData=PICTURE))
    unnamed = client.predict(bin_data=PICTURE)
    answers = {
        "binData": unnamed,
        "puid": named,
        "tensor": client.predict(data=PIXELS, payload_type="tensor"),
        "ndarray": client.predict(data=PIXELS, payload_type="ndarray"),
        "tftensor": raw(RAW),
        "encoded": raw(ENCODED),
        "text": client.predict(str_data="a cat"),
        "no_picture": client.predict(bin_data=b"no picture"),
        "normalized": client.predict(data=PIXELS / 255),
    }
    for name, prediction, truth in (
        ("by name", named, pb.SeldonMessage(strData="level7")),
        ("by index", unnamed, pb.SeldonMessage(data={"tensor": {"shape": [1, 1], "values": [7]}})),
        ("again", unnamed, pb.SeldonMessage(data={"tensor": {"shape": [1, 1], "values": [7]}})),
        ("no truth", unnamed, None),
    ):
        answers[name] = client.feedback(prediction.request, prediction.response, truth, reward=1.0)
    return {name: told(answer) for name, answer in answers.items()}


print(json.dumps({"rest": asked("rest", sys.argv[1]), "grpc": asked("grpc", sys.argv[2])}))
