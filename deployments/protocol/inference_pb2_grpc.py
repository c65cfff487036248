"""The function of the Open Inference Protocol's service by the name that protoc generates.

Configurations of earlier versions have that name; the function is in `services`.
"""

from deployments.protocol.services import add_open_inference

add_GRPCInferenceServiceServicer_to_server = add_open_inference  # noqa: N816
