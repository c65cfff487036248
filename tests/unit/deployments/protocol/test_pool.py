import subprocess
import sys

SCRIPT = """
from google.protobuf import descriptor_pool
from ensemble_features.feedback import feedback_pb2
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2
from ensemble_serving.protocol import inference_pb2, pool

default = descriptor_pool.Default()
names = [file.name for file in pool.FILES if not file.name.startswith("google")]
for name in names:
    try:
        default.FindFileByName(name)
    except KeyError:
        continue
    raise SystemExit(f"{name} is in the default pool")
# A file of another library that has the same names.
other = inference_pb2.DESCRIPTOR.serialized_pb.replace(b"inference.proto", b"theircopy.proto")
default.AddSerializedFile(other)
pool.add_to_default_pool()
pool.add_to_default_pool()
assert default.FindMessageTypeByName("inference.ModelInferRequest").file.name.endswith("theircopy.proto")
assert default.FindMessageTypeByName("ensemble.LabelRequest").file.name == feedback_pb2.DESCRIPTOR.name
print(inference_pb2.ModelInferRequest.FromString(inference_pb2.ModelInferRequest(id="7").SerializeToString()).id)
"""


def test_another_librarys_copy_of_a_message_does_no_harm():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
