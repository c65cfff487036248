"""What a running server answers to every image of a dataset."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx
from tqdm import tqdm

from scripts.dataset import Dataset
from scripts.errors import ScriptError

TIMEOUT_S = 60.0
# A refusal is answered by Retry-After; a server that is full for this many of them is not only busy.
MOST_REFUSALS = 60


@dataclass
class Answers:
    """What the server said.

    Attributes:
        images: how many it classified.
        hits: how many of them right, by member name, and the ensemble's under None.
        asked: how many images each member answered; of a cascade not all.
        versions: the version of each member that answered.
        labels: every label that was an answer.
    """

    images: int = 0
    hits: dict[str | None, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)


def ask(url: str, dataset: Dataset, connections: int) -> Answers:
    """Send every image to `POST /classify?members=true` and count the right answers.

    Args:
        url: the server's root, `http://127.0.0.1:8000`.
        dataset: the images and their classes.
        connections: requests in flight at a time.

    Raises:
        ScriptError: the server can't be reached, refuses an image, changes a model on the way, or answers only
            labels that the dataset doesn't have.
    """
    answers = asyncio.run(_ask(url, dataset, connections))
    if not answers.labels & set(dataset.classes):
        raise ScriptError(
            f"no answer is a class of {dataset.path}: the server says {sorted(answers.labels)[:3]}, the classes are "
            f"{list(dataset.classes[:3])}, ...; evaluate it on images of its own classes"
        )
    return answers


async def _ask(url: str, dataset: Dataset, connections: int) -> Answers:
    answers = Answers()
    # The workers take their images from one generator, so that a large dataset is never in memory as a whole.
    images = dataset.read()
    with tqdm(total=len(dataset), desc="evaluate", unit="img", leave=False) as progress:
        async with _client(url) as client:

            async def work() -> None:
                for encoded, label in images:
                    _count(answers, await _classify(client, encoded), label)
                    progress.update()

            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(connections):
                        workers.create_task(work())
            except* ScriptError as group:
                raise group.exceptions[0] from None
    return answers


def _client(url: str) -> httpx.AsyncClient:
    try:
        return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S)
    except httpx.InvalidURL as err:
        raise ScriptError(f"--url {url}: {err}") from err


async def _classify(client: httpx.AsyncClient, encoded: bytes) -> dict[str, object]:
    for _ in range(MOST_REFUSALS):
        try:
            response = await client.post(
                "/classify", params={"members": "true"}, content=encoded, headers={"Content-Type": "image/jpeg"}
            )
        except (httpx.HTTPError, httpx.InvalidURL) as err:
            raise ScriptError(f"no answer from {client.base_url}: {err or type(err).__name__}; is it serving?") from err
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            await asyncio.sleep(float(response.headers.get("Retry-After", 1)))
            continue
        if response.status_code != httpx.codes.OK:
            raise ScriptError(f"{client.base_url} answered {response.status_code}: {response.text[:200]}")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ScriptError(f"{client.base_url} answered {response.text[:200]!r}; is this the ensemble?")
        return answer
    raise ScriptError(f"{client.base_url} refused an image {MOST_REFUSALS} times; ask with fewer --connections")


def _count(answers: Answers, answer: dict[str, object], label: str) -> None:
    members, versions = answer.get("members"), answer.get("model_versions")
    if not isinstance(members, dict) or not isinstance(versions, dict):
        raise ScriptError(f"an answer without members or model_versions: {str(answer)[:200]}; is this the ensemble?")
    if missing := answer.get("missing"):
        raise ScriptError(
            f"an image was answered without a member ({missing}), which would count as the ensemble's answer"
        )
    # A cascade asks some members of some images.
    if any(answers.versions.get(name, version) != version for name, version in versions.items()):
        raise ScriptError(f"the served versions changed on the way, from {answers.versions} to {versions}; start again")
    answers.versions |= versions
    answers.images += 1
    for name in members:
        answers.asked[name] = answers.asked.get(name, 0) + 1
    given = {None: answer["label"], **{name: vote["label"] for name, vote in members.items()}}
    for name, said in given.items():
        answers.hits[name] = answers.hits.get(name, 0) + int(said == label)
        answers.labels.add(str(said))
