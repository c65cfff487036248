import re

import pytest

from lab import docs
from scripts.errors import ScriptError
from tests.conftest import ROOT


def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path):
    site = docs.build(tmp_path)
    assert "ensemble-serving" in (site / "index.html").read_text()
    assert (site / "docs" / "api" / "index.html").is_file()
    for name in ("serve_config.yaml", "llms.txt"):
        assert (site / name).read_bytes() == (ROOT / name).read_bytes()
    # It loads nothing from another site.
    page = (site / "docs" / "configuration" / "index.html").read_text()
    assert 'src="http' not in page
    assert 'rel="stylesheet" href="http' not in page
    # The runbook of each alert, by the address that the chart writes.
    chart = (ROOT / "configs" / "kubernetes" / "ensemble" / "templates" / "monitoring.yaml").read_text()
    [folder] = re.findall(r'printf "%s/([\w/]+)/#%s"', chart)
    runbook = (site / folder / "index.html").read_text()
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "configs" / "alerts.yaml").read_text())
    assert alerts
    assert [alert for alert in alerts if f'id="{alert.lower()}"' not in runbook] == []


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (["a.md"], r"^b\.md: in no section of zensical\.toml"),
        (["a.md", "b.md", "c.md"], r"^zensical\.toml lists c\.md, which is not there"),
        (["a.md", "b.md", "a.md"], r"^zensical\.toml lists a\.md twice"),
    ],
)
def test_a_page_is_in_one_section(sections, message):
    with pytest.raises(ScriptError, match=message):
        docs.check_sections({"a.md", "b.md"}, sections)


def test_a_link_that_leads_nowhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("[there](page.md#top) and [here](https://example.com)\n```\n[not](a-link.md)\n```\n")
    assert list(docs.linked(page)) == [page]
    page.write_text("[gone](gone.md)")
    with pytest.raises(ScriptError, match=r"^page\.md: gone\.md is no file"):
        list(docs.linked(page))


def test_links_of_a_linked_page_are_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path)
    first, second, code = (tmp_path / name for name in ("first.md", "second.md", "code.py"))
    first.write_text("[second](second.md)")
    second.write_text("[first](first.md) and [code](code.py)")
    code.touch()
    assert docs.with_linked([first]) == {first, second, code}


WHOLE = """```yaml title="my.yaml"
applications:
  - name: ensemble
    import_path: graph.app:build
    args: {members: [{name: one}%s]}
```
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("text\n\n| a | b |\n|---|---|\n| 1 | `x \\| y` |\n", ""),
        ("```yaml\n# nothing but a comment\n```\n```yaml\n- a\n- b\n```\n", ""),
        (WHOLE % "", ""),
        ("| a | b |\n\n|---|---|\n| 1 | 2 |\n", "line 1: a table needs a line"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n| 1 | 2 | 3 |\n", "line 1: the rows of the table have different numbers"),
        ("| a | b |\n|---|---|\n| 1 | `x | y` |\n", "line 1: the rows of the table have different numbers"),
        ("text\n\n- list\n  ```yaml\n  a: 1\n    b: 2\n  ```\n", "line 4: the YAML can't be used"),
        (WHOLE % ", {nam: two}", "line 1: the YAML can't be used: .*nam"),
        (WHOLE.replace("name: ensemble", "nmae: ensemble") % "", "line 1: the YAML can't be used: .*nmae"),
        ("```yaml\nargs:\n  access: {keys: /etc/ensemble/keys, operators: [deploy]}\n```\n", ""),
        ("```yaml\n- name: Ingress\n  user_config: {canaries: {resnet: {share: 0.2}}}\n```\n", "line 1: .*canaries"),
        ("```yaml\nensemble: {qourum: 1}\n```\n", "line 1: the YAML can't be used: .*qourum"),
        ("```yaml\ncache: {max_byts: 1}\n```\n", "line 1: the YAML can't be used: .*max_byts"),
        ("```yaml\nfeedback: {max_request: 1}\n```\n", "line 1: the YAML can't be used: .*max_request"),
        ("```yaml\ncascade: {order: [resnet, densenet], exit_at: [0.9, 0.8]}\n```\n", "line 1: .*exit_at"),
        ("```yaml\nkind: Pod\nmembers: 1\n```\n", ""),
    ],
)
def test_tables_are_drawn_and_yaml_can_be_used(tmp_path, monkeypatch, text, told):
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    if not told:
        docs.check_blocks(page)
        return
    with pytest.raises(ScriptError, match=rf"^page\.md, {told}"):
        docs.check_blocks(page)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("page.md", "The rate is that of\none process, and `that of` is code.\n", '"that of"'),
        ("page.md", "| what it is |\n|---|\n| a cell |\n", '"what it is"'),
        ("page.md", f"- {'word ' * 36}\n- [{('word ' * 30).strip()}](that-of.md)\n", "36 words"),
        ("page.md", f"```text\n{'word ' * 36}\n```\n", None),
        (
            "reference/page.md",
            "```text\nusage: x [--a]\n\noptions:\n  --a  those of\n       a model\n```\n",
            '"those of"',
        ),
        ("code.py", 'def f():\n    """Return it.\n\n    Args:\n        a: that of b.\n    """\n', '"that of"'),
        ("code.py", 'raise Error(f"name {what} is bad; take the one that works")\n', '"the one that"'),
        ("code.py", '# What is here is no text.\ntext = "those of"\n', None),
        ("page.md", "Redis keeps the state of the server alone.\n", '" alone"'),
        ("page.md", "The server alone answers, and `it alone.` is code.\n", None),
        ("page.md", "Two batches answer 1.5 times as many requests.\n", '"times as many"'),
        ("page.md", "The limit is so many bytes.\n", '"so many"'),
        ("page.md", "| a package of your own |\n|---|\n| a cell |\n", '"of your own"'),
        ("page.md", "One process answers 500 requests/s (2026-11-28).\n", '"2026-11-28"'),
        ("page.md", "We measured it in November 2026.\n", '"November 2026"'),
        ("page.md", "Two cores of an AMD EPYC answer 500 requests/s.\n", '"EPYC"'),
        ("benchmarks/page.md", "Two cores of an AMD EPYC, 2026-11-28.\n", None),
        ("benchmarks/page.md", "It answers 1.5 times the requests of the other.\n", '"times the requests"'),
        ("page.md", f"{'word ' * 31}\n", "31 words"),
        ("code.py", f'"""{"word " * 31}"""\n', None),
    ],
)
def test_unclear_sentences_are_named(tmp_path, monkeypatch, name, text, fault):
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    if fault is None:
        docs.check_sentences([file])
        return
    with pytest.raises(ScriptError, match=rf"\n{name}: {fault}") as caught:
        docs.check_sentences([file])
    assert str(caught.value).count("\n") == 1
