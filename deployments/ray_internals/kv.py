"""A JSON document in Ray's key-value store, by which the head of a cluster configures the machines that join it.

The store is part of Ray's GCS, which asks for the token. It is read and written by a process of its own, because the
process that supervises a machine has no Ray in it.

    python -P -m deployments.ray_internals.kv publish|read ADDRESS
"""

from __future__ import annotations

import sys
from typing import Any, cast

KEY, NAMESPACE = b"head", b"ensemble"
# How long the head may take to answer, seconds.
ANSWER_S = 10.0


def publish(address: str, document: bytes) -> None:
    """Publish a document at the head with this address, in place of the one before."""
    _store(address).internal_kv_put(KEY, document, True, NAMESPACE, ANSWER_S)


def read(address: str) -> bytes:
    """Read the document that the head with this address publishes.

    Raises:
        LookupError: it publishes none.
    """
    document: bytes | None = _store(address).internal_kv_get(KEY, NAMESPACE, ANSWER_S)
    if document is None:
        raise LookupError("it is none of `ensemble serve --host-address`")
    return document


def _store(address: str) -> Any:
    from ray import _raylet

    return cast(Any, _raylet).GcsClient(address=address)


def main() -> None:
    """Publish stdin, or print the published text."""
    action, address = sys.argv[1:]
    try:
        if action == "publish":
            publish(address, sys.stdin.buffer.read())
        else:
            sys.stdout.buffer.write(read(address))
    except (LookupError, RuntimeError) as err:
        sys.exit(str(err))


if __name__ == "__main__":
    main()
