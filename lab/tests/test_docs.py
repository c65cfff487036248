import pytest

from lab import docs
from scripts.errors import ScriptError
from tests.conftest import ROOT


def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path):
    site = docs.build(tmp_path)
    assert "ensemble-serving" in (site / "index.html").read_text()
    assert (site / "docs" / "api" / "index.html").is_file()
    assert (site / "serve_config.yaml").read_bytes() == (ROOT / "serve_config.yaml").read_bytes()


def test_the_site_asks_no_other_site_for_anything(tmp_path):
    page = (docs.build(tmp_path) / "docs" / "configuration" / "index.html").read_text()
    assert 'src="http' not in page
    assert 'rel="stylesheet" href="http' not in page


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
