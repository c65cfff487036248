"""How long the documentation is, and how many of its sentences have a figure: a page has one reader."""

import re

import yaml

from lab import docs
from tests.conftest import ROOT

# Of other files: the reference is written from the code; the rest is for those who change the code.
OTHER = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
FIGURE = re.compile(r"\d")
STEP = re.compile(r"\*\*\d+\. ")
# A cell or a heading of few words is no sentence.
FEWEST_WORDS = 4


def written():
    """The pages that people write, without those of the reference."""
    return {name for name in docs.pages() if not name.startswith("docs/reference/")} - OTHER


def for_use():
    return {name for name in written() if not name.startswith(("docs/benchmarks/", "docs/experiments/"))}


def words(names):
    return sum(len((ROOT / name).read_text().split()) for name in names)


def with_figure(name):
    """How many sentences a page has, and how many of them have a figure outside of code."""
    texts = docs.paragraphs((ROOT / name).read_text(), is_reference=False)
    found = [each for text in texts for each in docs.sentences(STEP.sub("", text))]
    found = [each for each in found if len(each.split()) >= FEWEST_WORDS]
    return len(found), sum(FIGURE.search(each) is not None for each in found)


def test_the_pages_are_few_and_short():
    assert len(for_use()) <= 30
    assert words(for_use()) <= 27_000


def test_figures_are_in_the_benchmarks():
    counted = [with_figure(name) for name in for_use()]
    assert sum(figures for _, figures in counted) <= 0.15 * sum(count for count, _ in counted)


def test_a_page_with_commands_is_followed_or_has_a_reason():
    known = yaml.safe_load((ROOT / "tests" / "followed.yaml").read_text())
    with_commands = {name for name in for_use() if "```bash\n" in (ROOT / name).read_text()}
    assert with_commands == {*known["pages"], *known["unfollowed"]}
