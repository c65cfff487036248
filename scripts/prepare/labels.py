"""Prints the class names of a model of the repository, or renames them.

    ensemble labels mine > labels.txt
    ensemble labels mine --labels labels.txt      # once you have edited it: a name on each line, in order of index

Names that several classes have get the class's index behind them. All versions of the model are renamed, or the one
that `--version` names; a server shows the new names once it is started or deployed anew.
"""

from __future__ import annotations

from pathlib import Path

from deployments.repository.network import class_count, load
from deployments.repository.repository import LABELS, Model, find, read_labels, versions
from deployments.repository.writing import write_metadata
from scripts.errors import ScriptError, errors_in_one_line, positive
from scripts.flags import described
from scripts.repository import add_repository


def rename(models: list[Model], file: Path) -> None:
    """Give the classes of models the names in a file, of all models or of none.

    Raises:
        ScriptError: there are more or fewer names than classes.
        ModelError: a model is damaged, or a class has no name.
    """
    names = read_labels(file)
    for model in models:
        # Loading compares the files with their digests, so that those written below are of intact files.
        if len(names) != (count := class_count(load(model))):
            raise ScriptError(
                f"{file} has {len(names)} names; version {model.version} of {model.name!r} has {count} classes"
            )
    for model in models:
        if model.metadata:
            write_metadata(model.folder, {**model.metadata, "classes": list(names)})
        else:
            (model.folder / LABELS).write_text("\n".join(names) + "\n", encoding="utf-8")
        print(
            f"renamed the {len(names)} classes of version {model.version} of {model.name}: {', '.join(names[:3])}, ..."
        )


def main() -> None:
    """Parse the command line, and print or rename."""
    parser = described(__doc__)
    parser.add_argument("name", help="model of the repository")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="the new names, a name on each line")
    parser.add_argument("--version", type=positive, help="default: all versions; to print, the highest")
    add_repository(parser)
    args = parser.parse_args()
    with errors_in_one_line():
        latest = find(args.repository, args.name, args.version)
        if args.labels is None:
            if latest.labels is None:
                raise ScriptError(f"the classes of {args.name!r} have no names; --labels FILE names them")
            print("\n".join(latest.labels))
        elif args.version is not None:
            rename([latest], args.labels)
        else:
            rename(
                [find(args.repository, args.name, each) for each in versions(args.repository, args.name)], args.labels
            )


if __name__ == "__main__":
    main()
