from pathlib import Path

import pytest

from deployments.repository.errors import ModelError
from ensemble_models.exporters.names import names_in


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        # A number before all names is their index, though each name ends with one, too.
        ("l.txt", "0 Grade 0\n1 Grade 1\n2 Grade 2\n", ("Grade 0", "Grade 1", "Grade 2")),
        # A number without which most names would be equal is a part of them.
        ("l.txt", "1 star\n2 stars\n3 stars\n4 stars\n", ("1 star", "2 stars", "3 stars", "4 stars")),
        ("l.txt", "cat 0\ndog 1\n", ("cat", "dog")),
        # No name becomes YAML's number, time or truth.
        ("l.yaml", "- 010\n- 0x1F\n- 1:30\n- no\n", ("010", "0x1F", "1:30", "no")),
        ("l.yaml", "{cat: 1, dog: 0}", ("dog", "cat")),
        ("l.yaml", "names: {0: cat, 1: dog}", ("cat", "dog")),
        ("l.json", '{"0": "7", "1": "3"}', ("7", "3")),
    ],
)
def test_names_stay_as_they_are_written(file: str, text: str, names: tuple[str, ...]) -> None:
    assert names_in(text.encode(), Path(file)) == names


@pytest.mark.parametrize("text", ["{.inf: a}", "{cat: dog}", "&a [*a]", "["])
def test_what_has_no_names_is_a_sentence(text: str) -> None:
    with pytest.raises(ModelError, match="has no class names in a usual form"):
        names_in(text.encode(), Path("l.yaml"))
