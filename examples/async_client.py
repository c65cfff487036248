"""Classifies a folder of photographs over HTTP, many at a time, and waits where the server asks for it.

python examples/async_client.py http://127.0.0.1:8000 photographs/

Needs httpx alone. A refusal (503, or 429 for a key's rate or a client's share) says by `Retry-After` when to try again,
in whole seconds, and in its JSON to the millisecond; every other error is final.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx

AT_A_TIME = 16
MOST_TRIES = 20
REFUSALS = {httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS}


def wait_s(refusal: httpx.Response) -> float:
    """When to try again, seconds."""
    try:
        return float(refusal.json()["error"]["retry_after_ms"]) / 1000
    except (ValueError, KeyError, TypeError):
        return float(refusal.headers.get("Retry-After", 1))


async def classify(client: httpx.AsyncClient, path: Path) -> dict[str, Any]:
    """The server's answer for one photograph, or its error."""
    headers = {"Content-Type": "image/jpeg"}
    for _ in range(MOST_TRIES):
        response = await client.post("/classify", content=path.read_bytes(), headers=headers)
        if response.status_code not in REFUSALS:
            break
        await asyncio.sleep(wait_s(response))
    answer: dict[str, Any] = response.json()
    return answer


async def main(url: str, folder: Path) -> None:
    """Classify every file of the folder and print the answers in order."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    gate = asyncio.Semaphore(AT_A_TIME)

    async def one(path: Path) -> dict[str, Any]:
        async with gate:
            return await classify(client, path)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for path, answer in zip(paths, await asyncio.gather(*map(one, paths)), strict=True):
            told = answer["error"]["message"] if "error" in answer else f"{answer['label']} {answer['probability']:.3f}"
            print(f"{path.name}: {told}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
