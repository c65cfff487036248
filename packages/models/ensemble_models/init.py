"""The command `ensemble init`: writes the configuration that serves models of one's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from deployments.contract.errors import ConfigurationError
from deployments.repository.errors import ModelError
from deployments.repository.repository import versions
from ensemble_models.check import measure
from ensemble_models.dataset import Dataset, sample
from ensemble_models.exporters.folder import MLMODEL, default_name, model_in, models_in
from ensemble_models.options import FILE, Command, OutputFile, option, repository_option
from ensemble_models.prepare import __main__ as prepare
from scripts import configuration
from scripts.errors import ScriptError
from scripts.strict_yaml import Document

# Of more images, so many are drawn to show which members pay.
MOST_IMAGES = 2_000
# What several members need to answer without one of them.
QUORUM = """\
      # One member is enough: the answer names a member that fails or takes over 3 s. Inline members share a process.
      ensemble: {quorum: 1, patience_ms: 3000}
"""
TEXT = """# Served by `ensemble serve {file}`; measured on labelled images by `ensemble check {file} --data FOLDER`.
applications:
  - name: ensemble
    import_path: {import_path}
    args:
      model_repository: {repository}  # <name>/<version>/; a relative path is relative to this file's folder
{ensemble}      transformer: {{placement: inline}}
      members:  # a version that is written later is not served before `version` names it
{members}
      combiner: {{placement: inline}}
      labeler: {{placement: inline}}
    deployments:
      # A new replica starts before the old one ends, so `ensemble deploy` loses no request.
      - {{name: Ingress, max_ongoing_requests: 1000, max_surge_percent: 100}}
"""


def write(file: Path, repository: Path, members: list[str]) -> None:
    """Write a configuration of some models of a repository, if they can be served together.

    Raises:
        FileExistsError: the file is there.
        ConfigurationError: a model is missing, or the models don't fit together.
    """
    folder, target = repository.resolve(), file.resolve().parent
    application = {"args": {"model_repository": str(folder), "members": [{"name": name} for name in members]}}
    config, agreed = configuration.check(application)
    lines = [
        f"        - {{name: {_in_yaml(name)}, version: {agreed.versions[name]}, placement: inline}}" for name in members
    ]
    text = TEXT.format(
        file=file,
        import_path=configuration.IMPORT_PATH,
        repository=_in_yaml(os.path.relpath(folder, target) if folder.is_relative_to(target) else str(folder)),
        ensemble=QUORUM if len(members) > 1 else "",
        members="\n".join(lines),
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
    with TemporaryDirectory(prefix="ensemble-models-") as folder:
        file, repository = Path(folder) / "serve.yaml", Path(folder) / "models"
        names = [str(each) for each in dict.fromkeys(members)]
        check(file, names)
        write(file, repository, [prepared(name, repository, data, labels) for name in names])
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


def _in_yaml(text: str) -> str:
    """Write a name or a path in YAML: in quotes only where YAML would read something else, as a number."""
    with suppress(ConfigurationError):
        if Document(text).value == text:
            return text
    return json.dumps(text, ensure_ascii=False)


def prepared(member: str, repository: Path, data: Path | None, labels: Path | None = None) -> str:
    """Return the name of a model, which is prepared if a file or the folder of a SavedModel is given.

    Raises:
        ModelError: the file can't become a member.
        ScriptError: the file does not say how, and there are no images that show it.
    """
    if not is_file_of_model(member):
        return member
    name = name_of(member)
    arguments = [member, "--name", name, "--repository", str(repository)]
    for flag, given in (("--data", data), ("--labels", labels)):
        arguments += [] if given is None else [flag, str(given)]
    try:
        with prepare.main.make_context("prepare", arguments) as context:
            prepare.main.invoke(context)
    except (ScriptError, ModelError) as err:
        # What no flag would change is reported as it is.
        if "--" not in str(err):
            raise
        raise ScriptError(
            f"{err}; these are flags of `ensemble prepare {member} --name {name}`: run it with them, then name "
            f"{name!r} by --members"
        ) from err
    return name


def is_file_of_model(member: str) -> bool:
    """Check whether a member is a file or a folder with a model, and not a name in the repository."""
    path = Path(member)
    is_in_repository = bool(versions(path.parent, path.name))
    return path.is_file() or (not is_in_repository and ((path / MLMODEL).is_file() or bool(models_in(path))))


def name_of(member: str) -> str:
    """Name the model of a member; see `default_name`."""
    return default_name(model_in(Path(member))) if is_file_of_model(member) else member


def check(file: Path, members: list[str]) -> None:
    """Raise ScriptError for what would otherwise be found out after models were prepared."""
    if file.exists():
        raise ScriptError(f"{file} is there already; remove it, or name another file")
    if missing := next((each for each in members if "/" in each and not is_file_of_model(each)), None):
        raise ScriptError(f"{missing} is neither a file nor a folder with a model")
    names = [name_of(member) for member in members]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ScriptError(f"two members would have the name {twice!r}; prepare one by `ensemble prepare --name`")


@click.command("init", cls=Command)
@click.argument("file", type=OutputFile(), metavar="FILE.yaml")
@option("--members", multiple=True, required=True, metavar="MEMBER...", help="Models of the repository, and files.")
@option("--data", type=FILE, help="Labelled images, <class>/*.jpg; decide how files are prepared.")
@repository_option
def main(file: Path, members: tuple[str, ...], data: Path | None, repository: Path) -> None:
    """Write the configuration that serves models of your own.

    ensemble init my.yaml --members mine other
    ensemble init my.yaml --members one.onnx two.onnx --data images/     # prepares them first
    ensemble serve my.yaml

    A member that is a file, or a folder with a model, becomes a model of the repository by `ensemble prepare`; its
    name is the file's without the suffix, or the folder's. Every node runs in one process, which is the fastest on one
    machine. docs/configuration.md has every field.
    """
    names = list(dict.fromkeys(members))
    check(file, names)
    write(file, repository, [prepared(name, repository, data) for name in names])
    if data is not None and len(names) > 1:
        show_worth(file, data)
    print(f"serve it: ensemble serve {file}")


if __name__ == "__main__":
    main()
