"""Mutated Serve configs, and what may be accepted of them; `python -m tests.mutations FILE...` prints what is.

Every scalar becomes what readers of YAML differ about, a word, or a list; every key gets upper case and a typo; every
entry of a list is doubled.
"""

import copy
import itertools
import re
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import ClassVar

import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.contract.errors import ConfigurationError
from graph.config import parse
from scripts import configuration

# Shipped ones that name nothing which is not there.
FILES = ("serve_config.yaml", "configs/cascade.yaml", "configs/rollout.yaml", "configs/cached.yaml")
SCALARS = ("yes", "on", "1:00", "017", "0x10", "resnet", "[resnet]", "true", "1_000", "'8'")
MARK = "MUTATED"


class Core(yaml.SafeLoader):
    """A reader of YAML 1.2: the core schema's table of section 10.3.2, and nothing else is resolved."""

    yaml_implicit_resolvers: ClassVar = {}


for name, pattern in {
    "null": r"null|Null|NULL|~|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}.items():
    Core.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"^(?:{pattern})$"), None)
Core.add_constructor("tag:yaml.org,2002:int", lambda self, node: int(node.value, 0 if node.value[:1] == "0" else 10))


def places(value, path=()):
    """Yield the path of each field and entry below a value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in entries:
        yield (*path, name)
        yield from places(each, (*path, name))


def at(value, path):
    for name in path:
        value = value[name]
    return value


def mutations(text, every=1):
    """Yield each mutation of a Serve config, or one of so many: its kind, the path of what it changes, its text."""
    whole = yaml.safe_load(text)
    for kind, path, change in itertools.islice(changes(whole), None, None, every):
        content = yaml.safe_load(yaml.dump(whole, Dumper=Dumper))
        change(at(content, path[:-1]))
        yield kind, path, yaml.dump(content, Dumper=Dumper, sort_keys=False).replace(MARK, kind)


def changes(whole):
    """Yield the kind of each mutation, the path, and what changes the owner of what is there."""
    for path in places(whole):
        name = path[-1]
        if not isinstance(at(whole, path), dict | list):
            yield from ((scalar, path, partial(put, name=name)) for scalar in SCALARS)
        if isinstance(name, int):
            yield "doubled", path, partial(double, position=name)
            continue
        for kind, other in (("upper case", name.upper()), ("typo", f"{name[:-1]}{'y' if name[-1] == 'x' else 'x'}")):
            yield kind, path, partial(rename, name=name, other=other)


def put(owner, name):
    owner[name] = MARK


def rename(owner, name, other):
    owner[other] = owner.pop(name)


def double(owner, position):
    owner.insert(position, copy.deepcopy(owner[position]))


class Dumper(yaml.SafeDumper):
    """Writes no alias, so that a change is at one place."""

    def ignore_aliases(self, data):
        return True


def problems(text, folder):
    """What `serve` and `deploy` refuse in a file, in the process in which they check it; None if nothing."""
    file = folder / "mutated.yaml"
    file.write_text(text)
    try:
        document = configuration.load(file)
        configuration.Checks(document.value, document).wait_for_arguments()
    except ConfigurationError as err:
        return err.args
    return None


def misread(text, path):
    """How an accepted file means something else to a reader, or is ignored by a schema, at a path; None if neither."""
    one, two = yaml.safe_load(text), yaml.load(text, Loader=Core)
    if not same(one, two):
        return f"YAML 1.1 reads {at(one, path)!r}, and YAML 1.2 {at(two, path)!r}"
    [application] = one["applications"]
    read = ServeDeploySchema.model_validate(one).model_dump(exclude_unset=True)
    read["applications"][0]["args"] = arguments(parse(application["args"]))
    try:
        found = at(read, path)
    except (KeyError, IndexError, TypeError):
        return f"{'.'.join(map(str, path))} is ignored"
    if not isinstance(at(one, path), dict | list) and not same(at(one, path), found):
        return f"{at(one, path)!r} is read as {found!r}"
    return None


def arguments(config):
    """Return the arguments as they were read, with the fields of features where a file has them."""
    read = config.model_dump()
    read |= read["features"]
    parts = [(config.ensemble, read["ensemble"]), (config.access, read["access"])]
    for part, fields in [*parts, *zip(config.members, read["members"], strict=True)]:
        for section in part._sections:
            fields |= section.model_dump()
    return read


def same(one, two):
    """Whether two values are equal, and of one type where a number, a boolean and a text are different ones."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, list) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    kinds = [str if isinstance(each, str | Path) else float if type(each) is int else type(each) for each in (one, two)]
    return kinds[0] is kinds[1] and str(one) == str(two) if str in kinds else kinds[0] is kinds[1] and one == two


def main():
    """Print what is accepted of the mutations of files, and why something is refused, by kind."""
    found = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for file in map(Path, sys.argv[1:] or FILES):
            for kind, path, text in mutations(file.read_text()):
                told = problems(text, Path(folder))
                found[kind, "refused" if told else "accepted"] += 1
                place = f"{file.name} {'.'.join(map(str, path))} {kind}"
                if told is None:
                    print(f"accepted: {place}: {misread(text, path) or 'as written'}", flush=True)
                elif not all(re.match(r"line [0-9]+: ", each) for each in told):
                    print(f"no line: {place}: {told}", flush=True)
                else:
                    print(f"refused: {place}: {' | '.join(told)}", flush=True)
    for (kind, verdict), count in sorted(found.items()):
        print(f"{kind:12}{verdict:10}{count:6}")
    print(f"{found.total()} files")


if __name__ == "__main__":
    main()
