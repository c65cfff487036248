"""A Serve config file of this project: read, and checked before anything is started."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments.contract.errors import ConfigurationError
from deployments.contract.hosts import ANY
from deployments.entry_points import did_you_mean
from deployments.folder_permissions import changeable_by_others
from deployments.ray_internals.import_path import append_working_directory
from scripts.errors import ScriptError
from scripts.strict_yaml import Document

if TYPE_CHECKING:
    from deployments.members.local import LocalMember
    from graph.config import EnsembleConfig
    from graph.signature import EnsembleSignature

IMPORT_PATH = "graph.app:build"
REPOSITORY = "model_repository"
EVERY_PAGE = (
    "ingress.origins: '*' lets a page of any website use this server in the browsers that reach it, by a key if there "
    "are keys that its readers know; list the origins of your pages"
)


def load(file: Path) -> Document:
    """Read a Serve config; make a relative `model_repository`, which is relative to the file's folder, absolute.

    Only `check_file` shows that the rest is as Serve wants it. From here on, this process imports what the config names
    as `module:name` as Ray's workers do.

    Raises:
        ConfigurationError: the file is no YAML, or readers of YAML differ about it.
        OSError: it can't be read.
    """
    append_working_directory()
    try:
        document = Document(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as err:
        raise ConfigurationError(f"it is not valid YAML: {err}") from err
    if not isinstance(document.value, dict):
        raise ConfigurationError("a Serve config file is a mapping; see serve_config.yaml")
    applications = document.value.get("applications")
    for application in applications if isinstance(applications, list) else ():
        arguments = application.get("args") if isinstance(application, dict) else None
        given = arguments.get(REPOSITORY) if isinstance(arguments, dict) else None
        if isinstance(arguments, dict) and isinstance(given, str) and "://" not in given:
            arguments[REPOSITORY] = str(file.resolve().parent / given)
    return document


def read(file: Path) -> dict[str, Any]:
    """Read a Serve config, and check all but its models.

    Raises:
        ConfigurationError: it can't be served; each problem has the line and the path of a field.
        OSError: it can't be read.
    """
    document = load(file)
    check_file(document.value, document)
    config: dict[str, Any] = document.value
    return config


def ours(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the applications of a Serve config that `graph.app` builds."""
    return (each for each in config.get("applications") or [] if each.get("import_path") == IMPORT_PATH)


def check_import_paths(config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an `import_path` of which there is no module: Serve says so once Ray runs."""
    append_working_directory()
    own = IMPORT_PATH.partition(":")[0]
    for application in config.get("applications") or []:
        path, away = application.get("import_path"), application.get("runtime_env") or {}
        # What brings modules of its own can't be looked at here.
        if path == IMPORT_PATH or away.keys() & {"working_dir", "py_modules", "pip", "uv"}:
            continue
        module = path.partition(":")[0] if ":" in path else path.rpartition(".")[0]
        with suppress(ImportError, ValueError):
            if module != own and find_spec(module) is not None:
                continue
        shared = changeable_by_others(Path.cwd())
        where = f", but not where other users can change {shared}" if shared else ""
        looked = f"; modules of your own are looked for in the working directory{where}"
        raise ConfigurationError(f"import_path: there is no {path!r}{did_you_mean(path, [IMPORT_PATH]) or looked}")


def why_serve(config: Mapping[str, Any]) -> str | None:
    """Explain why Serve's proxy receives requests; None where HAProxy does."""
    applications = config.get("applications") or []
    if len(applications) != 1:
        return f"there are {len(applications)} applications, and HAProxy is in front of one"
    [application] = applications
    is_ours = application.get("import_path") == IMPORT_PATH
    if (application.get("args") or {}).get("front", "direct" if is_ours else "serve") == "serve":
        return (
            "front: serve" if is_ours else f"{application.get('import_path')} does not say `front: direct` in its args"
        )
    if application.get("route_prefix", "/") != "/":
        return "the application's route_prefix is not /"
    return None


def check_file(config: Mapping[str, Any], document: Document | None = None) -> None:
    """Check a Serve config, all but its models; with its document, each problem has a line.

    Raises:
        ConfigurationError: Serve or this project refuses a field or its value, or would ignore it.
    """
    from scripts import serve_schema

    with document.locating() if document else nullcontext():
        serve_schema.check(config)
        check_import_paths(config)
    for i, application in enumerate(config["applications"]):
        place = ("applications", i)
        if application["import_path"] == IMPORT_PATH:
            with document.locating(place, (*place, "args")) if document else nullcontext():
                check_arguments(application, config)


def check_arguments(application: Mapping[str, Any], serve: Mapping[str, Any] | None = None) -> EnsembleConfig:
    """Check an application of a Serve config without a look at its models; return its configuration.

    Raises:
        ConfigurationError: it is none, contradicts itself, or has an entry of `deployments` that belongs to none.
    """
    from graph import rules
    from graph.config import parse
    from graph.feature import wanted

    config, whole = parse(application.get("args") or {}), serve or {"applications": [application]}
    wanted(config)
    rules.check_application(whole, application, config, own_front=why_serve(whole) is None)
    return config


def check(
    application: Mapping[str, Any], serve: Mapping[str, Any] | None = None
) -> tuple[EnsembleConfig, EnsembleSignature]:
    """Check an application of a Serve config and its models; return its configuration and its members' signature.

    Raises:
        ConfigurationError: the application can't be built, or an entry of its `deployments` belongs to no deployment.
    """
    from graph.signature import resolve_signatures

    config = check_arguments(application, serve)
    return config, resolve_signatures(config)


def replicas_of(application: Mapping[str, Any], config: EnsembleConfig) -> dict[str, int]:
    """Count the replicas of the ingress and of each node that a machine has at the start, by the nodes' names."""
    nodes = {member.deployment_name: member.name for member in config.members}
    found = {}
    for entry in application.get("deployments") or []:
        found[nodes.get(name := str(entry.get("name")), name)] = max(1, replicas_at_start(entry))
    return found


def replicas_at_start(deployment: Mapping[str, Any]) -> int:
    """Count the replicas that an entry of `deployments` has at the start, on one machine."""
    scaling, fixed = deployment.get("autoscaling_config") or {}, deployment.get("num_replicas")
    count: int = scaling.get("initial_replicas") or scaling.get("min_replicas", 1) if fixed in {None, "auto"} else fixed
    return min(count, deployment.get("max_replicas_per_node") or count)


def doubts(config: EnsembleConfig, agreed: EnsembleSignature) -> Iterator[str]:
    """State the assumptions about members whose files do not describe them."""
    from deployments.members.local import LocalMember
    from deployments.members.openvino import OpenVino

    for member in config.members:
        if isinstance(member, OpenVino) and not member.find(config.model_repository).metadata:
            yield (
                f"the model of {member.name} was not prepared: its shape shows layout and size, the rest is assumed: "
                f"{agreed.preprocessing[member.name].key} pixels, BGR, from 0 to 255 as they are, and a softmax if its "
                "scores are no probabilities. Answers are wrong if it takes others; `ensemble prepare` finds out"
            )
    for member in config.members:
        if isinstance(member, LocalMember) and member.version is None:
            yield from _rolled_back(member, config)
    for name in agreed.reordered:
        yield f"{name} has the classes in another order than the other members; its answers are matched by their names"
    for name in agreed.unlabelled:
        yield (
            f"{name} names no classes: those of the other members are taken, in that order, and answers are wrong if "
            "its own order is another; `ensemble check` measures it"
        )
    yield from (str(fault) for fault in config.faults(agreed) if not fault.is_refused)
    if ANY in config.ingress.origins:
        yield EVERY_PAGE


def _rolled_back(member: LocalMember, config: EnsembleConfig) -> Iterator[str]:
    """Warn of higher versions than the served one, which the member would serve if they were not rolled back."""
    repository, name = member.repository_and_name(config.model_repository)
    served = member.find(config.model_repository).version
    for version, why in repository.rolled_back(name).items():
        if version > served:
            yield (
                f"{member.name} serves version {served}, because version {version} was rolled back ({why}); "
                f"`version: {version}` serves it nevertheless, and rolled-back.txt beside the model forgets it"
            )


class Checks:
    """Checks a Serve config and the applications of this project in it, while this process does something else.

    In a process of its own, because what that loads would stay in this one. It ends by itself.
    """

    def __init__(self, config: Mapping[str, Any], document: Document | None = None) -> None:
        context = multiprocessing.get_context("fork")
        self._found, theirs = context.Pipe(duplex=False)
        context.Process(target=_send, args=(config, document, theirs), daemon=True).start()
        theirs.close()

    def wait_for_arguments(self) -> None:
        """Wait for what needs neither models nor a running Ray, as `check_file` has it.

        Raises:
            ConfigurationError: Serve or this project refuses a field or its value, or would ignore it.
            ScriptError: the process ended by something else.
        """
        self._receive()

    def wait(self) -> None:
        """Wait for the rest, and print the doubts; call `wait_for_arguments` before.

        Raises:
            ConfigurationError: an application can't be served.
            ScriptError: the process ended by something else.
        """
        print(*(f"warning: {doubt}\n" for doubt in self._receive()), sep="", end="", flush=True)

    def _receive(self) -> Any:
        try:
            received = self._found.recv()
        except EOFError as err:
            raise ScriptError("reading the configuration and its models ended the process; see above") from err
        if isinstance(received, Exception):
            raise received
        return received


def _send(config: Mapping[str, Any], document: Document | None, pipe: Connection) -> None:
    # What it would warn of is logged again by the process that builds the application.
    logging.disable(logging.WARNING)
    # Nobody may wait for it any more.
    with suppress(BrokenPipeError):
        try:
            check_file(config, document)
            pipe.send(None)
            # Imported here: it loads the kinds of members.
            from scripts.variants import choices

            for line in chain.from_iterable(choices(check_arguments(each, config)) for each in ours(config)):
                print(line, flush=True)
            pipe.send(list(dict.fromkeys(chain.from_iterable(_warnings(each, config) for each in ours(config)))))
        except (ConfigurationError, ScriptError, OSError, ValueError) as err:
            pipe.send(err)


def _warnings(application: Mapping[str, Any], serve: Mapping[str, Any]) -> Iterator[str]:
    """Yield the warnings about an application that is served nevertheless."""
    config, agreed = check(application, serve)
    yield from doubts(config, agreed)
