"""A JSON document in Ray's key-value store, by which the head of a cluster configures the machines that join it.

The store is part of Ray's GCS, which asks for the token. It is read and written by a process of its own, because the
process that supervises a machine has no Ray in it.

    python -P -m deployments.ray_internals.kv publish|read ADDRESS
"""

import sys
from typing import Any, cast

from ray import _raylet

KEY, NAMESPACE = b"head", b"ensemble"
# How long the head may take to answer, seconds.
ANSWER_S = 10.0


def main() -> None:
    """Publish stdin at the head with an address, in place of the document before, or print what the head publishes."""
    action, address = sys.argv[1:]
    try:
        store = cast(Any, _raylet).GcsClient(address=address)
        if action == "publish":
            store.internal_kv_put(KEY, sys.stdin.buffer.read(), True, NAMESPACE, ANSWER_S)
        elif (document := store.internal_kv_get(KEY, NAMESPACE, ANSWER_S)) is not None:
            sys.stdout.buffer.write(document)
        else:
            sys.exit("it is none of `ensemble serve --host-address`")
    except RuntimeError as err:
        sys.exit(str(err))


if __name__ == "__main__":
    main()
