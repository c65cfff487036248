"""The command `ensemble init`: writes the configuration that serves models of one's own."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from deployments.contract.errors import ConfigurationError
from deployments.repository.errors import ModelError
from deployments.repository.repository import versions
from ensemble_models.check import measure
from ensemble_models.dataset import Dataset, sample
from ensemble_models.exporters.folder import MLMODEL, default_name, model_in, models_in
from ensemble_models.imports.found import Found, ImportedMember
from ensemble_models.imports.read import read
from ensemble_models.options import FILE, Command, OutputFile, option, repository_option
from ensemble_models.prepare import __main__ as prepare
from ensemble_models.prepare.source import BY_NAME, ORDERS
from scripts import configuration
from scripts.errors import ScriptError
from scripts.strict_yaml import Document

# Of more images, so many are drawn to show which members pay.
MOST_IMAGES = 2_000
# What several members need to answer without one of them.
QUORUM = {"quorum": 1, "patience_ms": 3000}
WHY = "# One member is enough: the answer names a member that fails or takes over 3 s. Inline members share a process."
TEXT = """# Served by `ensemble serve {file}`; measured on labelled images by `ensemble check {file} --data FOLDER`.
applications:
  - name: ensemble
    import_path: {import_path}
    args:
      model_repository: {repository}  # <name>/<version>/; a relative path is relative to this file's folder
{why}{sections}      transformer: {{placement: inline}}
      members:  # a version that is written later is not served before `version` names it
{members}
      combiner: {{placement: inline}}
      labeler: {{placement: inline}}
    deployments:
      # A new replica starts before the old one ends, so `ensemble deploy` loses no request.
      - {{name: Ingress, max_ongoing_requests: 1000, max_surge_percent: 100}}
"""


def write(
    file: Path, repository: Path, members: Sequence[ImportedMember], sections: Mapping[str, Any] | None = None
) -> None:
    """Write a configuration of some models of a repository, if they can be served together, with further settings.

    Raises:
        FileExistsError: the file is there.
        ConfigurationError: a model is missing, or the models don't fit together.
    """
    folder, target = repository.resolve(), file.resolve().parent
    settings = {name: dict(fields) for name, fields in (sections or {}).items()}
    if len(members) > 1:
        settings["ensemble"] = QUORUM | settings.get("ensemble", {})
    entries = [{"name": each.name, **each.settings, "placement": "inline"} for each in members]
    config, agreed = configuration.check({"args": {"model_repository": str(folder), "members": entries, **settings}})
    entries = [
        entry if "kind" in entry else {"name": entry["name"], "version": agreed.versions[entry["name"]]} | entry
        for entry in entries
    ]
    text = TEXT.format(
        file=file,
        import_path=configuration.IMPORT_PATH,
        repository=_in_yaml(os.path.relpath(folder, target) if folder.is_relative_to(target) else str(folder)),
        why=f"      {WHY}\n" if len(members) > 1 else "",
        sections="".join(f"      {name}: {_in_yaml(fields)}\n" for name, fields in settings.items()),
        members="\n".join(f"        - {_in_yaml(entry)}" for entry in entries),
    )
    with file.open("x", encoding="utf-8") as stream:
        stream.write(text)
    for member in config.members:
        print(f"{member.name}: version {agreed.versions[member.name]}, {agreed.preprocessing[member.name].key} pixels")
    for doubt in configuration.doubts(config, agreed):
        print(f"warning: {doubt}")
    print(f"wrote {file}, with {len(agreed.labels)} classes")


@contextmanager
def temporary(members: Sequence[Path], data: Path | None, labels: Path | None) -> Iterator[Path]:
    """Prepare files of models in a private folder, which lasts for the block; give and print their configuration.

    Raises:
        ModelError, ScriptError: as `prepared`.
    """
    flags = {flag: (str(given),) for flag, given in (("--data", data), ("--labels", labels)) if given is not None}
    with TemporaryDirectory(prefix="ensemble-models-") as folder:
        file, repository = Path(folder) / "serve.yaml", Path(folder) / "models"
        chosen = [named(str(each)) for each in dict.fromkeys(members)]
        check(file, chosen)
        imported(chosen, repository, flags)
        write(file, repository, chosen)
        print(file.read_text(encoding="utf-8"))
        yield file


def show_worth(file: Path, data: Path) -> None:
    """Show which members of a configuration pay, by images that may have decided how they are prepared."""
    [application] = configuration.ours(configuration.read(file))
    dataset = sample(Dataset.open(data), MOST_IMAGES)
    choice = measure.served(*configuration.check(application), dataset).choice
    if choice is not None:
        choice.table().show()
        print(f"these images helped to decide: repeat it on others by ensemble check {file} --data FOLDER")


def _in_yaml(value: Any) -> str:
    """Write a value in YAML on one line; a text in quotes only where YAML would read something else, as a number."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_in_yaml(name)}: {_in_yaml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_in_yaml, value)) + "]"
    if isinstance(value, str):
        with suppress(ConfigurationError):
            if Document(f"[{value}]").value == [value]:
                return value
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def undone_by_failure(repository: Path, names: Sequence[str]) -> Iterator[None]:
    """Remove the versions that a block has written, if it fails."""
    before = {name: set(versions(repository, name)) for name in names}
    try:
        yield
    except BaseException:
        for name, known in before.items():
            for number in set(versions(repository, name)) - known:
                shutil.rmtree(repository / name / str(number))
            with suppress(OSError):
                (repository / name).rmdir()
        raise


def imported(members: Sequence[ImportedMember], repository: Path, flags: Mapping[str, tuple[str, ...]]) -> None:
    """Prepare the members that have a source; flags of `ensemble prepare` hold where a member says nothing.

    Raises:
        ModelError: a file can't become a member.
        ScriptError: a file does not say how, and there are no images that show it.
    """
    for each in members:
        if each.source is not None:
            each.settings["version"] = prepared(each.source, each.name, repository, {**flags, **each.flags})
        if each.canary is not None:
            each.flags.pop("--version", None)
            version = prepared(each.canary, each.name, repository, {**flags, **each.flags})
            each.settings["canary"]["version"] = version


def prepared(source: Path, name: str, repository: Path, flags: Mapping[str, tuple[str, ...]]) -> int:
    """Prepare a model with flags of `ensemble prepare`; return its version.

    Raises:
        ModelError, ScriptError: as `imported`.
    """
    given = [word for flag, values in flags.items() for word in (flag, *values)]
    try:
        with prepare.main.make_context("prepare", [str(source), "--name", name, *given]) as context:
            context.params["repository"] = repository
            prepare.main.invoke(context)
    except (ScriptError, ModelError) as err:
        # What no flag would change is reported as it is.
        if "--" not in str(err):
            raise
        raise ScriptError(
            f"{err}; these are flags of `ensemble prepare {source} --name {name}`: run it with them, then name "
            f"{name!r} by --members"
        ) from err
    return int(flags["--version"][0]) if "--version" in flags else versions(repository, name)[-1]


def named(member: str) -> ImportedMember:
    """Make a member of what the command line names: a file or a folder with a model, or a model of the repository.

    Raises:
        ScriptError: there is no such file or folder.
        ModelError: see `model_in`.
    """
    path = Path(member)
    is_in_repository = bool(versions(path.parent, path.name))
    if path.is_file() or (not is_in_repository and ((path / MLMODEL).is_file() or models_in(path))):
        return ImportedMember(default_name(model_in(path)), path)
    if "/" in member:
        raise ScriptError(f"{member} is neither a file nor a folder with a model")
    return ImportedMember(member)


def check(file: Path, members: Sequence[ImportedMember]) -> None:
    """Raise ScriptError for what would otherwise be found out after models were prepared."""
    if file.exists():
        raise ScriptError(f"{file} is there already; remove it, or name another file")
    names = [member.name for member in members]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ScriptError(f"two members would have the name {twice!r}; prepare one by `ensemble prepare --name`")


@click.command("init", cls=Command)
@click.argument("file", type=OutputFile(), metavar="FILE.yaml")
@option("--members", multiple=True, metavar="MEMBER...", help="Models of the repository, and files.")
@option("--from", "origin", type=FILE, help="Another server's model repository or configuration.")
@option("--data", type=FILE, help="Labelled images, <class>/*.jpg; decide how files are prepared.")
@option("--labels", type=FILE, help="Class names in order of index, for files that have none.")
@option("--normalize", type=click.Choice(tuple(BY_NAME)), help="Mean and deviation, where nothing says it.")
@option("--channel-order", type=click.Choice(ORDERS), help="Order of the colours, where nothing says it.")
@repository_option
def main(file: Path, members: tuple[str, ...], origin: Path | None, repository: Path, **given: Any) -> None:
    """Write the configuration that serves models of your own.

    ensemble init my.yaml --members mine other
    ensemble init my.yaml --members one.onnx two.onnx --data images/     # prepares them first
    ensemble init my.yaml --from model_repository/ --data images/        # what another server serves
    ensemble serve my.yaml

    A member that is a file, or a folder with a model, becomes a model of the repository by `ensemble prepare`; its
    name is the file's without the suffix, or the folder's. Every node runs in one process, which is the fastest on one
    machine. docs/reference/configuration.md has every field.

    `--from` reads a model repository of Triton, a config.json of OpenVINO Model Server, or a manifest of KServe or
    Seldon Core 1, and prints what became of each field. It runs no code of the other server (docs/migrate.md).
    """
    if bool(members) == (origin is not None):
        raise click.UsageError("name the models by --members, or another server's configuration by --from")
    flags = {f"--{name.replace('_', '-')}": (str(value),) for name, value in given.items() if value is not None}
    found = Found("", [named(each) for each in dict.fromkeys(members)]) if origin is None else read(origin)
    check(file, found.members)
    if found.rows:
        found.table().show()
    with undone_by_failure(repository, [each.name for each in found.members]):
        imported(found.members, repository, flags)
        write(file, repository, found.members, found.sections)
    if given["data"] is not None and len(found.members) > 1:
        show_worth(file, given["data"])
    print(f"serve it: ensemble serve {file}")


if __name__ == "__main__":
    main()
