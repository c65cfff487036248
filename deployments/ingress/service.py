"""What every protocol shares: the ingress, what is known of the models, and whether they are ready."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from deployments.contract.errors import ConfigurationError, NotReady, Unloaded
from deployments.ingress.access import Access
from deployments.ingress.extension import Extension
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Protocol, TensorStore, resolve, services
from deployments.ingress.settings import WITHOUT_PAGE, PageConfig
from deployments.ingress.single_member import MemberModelInfo
from deployments.observe.stats import Stats

# By deployment, their number by state and by the address of their machine.
Replicas = Mapping[str, Mapping[tuple[str, str], int]]


V = TypeVar("V")


def merged(tables: Iterable[Mapping[str, V]]) -> dict[str, V]:
    """Join the tables of protocols and features.

    Raises:
        ConfigurationError: two of them have the same path.
    """
    whole: dict[str, V] = {}
    for table in tables:
        if twice := sorted(whole.keys() & table.keys()):
            raise ConfigurationError(f"two protocols or features bring {twice[0]}; remove one of them")
        whole |= table
    return whole


async def no_replicas() -> Replicas:
    """Report no replicas, where there is no Serve."""
    return {}


@dataclass(frozen=True)
class Service:
    """What the protocols share.

    Attributes:
        ingress: where images go.
        labels: the classes' names, in order of index.
        is_ready: whether every member has answered since the start, or the quorum goes on without one that is remote.
        access: checks API keys; None where none are needed.
        missing: the members that have not answered, and the codes of their errors or why.
        page: whether there is a page, and what it links to.
        strategy: how the members' answers become one, in words.
        stats: counts what the page shows; None where nothing is counted.
        replica: the id of the ingress replica.
        replicas: the number of replicas of each deployment by state and machine, as Serve reports it.
        members: by name, for each member that is a model of its own, the ingress of its pixels and what it is.
        protocols: how clients reach the application; default: every installed one.
        application: the name of the Serve application.
        extensions: what the application's features add.
        is_local: whether the server listens on loopback alone.
        max_image_bytes: the most of an image, which is read no further.
        weights: of the members in the answer, by name, as they were when the application was built.
        versions: by name, the version that each member serves, as far as this process knows.
        grpc_services: the full names of the gRPC services that clients reach.
    """

    ingress: Ingress
    labels: Sequence[str]
    is_ready: Callable[[], bool]
    access: Access | None = None
    missing: Callable[[], Mapping[str, str]] = field(default=dict)
    page: PageConfig = WITHOUT_PAGE
    strategy: str = ""
    stats: Stats | None = None
    replica: str = ""
    replicas: Callable[[], Awaitable[Replicas]] = no_replicas
    members: Mapping[str, tuple[Ingress, MemberModelInfo]] = field(default_factory=dict)
    protocols: Sequence[Protocol] = field(default_factory=lambda: tuple(each() for each in resolve()))
    application: str = ""
    extensions: Sequence[Extension] = ()
    versions: dict[str, str] = field(default_factory=dict)
    is_local: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    grpc_services: Sequence[str] = field(default_factory=lambda: [each.full_name for each in services(None)])
    max_image_bytes: int = sys.maxsize

    @property
    def unloaded(self) -> Collection[str]:
        """The members that are not asked, because they were unloaded."""
        return [name for extension in self.extensions for name in extension.unloaded]

    @property
    def parts(self) -> Sequence[Protocol | Extension]:
        """What has routes and calls."""
        return (*self.protocols, *self.extensions)

    @property
    def handles(self) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        """The methods of features for callers with a handle, by name."""
        return {name: method for extension in self.extensions for name, method in extension.handles.items()}

    @property
    def not_serving(self) -> Collection[str]:
        """The gRPC services that refuse every call, because a feature is off."""
        return {name for extension in self.extensions for name in extension.not_serving}

    @cached_property
    def tensor_store(self) -> TensorStore:
        """Where clients may keep tensors outside their requests."""
        found = (each.tensor_store(self) for each in self.protocols)
        return next((store for store in found if store is not None), TensorStore())

    @property
    def headers(self) -> Sequence[str]:
        """The headers of a request that a feature reads, in small letters."""
        return tuple(dict.fromkeys(name for extension in self.extensions for name in extension.headers))

    def check_ready(self, name: str = "") -> None:
        """Raise NotReady until every member has answered, and Unloaded for a member of that name which was unloaded."""
        if name in self.unloaded:
            raise Unloaded(f"member {name!r} is unloaded")
        if not self.is_ready():
            reasons = "; ".join(f"{name}: {why}" for name, why in self.missing().items())
            raise NotReady(f"not every member has answered yet{f' ({reasons})' if reasons else ''}; try again later")
