"""Calls over one gRPC channel whose policy is round_robin, eight at a time; prints how often each label was answered.

python spread_script.py TARGET KEY CALLS < IMAGE
"""

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

from ensemble_serving.messages import OverGrpc
from ensemble_serving.transports.request import Response


def main():
    target, key, count = sys.argv[1:]
    protocol = OverGrpc("ensemble")
    request = protocol.request(sys.stdin.buffer.read(), {}, ())
    with grpc.insecure_channel(target, [("grpc.lb_policy_name", "round_robin")]) as channel:
        call = channel.unary_unary(request.path)

        def label(_):
            body = call(request.body, metadata=[("authorization", f"Bearer {key}")], timeout=30)
            return protocol.answer(Response(0, body, (), 0.0, 0.0)).label

        with ThreadPoolExecutor(8) as threads:
            print(json.dumps(Counter(threads.map(label, range(int(count))))))


if __name__ == "__main__":
    main()
