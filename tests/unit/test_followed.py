"""How the commands of a page are found, and their answers compared."""

import pytest

from tests.followed import KNOWN, Failed, Step, commands_of, compare, steps

PAGE = """Text.

```bash
# a comment
make serve   # serves
curl -d '{"a":
  1}' \\
  127.0.0.1:8000
```

```json
{"label": "cat", "trace_id": "0af7"}
```

```python
print(1)
```
"""


def test_each_command_is_found_with_all_of_its_lines_and_the_answer_after_the_last_one():
    serve, curl = steps(PAGE)
    assert serve == ("make serve   # serves", None)
    assert curl.command == "curl -d '{\"a\":\n  1}' \\\n  127.0.0.1:8000"
    assert curl.answer == '{"label": "cat", "trace_id": "0af7"}\n'


def test_a_loop_and_a_pipe_are_one_command():
    loop = "for image in *; do\n  curl $image\ndone | sort"
    assert list(commands_of(f"{loop}\necho a |\n  sort\n")) == [loop, "echo a |\n  sort"]


@pytest.mark.parametrize(
    ("got", "fault"),
    [
        ({"label": "cat", "probability": 0.5, "top": [{"label": "cat"}]}, None),
        ({"label": "cat", "probability": 0.9, "top": [{"label": "cat"}], "more": 1}, None),
        ({"label": "dog", "probability": 0.9, "top": [{"label": "cat"}]}, "'cat' on the page, 'dog' in the answer"),
        ({"label": "cat", "top": [{"label": "cat"}]}, "lacks probability"),
        ({"label": "cat", "probability": 0.9, "top": []}, "1 elements on the page, 0 in the answer"),
    ],
)
def test_an_answer_has_the_pages_keys_and_values(got, fault):
    printed = {"label": "cat", "probability": 0.9, "top": [{"label": "cat"}]}
    if fault is None:
        compare(printed, got)
        return
    with pytest.raises(Failed, match=fault):
        compare(printed, got)


def test_every_reason_belongs_to_a_command_of_a_page():
    from tests.conftest import ROOT

    every = [step for page in KNOWN["pages"] for step in steps((ROOT / page).read_text())]
    found = [step.command for step in every if isinstance(step, Step)]
    unused = [start for start in KNOWN["skipped"] if not any(command.startswith(start) for command in found)]
    assert unused == []
