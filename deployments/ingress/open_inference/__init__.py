"""The Open Inference Protocol's view of the application: models with tensors, the same for JSON and gRPC.

Source: https://github.com/kserve/open-inference-protocol, and for its extensions
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""
