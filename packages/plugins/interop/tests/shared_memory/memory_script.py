"""Run with tritonclient's Python: leaves pictures in shared memory and finds answers there; prints them as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, serialized_byte_size

PICTURE = Path(sys.argv[3]).read_bytes()


def ask(library, client, key):
    content = serialize_byte_tensor(np.array([PICTURE], dtype=np.object_))
    size = serialized_byte_size(content)
    handle = shm.create_shared_memory_region("picture", f"/{key}", size + 64)
    try:
        shm.set_shared_memory_region(handle, [content])
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("picture", f"/{key}", size + 64)
        tensor = library.InferInput("image", [1], "BYTES")
        tensor.set_shared_memory("picture", size)
        there = library.InferRequestedOutput("probabilities")
        there.set_shared_memory("picture", 32, offset=size)
        answers = [client.infer("ensemble", [tensor], outputs=[there, library.InferRequestedOutput("label")])]
        told = shm.get_contents_as_numpy(handle, np.float32, [1, 8], offset=size)
        answers.append(client.infer("ensemble", [tensor]))
        known = {"as_json": True} if library is over_grpc else {}
        status = client.get_system_shared_memory_status(**known)
        client.unregister_system_shared_memory("picture")
        try:
            client.infer("ensemble", [tensor])
            refused = "answered"
        except InferenceServerException as err:
            refused = err.message()
        return {
            "written": told.tolist(),
            "label": answers[0].as_numpy("label")[0].decode(),
            "sent": answers[1].as_numpy("probabilities").tolist(),
            "status": status,
            "after": client.get_system_shared_memory_status(**known),
            "refused": refused,
        }
    finally:
        shm.destroy_shared_memory_region(handle)


clients = {
    "http": (over_http, over_http.InferenceServerClient(sys.argv[1])),
    "grpc": (over_grpc, over_grpc.InferenceServerClient(sys.argv[2])),
}
print(json.dumps({name: ask(*client, f"{sys.argv[4]}-{name}") for name, client in clients.items()}))
