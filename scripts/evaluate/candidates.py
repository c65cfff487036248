"""What is measured: the versions of models, of a repository or of a configuration's members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import MemberInterface, preprocessing_fields
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import MemberInput, Preprocessing
from deployments.members import Member
from deployments.members.local import LocalMember
from deployments.members.openvino import OpenVino
from deployments.members.versioned import check
from deployments.repository.errors import ModelError
from deployments.repository.network import input_size, load, precision
from deployments.repository.repository import Folder, Model
from graph.config import EnsembleConfig
from graph.signature import EnsembleSignature
from scripts.errors import ScriptError

# The precision of a model on another server.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Candidate:
    """A version of a model, by the name of the model or of the member that it belongs to.

    Attributes:
        version: its number; None where another server does not report one.
        precision: `FP32`, `FP16`, `INT8` or `unknown`.
        wanted: the pixels that it takes.
        node: predicts; see `MemberConfig.make`.
        is_served: whether it is the version that the configuration serves.
        model: its files; None for a member on another server.
    """

    name: str
    version: int | None
    precision: str
    wanted: MemberInput
    node: Node[Any, Probabilities]
    is_served: bool = False
    model: Model | None = None


def of_models(models: Sequence[Model]) -> list[Candidate]:
    """Make candidates of a repository's versions, each with the pixels that it was prepared for.

    Raises:
        ScriptError: a model fixes no input size.
        ModelError: a model is damaged.
        ConfigurationError: a model can't run.
    """
    return [_of_model(OpenVino(name=each.name), each, MemberInterface(preprocessing(each), ())) for each in models]


def of_configuration(config: EnsembleConfig, agreed: EnsembleSignature) -> list[Candidate]:
    """List the versions of each member that could take the served one's place, and members on other servers.

    Raises:
        ConfigurationError: a member can't run.
    """
    return [candidate for member in config.members for candidate in _of_member(member, config, agreed)]


def _of_member(member: Member, config: EnsembleConfig, agreed: EnsembleSignature) -> Iterator[Candidate]:
    wanted = agreed.preprocessing[member.name]
    interface = agreed.interface(member.name)
    if not isinstance(member, LocalMember) or not isinstance(wanted, Preprocessing):
        node = member.make(config.model_repository, interface, config.ingress.max_batch_size)
        yield Candidate(member.name, None, UNKNOWN, wanted, node, is_served=True)
        return
    repository, name = member.repository_and_name(config.model_repository)
    served = member.find(config.model_repository)
    # From a repository at an address only the served version is fetched.
    for version in repository.versions(name) if isinstance(repository, Folder) else [served.version]:
        model = repository.find(name, version)
        try:
            check(member, model, interface)
        except (ConfigurationError, ModelError):
            continue
        yield _of_model(member, model, interface, version == served.version)


def _of_model(member: LocalMember, model: Model, interface: MemberInterface, is_served: bool = False) -> Candidate:
    node = member.load(model, interface, 1)
    return Candidate(member.name, model.version, precision(model), interface.images, node, is_served, model)


def preprocessing(model: Model) -> Preprocessing:
    """Read the pixels that a model was prepared for.

    Raises:
        ScriptError: the model takes any size, and no metadata names one.
        ModelError: the model is damaged or no classifier, or its metadata are wrong.
    """
    size = input_size(load(model))
    if size is None:
        height, width = model.input.get("height"), model.input.get("width")
        if not isinstance(height, int) or not isinstance(width, int):
            raise ScriptError(f"model {model.name!r} fixes no input size; prepare it with --size")
        size = height, width
    return Preprocessing(size, **preprocessing_fields(model.input))
