"""Classifies many images with a running server, and gives errors as JSON, as a command writes them."""

import os
from collections.abc import Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from ensemble_serving import Client, EnsembleError, NoResponse
from scripts.errors import ScriptError

# The environment variable that holds the API key.
KEY = "ENSEMBLE_API_KEY"
# How long an image is sent again that the server refuses for now, or whose connection was lost.
PATIENCE_S = 90.0
NO_ANSWER = "no_answer"


async def classify(
    url: str,
    images: Iterable[bytes | Path],
    total: int,
    note: Callable[[int, dict[str, Any]], None],
    concurrency: int,
    ca: Path | None = None,
    **options: Any,
) -> None:
    """Classify images, some at a time, with a progress bar; an image that the server refuses for now is sent again.

    Args:
        url: the server's root.
        images: the images, which are read one by one, so that a large dataset is never in memory as a whole.
        total: their number.
        note: takes an image's position and the server's JSON: an answer, or an `error`, whose `temporary` is true if
            the image may be answered later.
        concurrency: how many requests are under way at a time.
        ca: a certificate to trust, PEM.
        options: a request's, as `top_k`.

    Raises:
        ScriptError: the URL is none, there is no server, or another one than this project's.
    """
    key = os.environ.get(KEY)
    try:
        client = Client(
            url, key=key, ca_file=ca, concurrency=concurrency, patience_s=PATIENCE_S, reconnect_s=PATIENCE_S
        )
    except ValueError as err:
        raise ScriptError(f"--url {url}: {err}") from err
    with tqdm(total=total, unit="image", mininterval=0.5, delay=1, leave=False, disable=None) as bar:
        async with client, aclosing(client.as_completed(images, **options)) as answered:
            async for position, task in answered:
                failure = task.exception()
                if isinstance(failure, NoResponse) and not client.was_reached:
                    raise no_answer(url, failure) from failure
                note(position, _error(failure) if failure else msgspec.to_builtins(task.result()))
                bar.update()


def _error(err: BaseException) -> dict[str, Any]:
    """Describe an image's error; raise an error that is not the image's."""
    if isinstance(err, OSError):
        code = NO_ANSWER if isinstance(err, NoResponse) else "unreadable"
        return {"error": {"code": code, "message": str(err), "temporary": True}}
    if type(err) is EnsembleError:
        raise ScriptError(str(err)) from err
    if not isinstance(err, EnsembleError):
        raise err
    return {"error": {**err.to_dict(), "temporary": err.retry or err.is_fault}}


def no_answer(url: str, err: Exception) -> ScriptError:
    """Make the error that nothing answers at a URL."""
    return ScriptError(f"no answer from {url}: {err or type(err).__name__}; is the server running (ensemble serve)?")
