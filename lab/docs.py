"""The documentation as a website, and checks of its pages and sentences: `ensemble docs`."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from deployments.contract.errors import ConfigurationError
from deployments.pipeline.member_client import QuorumSettings
from ensemble_models.options import FILE, Command, option
from graph.config import EnsembleConfig
from scripts import configuration, keys, serve_schema
from scripts.errors import ScriptError
from scripts.shipped import CHECKOUT
from scripts.strict_yaml import Document

# Of a sentence in the code and in the experiments' pages, which have texts of the code, and in the other pages.
MOST_WORDS, MOST_WORDS_OF_A_PAGE = 35, 30
UNCLEAR = re.compile(
    r"\b(?:that of|those of|those that|the one that|what (?:[\w']+ ){0,4}?(?:is|are|was|were|has|have|had))\b",
    re.IGNORECASE,
)
# Compressed words: "only" stands before its noun, and two figures are clearer than a ratio.
COMPRESSED = re.compile(
    r" alone(?=[.,;])|\b(?:as many times|so many|times as (?:many|much))\b"
    r"|\btimes the (?:capacity|cost|images|memory|rate|requests|time)\b|\bof (?:one's|your|its|their) own\b",
    re.IGNORECASE,
)
# Dates and CPUs of measurements, and the pages that may have them.
MEASURED = re.compile(
    r"\b20\d\d-\d\d-\d\d\b|\b(?:January|February|March|April|May|June|July|August|September|October|November|December)"
    r" 20\d\d\b|\b(?:Xeon|EPYC|Ryzen|Graviton|Zen \d)\b"
)
MEASUREMENTS = {"benchmarks", "experiments"}
END = re.compile(r"(?<=[.;?!])[*\"')]*\s+")
CODE = re.compile(r"``?.+?``?", re.DOTALL)
ADDRESS = re.compile(r"\]\([^)]*\)|<[^>]*>")
# What divides a text of a terminal or a docstring: an empty line, a section's head, an entry of a list or a section.
DIVIDER = re.compile(
    r"\n\s*\n|\n\s*(?:Args|Attributes|Raises|Returns|Yields):(?=\n)|\n(?=\s*(?:[-*] |ensemble |[`*\w.]+: ))"
)
USAGE = re.compile(r"usage:.*?\n\n", re.DOTALL)
OPTION = re.compile(r"\n(?= {1,8}\S)|(?<=\S) {2,}")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; code counts as a word, and an address as none."""
    for block in DIVIDER.split(text):
        yield from END.split(" ".join(ADDRESS.sub("]", CODE.sub("code", block)).split()))


def paragraphs(page: str, is_reference: bool) -> Iterator[str]:
    """Yield the paragraphs, headings and cells of a page, and of the reference also the texts for a terminal."""
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type == "inline":
            yield token.content
        elif token.type == "fence" and is_reference and token.info == "text":
            yield from OPTION.split(USAGE.sub("", token.content, count=1))


def docstrings(code: str) -> Iterator[str]:
    """Yield the docstrings of a module, of its classes and functions, and the messages of its errors."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Raise):
            yield "".join(
                each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def faults(file: Path) -> list[str]:
    """Return the sentences of a page or a module that break the rule, each with the reason."""
    text, folder = file.read_text(encoding="utf-8"), file.parent.name
    texts = docstrings(text) if file.suffix == ".py" else paragraphs(text, folder == "reference")
    is_written = file.suffix == ".md" and folder not in {"reference", "experiments"}
    refused = [UNCLEAR, *([COMPRESSED] if is_written else []), *([MEASURED] if folder not in MEASUREMENTS else [])]
    most = MOST_WORDS_OF_A_PAGE if is_written else MOST_WORDS
    found = []
    for sentence in (sentence for each in texts for sentence in sentences(each)):
        if (words := len(sentence.split())) > most:
            found.append(f"{words} words: {sentence}")
        found += [f'"{match[0]}": {sentence}' for pattern in refused if (match := pattern.search(sentence))]
    return found


CONFIG = CHECKOUT / "zensical.toml"
PAGES = ("*.md", "docs/**/*.md")
# The texts of the code that are read, and folders whose texts are not read: tests and builds.
CODE_FOLDERS = ("deployments", "graph", "scripts", "packages", "lab")
UNREAD = {"tests", "build"}
# The map of the pages that language models look for; its links are checked, and it is at the site's root.
MAP = CHECKOUT / "llms.txt"
# Links of Markdown to files of the repository, without their anchors.
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# The arguments in it need the package that a test installs, which then serves them: tests/server/test_extend.py.
EXTENDED = CHECKOUT / "docs" / "extend.md"
# What divides the cells of a row.
BAR = re.compile(r"(?<!\\)\|")
# The file of keys on the pages, and a name in it.
KEYS, OPERATOR = "/etc/ensemble/keys", "deploy"
# A part of a configuration is checked in this one; its members are the bundled ones.
AROUND = """
applications: [{name: ensemble, import_path: graph.app:build, args: {members: [{name: resnet}, {name: densenet}]}}]
"""
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def pages() -> set[str]:
    """Find every page, by its path in the repository."""
    return {str(page.relative_to(CHECKOUT)) for pattern in PAGES for page in CHECKOUT.glob(pattern)}


def listed(nav: Iterable[Any]) -> Iterator[str]:
    """Yield the pages of a `nav` of zensical.toml, in order."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from [below] if isinstance(below, str) else listed(below)


def check_sections(written: set[str], in_sections: list[str]) -> None:
    """Raise ScriptError for a page that no section has, that two have, or that is not there."""
    if missing := sorted(written - set(in_sections)):
        raise ScriptError(f"{', '.join(missing)}: in no section of zensical.toml; add a line to its `nav`")
    if gone := sorted(set(in_sections) - written):
        raise ScriptError(f"zensical.toml lists {', '.join(gone)}, which is not there")
    if twice := sorted({page for page in in_sections if in_sections.count(page) > 1}):
        raise ScriptError(f"zensical.toml lists {', '.join(twice)} twice")


def linked(page: Path) -> Iterator[Path]:
    """Yield the files of the repository that a page links to. Raises ScriptError if a link leads to no file."""
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / link).resolve()
        if not target.is_file():
            raise ScriptError(f"{page.relative_to(CHECKOUT)}: {link} is no file; link a file of the repository")
        yield target


def with_linked(pages: Iterable[Path]) -> set[Path]:
    """Add the files that pages link to, and the files that linked pages link to."""
    found: set[Path] = set()
    new = set(pages)
    while new:
        found |= new
        new = {file for page in new if page == MAP or page.suffix == ".md" for file in linked(page)} - found
    return found


def check_blocks(page: Path) -> None:
    """Raise ScriptError for a table or a block of YAML that a reader could not use."""
    lines, tokens = page.read_text(encoding="utf-8").split("\n"), MarkdownIt("commonmark").enable("table")
    for token in tokens.parse("\n".join(lines)):
        problem = _problem(token, lines[slice(*(token.map or (0, 0)))], page != EXTENDED)
        if problem:
            raise ScriptError(f"{page.relative_to(CHECKOUT)}, line {(token.map or [0])[0] + 1}: {problem}")


def _problem(token: Token, lines: list[str], is_of_this_code: bool) -> str:
    """Describe the fault of a block of a page; empty if it has none. Arguments of other code can't be checked."""
    if token.type == "paragraph_open" and lines[0].lstrip().startswith("|"):
        return "a table needs a line of `|---|` below its first line, and an empty line before that"
    if token.type == "table_open" and len({len(BAR.findall(line)) for line in lines}) > 1:
        return "the rows of the table have different numbers of cells; write `\\|` for a bar in a cell"
    if token.type == "fence" and token.info.split()[:1] == ["yaml"]:
        try:
            if (config := completed(Document(token.content).value)) is not None:
                check_config(yaml.safe_dump(config), is_of_this_code)
        except (ScriptError, ConfigurationError) as err:
            return f"the YAML can't be used: {err}"
    return ""


def completed(part: Any) -> dict[str, Any] | None:
    """Complete a part of a Serve config: `deployments`, `args`, or sections of `args`; None if it is something else."""
    if isinstance(part, list) and all("name" in each for each in part):
        part = {"deployments": part}
    if not isinstance(part, dict) or "applications" in part:
        return part if isinstance(part, dict) else None
    config: dict[str, Any] = yaml.safe_load(AROUND)
    [application] = config["applications"]
    if part.keys() <= {"args", "deployments"}:
        application["args"] |= part.pop("args", {})
        application |= part
    elif part.keys() <= {*QuorumSettings.known()}:
        application["args"]["ensemble"] = part
    elif part.keys() <= {*EnsembleConfig.known()}:
        application["args"] |= part
    else:
        return None
    return config


def check_config(text: str, with_arguments: bool) -> None:
    """Check a Serve config as `ensemble doctor` does, but for its models; raises what the checks raise."""
    with TemporaryDirectory() as folder:
        file, own_keys = Path(folder) / "my.yaml", Path(folder) / "keys"
        keys.add(own_keys, OPERATOR, None)
        file.write_text(text.replace(KEYS, str(own_keys)), encoding="utf-8")
        config = configuration.load(file).value
        if with_arguments:
            configuration.check_file(config)
        else:
            serve_schema.check(config)


def check_sentences(files: Iterable[Path]) -> None:
    """Raise ScriptError for sentences that are long or unclear."""
    if found := [f"{file.relative_to(CHECKOUT)}: {fault}" for file in files for fault in faults(file)]:
        listed = "\n".join(found)
        raise ScriptError(f"rewrite these sentences, with a noun for each thing:\n{listed}")


def code() -> Iterator[Path]:
    """Find the modules whose docstrings and errors are checked."""
    for folder in CODE_FOLDERS:
        modules = (CHECKOUT / folder).rglob("*.py")
        yield from (module for module in sorted(modules) if not UNREAD & set(module.parts[len(CHECKOUT.parts) :]))


def build(folder: Path) -> Path:
    """Build the site in a folder, whose content is removed first, and return the site's own folder.

    Raises ScriptError if a page or a link is wrong, or Zensical is not installed.
    """
    written = pages()
    check_sections(written, list(listed(tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"])))
    for page in sorted(written):
        check_blocks(CHECKOUT / page)
    check_sentences([*(CHECKOUT / page for page in sorted(written)), *code()])
    shutil.rmtree(folder, ignore_errors=True)
    for source in sorted(with_linked([MAP, *(CHECKOUT / page for page in written)])):
        copy = folder / "source" / source.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    shutil.copyfile(CONFIG, folder / CONFIG.name)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(folder / CONFIG.name)]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        print(COLOUR.sub("", (done.stdout + done.stderr).partition("Traceback")[0]), file=sys.stderr)
        raise ScriptError("Zensical can't build the site; correct what it names above")
    return folder / "site"


@click.command("docs", cls=Command)
@option("--folder", type=FILE, default=CHECKOUT / "build" / "docs", help="Where the site is built.")
def main(folder: Path) -> None:
    """Build the documentation as a website, and check its links, tables, YAML and sentences; `make docs` serves it.

    The site has the shape of the repository, so links work as they do in the files: it has the pages, and every file
    that a page links to. The command refuses a page that is in no section of zensical.toml, a link to nothing, a table
    without a head, and YAML that `ensemble doctor` would refuse. It also refuses unclear sentences of pages, of the
    reference, and of the code's docstrings and errors.
    """
    print(f"built {build(folder)}")


if __name__ == "__main__":
    main()
