import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest

from meshlab.errors import BenchError, ParseError
from meshlab.frames.schema import empty_results
from meshlab.mesh.mesh import DeviceMesh
from meshlab.report.report import Report, read_report
from meshlab.topology.model.presets import preset

VOID = {"meta", "link", "br", "hr", "img", "input"}
NASTY = "</script><script>alert(1)</script>|<!-- & \"'"


class Page(HTMLParser):
    """Reads a page strictly: every tag that opens must close in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def new_run(make_results, **columns):
    return SimpleNamespace(
        results=make_results(exponents=range(10, 14), **columns),
        mesh=DeviceMesh("dp=2, tp=2"),
        plan="4 collectives × 2 axes × 15 sizes",
        state="done",
        samples=pd.DataFrame({"is_warmup": pd.array([True, False, False], dtype="boolean")}),
        environment={"software": {"python": "3.11.7", "mpich": "4.3.0"}, "clock": "TSC"},
        log=[f"line {number}" for number in range(500)],
    )


@pytest.fixture
def run(make_results):
    return new_run(make_results)


@pytest.fixture(scope="module")
def html(make_results):
    return Report(new_run(make_results), cluster=preset("dgx-h200")).html()


@pytest.fixture
def small(make_results):
    return Report(make_results(exponents=[10], axes=["tp"], collectives=["all_reduce"]))


def test_the_order_is_verdict_pictures_tables_method_environment(html):
    order = [
        "All 64 rows are right.",
        "Read with care",
        ">Groups<",
        ">Bandwidth and latency<",
        ">Results<",
        ">Method<",
    ]
    places = [html.index(text) for text in [*order, ">Environment<", ">Log<"]]
    assert places == sorted(places)


def test_the_page_is_well_formed_and_tables_and_pictures_have_names(html):
    page = Page(html)
    assert {attributes["scope"] for attributes in page.all("th")} == {"col", "row"}
    assert len(page.all("h1")) == 1
    pictures = page.all("svg")
    assert len(pictures) == 2 + 2 + 2 * 2  # groups, groups on the machine, two curves for each axis
    assert all(picture["role"] == "img" and len(picture["aria-label"]) > 20 for picture in pictures)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {attributes["aria-labelledby"] for _, attributes in page.tags if "aria-labelledby" in attributes}
    assert named <= set(ids)


def test_nothing_is_loaded_from_elsewhere(html):
    page = Page(html)
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert [attributes["type"] for attributes in page.all("script")] == ["application/json"]
    assert "default-src 'none'" in str(page.all("meta"))


def test_the_run_tells_of_itself(html):
    text = " ".join(Page(html).texts)
    for told in (
        "4 collectives × 2 axes × 15 sizes",
        "3.11.7",
        "TSC",
        "line 499",
        "3, of which 1 are warm-up",
        "8 × H200",
        "tp stays inside NVLink",
    ):
        assert told in text
    assert "line 299" not in text
    assert "Only the last 200 lines are shown; 300 came before." in text


def test_a_mesh_given_wins_over_the_runs_own(run):
    assert "DeviceMesh('tp=4')" in Report(run, mesh=DeviceMesh("tp=4")).markdown()


def test_cpu_numbers_are_called_so_in_the_head_and_in_every_curve(html):
    assert '<p class="where">4 ranks · MPI on this CPU</p>' in html
    assert len(re.findall(r">[^<]*MPI on this CPU · pipelined</text>", html)) == 4


def test_a_plain_frame_is_enough(small):
    html = small.html()
    assert ">Groups<" not in html
    assert "<h1>Collectives</h1>" in html


def test_a_report_of_nothing_says_so():
    assert "Nothing was measured." in Page(Report(empty_results()).html()).texts


def test_a_number_never_parts_from_its_unit(html):
    assert "\N{THIN SPACE}" not in html


def test_a_report_does_not_change_when_the_run_goes_on(run):
    report = Report(run)
    before = report.markdown()
    run.results.loc[0, "n_wrong"] = 99
    run.log.append("later")
    assert report.markdown() == before


def test_what_comes_from_outside_is_escaped_everywhere(run, make_results):
    results = make_results(exponents=[10], stop_reason=NASTY, where=NASTY, status="failed")
    for column in ("collective", "dtype", "op", "mode", "axis", "group", "source", "run_id", "mesh_fingerprint"):
        results[column] = NASTY
    run.results, run.state, run.plan, run.log = results, NASTY, NASTY, [NASTY]
    run.environment = {NASTY: {NASTY: NASTY}, f"{NASTY}2": NASTY}
    page = Page(Report(run, title=NASTY).html())
    assert len(page.all("script")) == 1
    assert NASTY in page.texts
    assert "<script>" not in Report(run, title=NASTY)._repr_html_()
    assert "<script>" not in Report(run, title=NASTY).markdown()


@pytest.mark.parametrize("change", [{}, {"stop_reason": NASTY, "group": "�  é"}])
def test_a_report_can_be_read_back_without_loss(make_results, tmp_path, change):
    results = make_results(exponents=range(10, 14), axes=["tp"], **change)
    results.loc[5, ["time_us", "n_wrong", "launch"]] = None
    results.loc[6, "time_us"] = 1 / 3
    path = Report(results).save(tmp_path / "report.html")
    back = read_report(path)
    pd.testing.assert_frame_equal(back, Report(results).results)
    assert back.attrs == {"where": "4 ranks · MPI on this CPU"}


def test_files_without_results_are_refused(tmp_path):
    path = tmp_path / "other.html"
    path.write_text("<html></html>")
    with pytest.raises(ParseError, match=r"other\.html: no results of meshlab"):
        read_report(path)
    path.write_text('<script type="application/json" id="meshlab-results">{"rows": 1}</script>')
    with pytest.raises(ParseError, match="damaged"):
        read_report(path)


def test_saving_leaves_the_file_and_nothing_else(small, tmp_path):
    report = small
    assert report.save(tmp_path / "a.html") == tmp_path / "a.html"
    report.save(str(tmp_path / "a.md"))
    report.save(tmp_path / "a.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.md"]


def test_other_suffixes_are_refused_before_anything_is_written(small, tmp_path):
    with pytest.raises(BenchError, match=r"'a\.pdf' does not say how"):
        small.save(tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(small, tmp_path):
    with pytest.raises(BenchError, match=r"cannot write '.*a\.html'"):
        small.save(tmp_path / "nowhere" / "a.html")
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(BenchError, match=r"cannot write '.*taken\.html'"):
        small.save(tmp_path / "taken.html")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]


def test_something_else_is_refused():
    with pytest.raises(BenchError, match="needs a run or a results frame, not int"):
        Report(3)
    with pytest.raises(BenchError, match="unknown columns speed"):
        Report(pd.DataFrame({"speed": [1]}))


def test_the_repr_is_short_and_the_html_repr_shows_verdict_and_curves(run):
    report = Report(run)
    assert repr(report) == "<Report 'Collectives on dp=2, tp=2': 64 rows>"
    assert report._repr_html_().count("<svg") == 2
    assert "All 64 rows are right." in report._repr_html_()


def test_markdown_has_the_same_order_and_whole_tables(run):
    markdown = Report(run).markdown()
    headings = [line for line in markdown.splitlines() if line.startswith(("# ", "## "))]
    assert headings == ["# Collectives on dp=2, tp=2", "## Groups", "## Results", "## Method", "## Environment"]
    assert "**All 64 rows are right.**" in markdown
    blocks = re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE)
    assert len(blocks) == 1 + 8 + 2
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_markdown_with_pictures_names_files_that_are_there(run, tmp_path):
    path = Report(run, cluster=preset("dgx-h100")).save(tmp_path / "night ly.md", pictures=True)
    text = path.read_text()
    named = re.findall(r"^!\[(.+)\]\(<(.+)>\)$", text, re.MULTILINE)
    assert {name for _, name in named} == {file.name for file in tmp_path.glob("*.png")}
    assert "night ly-bandwidth-tp.png" in {name for _, name in named}
    assert any("Bus bandwidth over message size; highest: " in words for words, _ in named)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for _, name in named)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Groups", "## Machine", "## Curves", "## Results", "## Method", "## Environment"]


def test_markdown_cells_cannot_break_their_table(run):
    run.environment = {"host": {"a|b\nc": "x | y\r\n| z"}}
    assert "| a\\|b c | x \\| y \\| z |" in Report(run).markdown()


def test_an_empty_section_is_left_out(run):
    run.environment["Settings"] = {}
    report = Report(run)
    assert "Settings" not in report.html()
    assert "Settings" not in report.markdown()
