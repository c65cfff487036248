"""Classifies a folder of images, many at a time, and retries requests that the server refused because of its load.

python examples/async_client.py http://127.0.0.1:8000 images/

The client needs neither Ray nor OpenVINO. A request that the server refuses because of its load is sent again after the
time that the refusal names; every other error is raised, as the class of its code. For gRPC the URL is
`grpc://127.0.0.1:9000`.
"""

import asyncio
import sys
from pathlib import Path

from ensemble_serving import Client, EnsembleError, NoResponse


async def main(url: str, folder: Path) -> None:
    """Classify every file of the folder and print the answers as they come."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    async with Client(url, concurrency=16) as client:
        # Read as they are sent: a large folder is never in memory as a whole.
        async for position, future in client.as_completed(path.read_bytes() for path in paths):
            try:
                answer = future.result()
                print(f"{paths[position].name}: {answer.label} {answer.probability:.3f}")
            except (EnsembleError, NoResponse) as err:
                print(f"{paths[position].name}: {err}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or not Path(sys.argv[2]).is_dir():
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
