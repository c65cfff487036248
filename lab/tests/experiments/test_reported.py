"""Every reported figure stands in its document, near its subject."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from lab import reported
from lab.experiments.experiment import FOLDER
from lab.reported import DOCUMENTS, REPORTED

NEAR, TABLE, HEAD = 250, 900, 600
# Where one sentence ends and the next begins.
SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z(“])")
# So many words in turn are a copy; and the words that a meaning has at least and at most.
COPIED, FEWEST, MOST = 7, 6, 40
TABLED = [each for each in REPORTED if each.place.startswith("Table")]


@pytest.fixture(scope="module")
def raw():
    if (folder := os.environ.get("ENSEMBLE_DOCUMENTS")) is None:
        pytest.skip("set ENSEMBLE_DOCUMENTS to the folder of the documents")
    return {each: (Path(folder) / each.file).read_text() for each in DOCUMENTS.values()}


@pytest.fixture(scope="module")
def texts(raw):
    return {document: plain(text) for document, text in raw.items()}


def plain(text):
    """Leave out what only formats."""
    return re.sub(r"\s+", " ", re.sub(r"\*\*|\(R\)|[*®™](?=[ ,.])|<[^>]+>", "", text))


def written(each):
    digits = re.escape(each.written) if each.written else re.escape(f"{each.value:g}")
    return re.compile(rf"(?<![\d]){digits}(?!\d|\.\d)")


def test_a_document_has_this_title_and_these_authors(texts):
    for document, text in texts.items():
        assert document.title in text[:HEAD]
        # Two texts name their authors or company in the text alone.
        assert [name for name in document.authors if name not in text] == []
        assert document.date in text[:HEAD]


def stands_near_its_subject(text, each):
    found = [match.start() for match in written(each).finditer(text)]
    near = [match.start() for match in re.finditer(re.escape(each.near or each.model), text, re.IGNORECASE)]
    named = all(term in text for term in (each.place, *each.model.split(" and "), each.hardware))
    return named and any(abs(one - other) < NEAR for one in found for other in near)


def test_a_figure_stands_in_its_document_near_its_subject(texts):
    assert [each for each in REPORTED if not stands_near_its_subject(texts[each.document], each)] == []


def stands_in_its_row(text, each):
    table = [other for other in TABLED if other.place == each.place]
    begin = text.index(f"{each.place}. ")
    labels = {other.near or other.model for other in table}
    rows = [
        max(labels, key=lambda label: text.rfind(label, begin, match.start()))
        for match in written(each).finditer(text, begin, begin + TABLE)
    ]
    return (each.near or each.model) in rows


def test_a_figure_of_a_table_stands_in_its_row(texts):
    assert [each for each in TABLED if not stands_in_its_row(texts[each.document], each)] == []


def paragraphs(text, place):
    """List the lines of a text, from the line that begins with the place."""
    lines = [line for line in text.splitlines() if line.strip()]
    [first, *_] = (n for n, line in enumerate(lines) if re.sub(r"^[\s#•\d.:]*", "", line).startswith(place))
    return lines[first:]


def sentence(text, each):
    """Find the sentence that `at` names."""
    paragraph, number = map(int, each.at.split("."))
    return SENTENCE.split(plain(paragraphs(text, each.place)[paragraph]))[number - 1]


def test_the_figure_stands_in_the_sentence_at_its_place(raw):
    elsewhere = [
        (each.subject, found)
        for each in REPORTED
        if not re.search(re.escape(each.written or f"{each.value:g}"), found := sentence(raw[each.document], each))
    ]
    assert elsewhere == []


def words(text):
    return re.findall(r"[\w.%]+", text.lower())


def runs(text):
    listed = words(text)
    return {tuple(listed[first : first + COPIED]) for first in range(len(listed) - COPIED + 1)}


def test_every_figure_says_what_it_means_in_words_of_its_own(raw):
    theirs = {document: runs(plain(text)) for document, text in raw.items()}
    assert [each.subject for each in REPORTED if not FEWEST <= len(words(each.says)) <= MOST] == []
    assert {each.subject: found for each in REPORTED if (found := runs(each.says) & theirs[each.document])} == {}


def test_a_group_s_figures_say_different_things():
    assert [says for says, count in Counter(each.says for each in REPORTED).items() if count > 1] == []


def test_a_figure_is_found_by_its_subject_and_measured_or_has_a_reason():
    twice = Counter((each.experiment, each.subject) for each in REPORTED)
    assert [key for key, count in twice.items() if count > 1] == []
    assert [each for each in REPORTED if (each.experiment is None) == (each.why_not is None)] == []


def test_the_index_names_what_is_not_measured_and_why():
    index = (FOLDER / "index.md").read_text()
    lines = {line.split(" | ")[1]: line for line in index.splitlines() if line.startswith("| ") and " | " in line}
    missing = [each.subject for each in REPORTED if each.why_not and each.subject not in lines]
    assert missing == []
    reasons = ("quantization-aware training", "compilation by TVM", "OpenMP against TBB", "watts", "ideal use of a GPU")
    assert [each for each in reasons if len(lines[each].split(" | ")) != 3] == []


STEPS = {
    # By the text: three times, 1.25 times, and seven times.
    "threads matched to cores, by four workers": ("the base: one worker with the default threads", 3.0),
    "threads matched, pinned to physical cores, by IPEX": ("threads matched to cores, by four workers", 1.25),
    "a purely neural model, after all steps": ("a purely neural model, before all steps", 7.0),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_on_cpus_stands_beside_the_step_before_it(step):
    rate, (before, times) = {each.subject: each.value for each in reported.of("threads")}, STEPS[step]
    assert rate[step] / rate[before] == pytest.approx(times, abs=0.01)


def test_the_pipeline_s_figures_name_the_pipeline_s_models():
    pipeline = [each for each in REPORTED if each.place in {"Figure 6", "Figure 7"}]
    assert {each.model for each in pipeline} == {"ResNet v1.50 and DenseNet 169"}


def test_int8_gains_what_each_processor_allows():
    rate = {each.subject: each.value for each in reported.of("precision")}
    without, having = (
        rate[f"int8 {vnni} VNNI, 28 clients"] / rate[f"float32 {vnni} VNNI, 28 clients"] for vnni in ("without", "with")
    )
    assert (without, having) == (pytest.approx(1.7, abs=0.05), pytest.approx(3.7, abs=0.05))


def test_the_reported_traffic_is_that_of_float_images():
    [traffic] = [each for each in reported.of("payloads") if each.unit == "Gb/s"]
    assert traffic.value == pytest.approx(1000 * 224 * 224 * 3 * 4 * 8 / 1e9, abs=0.05)


def test_no_table_of_the_pipeline_is_about_another_document():
    assert {each.document for each in TABLED} == {DOCUMENTS["Intel"]}
