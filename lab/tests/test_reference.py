"""The reference pages are those of the code, and an editor's schema accepts what the application accepts."""

import sys

import jsonschema
import pytest
import yaml

from graph.config import EnsembleConfig
from lab.reference import configuration
from lab.reference.__main__ import FOLDER, files
from scripts.cli import by_name, groups
from tests.conftest import ROOT

SHIPPED = ["serve_config.yaml", *(str(file.relative_to(ROOT)) for file in ROOT.glob("*/*.yaml"))]
SERVED = [name for name in SHIPPED if "import_path" in (ROOT / name).read_text()]


@pytest.fixture(scope="module")
def written():
    return files()


@pytest.fixture(scope="module")
def check():
    return jsonschema.Draft202012Validator(configuration.document()).validate


# argparse of 3.13 prints options in another form.
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the pages are written with an older argparse")
def test_the_reference_is_what_the_code_says(written):
    stale = [name for name, text in written.items() if (FOLDER / name).read_text() != text]
    assert stale == [], "run `ensemble reference`"


def test_nothing_in_it_is_of_one_machine(written):
    assert [name for name, text in written.items() if str(ROOT) in text] == []


def test_every_command_and_every_section_is_in_it(written):
    assert [name for name in by_name(groups()) if f"### ensemble {name}\n" not in written["commands.md"]] == []
    assert [name for name in EnsembleConfig.model_fields if f"| `{name}` |" not in written["configuration.md"]] == []


def test_every_field_has_a_description():
    definitions = configuration.arguments()["$defs"]
    assert [
        f"{name}.{field}"
        for name, definition in definitions.items()
        for field, value in definition["properties"].items()
        if not value.get("description")
    ] == []


@pytest.mark.parametrize("name", SERVED)
def test_the_schema_accepts_what_ships(name, check):
    check(yaml.safe_load((ROOT / name).read_text()))


@pytest.mark.parametrize(
    "member", [{"name": "a", "thread": 1}, {"name": "a", "threads": 0}, {"name": "a", "kind": "none"}, {}]
)
def test_the_schema_refuses_a_member_that_the_application_refuses(member, check):
    application = {"import_path": "graph.app:build", "args": {"members": [member]}}
    with pytest.raises(jsonschema.ValidationError):
        check({"applications": [application]})


def test_the_schema_leaves_the_arguments_of_other_applications_alone(check):
    check({"applications": [{"import_path": "other:build", "args": {"anything": 1}}]})
