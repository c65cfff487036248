"""The class names of models of the repository: prints them, or renames them."""

from pathlib import Path

import click

from deployments.repository.network import class_count, load
from deployments.repository.repository import LABELS, Model, find, versions
from ensemble_models.exporters.names import read_names
from ensemble_models.options import FILE, POSITIVE, Command, option, repository_option
from ensemble_models.writing import write_metadata
from scripts.errors import ScriptError


def rename(models: list[Model], file: Path, permute: bool = False) -> None:
    """Give the classes of models the names in a file, of all models or of none.

    Raises:
        ScriptError: there are more or fewer names than classes, or names change places and `permute` is false.
        ModelError: a model is damaged, or a class has no name.
    """
    names = read_names(file)
    for model in models:
        # Loading compares the files with their digests, so that those written below are of intact files.
        if len(names) != (count := class_count(load(model))):
            raise ScriptError(
                f"{file} has {len(names)} names; version {model.version} of {model.name!r} has {count} classes"
            )
        old = model.labels or ()
        # Classes whose new name is another class' old one.
        moved = [pair for pair in zip(old, names, strict=False) if pair[0] != pair[1] and pair[1] in old]
        if moved and not permute:
            shown = "; ".join(f"{old!r} becomes {new!r}" for old, new in moved[:3])
            raise ScriptError(
                f"{file} gives {len(moved)} classes of version {model.version} of {model.name!r} names that other "
                f"classes have now ({shown}): answers change their meaning. --permute allows it, if the order is wrong"
            )
    for model in models:
        if model.metadata:
            write_metadata(model.folder, {**model.metadata, "classes": list(names)})
        else:
            (model.folder / LABELS).write_text("\n".join(names) + "\n", encoding="utf-8")
        print(
            f"renamed the {len(names)} classes of version {model.version} of {model.name}: {', '.join(names[:3])}, ..."
        )


@click.command("labels", cls=Command)
@click.argument("name")
@option("--labels", type=FILE, metavar="FILE", help="The new names, a name on each line.")
@option("--version", type=POSITIVE, help="Version to rename, default: all; to print, default: the highest.")
@option("--permute", is_flag=True, help="Allow names that change places: the order was wrong.")
@repository_option
def main(name: str, labels: Path | None, version: int | None, permute: bool, repository: Path) -> None:
    """Print the class names of a model of the repository, or rename them.

    ensemble labels mine > labels.txt
    ensemble labels mine --labels labels.txt      # once you have edited it: a name on each line, in order of index

    A name of several classes gets the class's index behind it. The command renames all versions of the model, or the
    version in `--version`. It refuses names that change places without `--permute`. A server shows the new names after
    a restart or `ensemble deploy`.
    """
    latest = find(repository, name, version)
    if labels is not None:
        every = versions(repository, name) if version is None else [version]
        rename([find(repository, name, each) for each in every], labels, permute)
    elif latest.labels is None:
        raise ScriptError(f"the classes of {name!r} have no names; --labels FILE names them")
    else:
        print("\n".join(latest.labels))


if __name__ == "__main__":
    main()
