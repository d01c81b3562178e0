import base64
import gzip
import hashlib
import platform
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from meshlab.base._errors import BenchError, ParseError
from meshlab.cli._report import this_host
from meshlab.frames._schema import SAMPLES, conform, empty_results
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.report._report import Report
from meshlab.runs._rundata import RunData
from meshlab.topology.model._presets import preset

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


def new_run(results, **changes):
    values = {
        "plan": Plan(["all_reduce", "broadcast"], ["tp", "dp"], sizes="1K:8K"),
        "mesh": DeviceMesh("dp=2, tp=2"),
        "run_id": "r1",
        "source": "mpi",
        "where": "4 ranks · MPI on this CPU",
        "state": "done",
        "results": results,
        "samples": conform(pd.DataFrame({"rank": [0, 1, 2], "is_warmup": [True, False, False]}), SAMPLES),
        "environment": {"software": {"python": "3.11.7", "mpich": "4.3.0"}, "clock": {"source": "TSC"}},
        "log": [f"line {number}" for number in range(500)],
    }
    values |= changes
    return RunData(values.pop("plan"), values.pop("mesh"), **values)


@pytest.fixture
def run(make_results):
    return new_run(make_results(exponents=range(10, 14)))


@pytest.fixture
def small_run(make_results):
    """A run with one curve, for tests that draw several reports."""
    return new_run(make_results(exponents=[10, 11], axes=["tp"], collectives=["all_reduce"]))


@pytest.fixture(scope="module")
def html(make_results):
    return Report(new_run(make_results(exponents=range(10, 14))), cluster=preset("dgx-h200")).html()


@pytest.fixture
def small(make_results):
    return Report(make_results(exponents=[10], axes=["tp"], collectives=["all_reduce"]))


def test_the_order_is_verdict_pictures_tables_method_environment(html):
    order = [
        "All 64 results are correct.",
        ">fast enough<",
        ">unusual<",
        ">Caveats<",
        ">Machine<",
        ">Bandwidth and latency<",
        ">Results<",
        ">Method<",
    ]
    places = [html.index(text) for text in [*order, ">Environment<", ">Log<"]]
    assert places == sorted(places)


def test_the_page_is_well_formed_and_tables_and_pictures_have_names(html):
    page = Page(html)
    assert {attributes["scope"] for attributes in page.all("th")} == {"col", "colgroup", "row"}
    assert len(page.all("h1")) == 1
    pictures = page.all("svg")
    assert len(pictures) == 2 + 2 * 2  # the groups of each axis on the machine, and two curves of each axis
    assert all(picture["role"] == "img" and len(picture["aria-label"]) > 20 for picture in pictures)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(attributes.get("aria-label") or attributes["class"] == "facts" for attributes in page.all("table"))


def test_nothing_is_loaded_from_elsewhere(html):
    page = Page(html)
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    types = [attributes.get("type") for attributes in page.all("script")]
    assert types == ["application/gzip", "application/gzip", None]
    (policy,) = (one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    script = html.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_page_describes_the_run(html):
    text = " ".join(Page(html).texts)
    for fact in (
        "all_reduce, broadcast along tp, dp",
        "3.11.7",
        "TSC",
        "line 499",
        "3, of which 1 are warm-up",
        "8 × H200",
        "tp stays inside NVLink",
        "NV18 stands for 18 NVLinks",
    ):
        assert fact in text
    assert "line 299" not in text
    assert "Only the last 200 of 500 lines are shown." in text


def test_a_mesh_argument_replaces_the_mesh_of_the_run(run):
    assert "DeviceMesh('tp=4')" in Report(run, mesh=DeviceMesh("tp=4")).markdown()


def test_numbers_from_a_cpu_are_labelled_in_the_head_and_in_every_curve(html):
    assert '<p class="where">4 ranks · MPI on this CPU</p>' in html
    assert len(re.findall(r">[^<]*MPI on this CPU · pipelined</text>", html)) == 4


def test_a_plain_frame_is_enough(small):
    html = small.html()
    assert ">Groups<" not in html
    assert "<h1>Collectives</h1>" in html


def test_an_empty_report_states_that_nothing_was_measured():
    report = Report(empty_results())
    assert "Nothing was measured, so this report is empty." in Page(report.html()).texts
    assert not report.is_passed


def test_there_is_no_line_break_between_a_number_and_its_unit(html):
    assert "\N{THIN SPACE}" not in html


def test_a_report_does_not_change_when_the_run_continues(small_run):
    run = small_run
    report = Report(run)
    before = report.markdown(), report.html()
    run.add([dict(run.rows()[0], n_wrong=99, status="wrong")], [])
    run.note("later")
    run.environment["later"] = {"later": "later"}
    run.state = "failed"
    assert (report.markdown(), report.html()) == before


def test_strings_from_outside_are_escaped_everywhere(make_results):
    results = make_results(exponents=[10], stop_reason=NASTY, where=NASTY, status="failed")
    columns = ("collective", "dtype", "op", "mode", "axis", "group", "concurrent_axis", "concurrent_collective")
    for column in (*columns, "source", "run_id", "mesh_fingerprint"):
        results[column] = NASTY

    def function(comm):
        return None

    function.__name__ = NASTY
    run = new_run(
        results, plan=Plan(function, "tp"), state=NASTY, log=[NASTY], environment={NASTY: {NASTY: NASTY}, "note": {}}
    )
    page = Page(Report(run, title=NASTY).html())
    assert len(page.all("script")) == 3
    assert NASTY in page.texts
    assert "<script>" not in Report(run, title=NASTY)._repr_html_()
    assert "<script>" not in Report(run, title=NASTY).markdown()


@pytest.mark.parametrize("change", [{}, {"stop_reason": NASTY, "group": "�  é"}])
def test_a_report_can_be_read_back_without_loss(make_results, tmp_path, change):
    results = make_results(exponents=range(10, 14), axes=["tp"], **change)
    results.loc[5, ["time_us", "n_wrong", "launch"]] = None
    results.loc[6, "time_us"] = 1 / 3
    path = Report(results).save(tmp_path / "report.html")
    back = Report.read(path).results
    pd.testing.assert_frame_equal(back, Report(results).results)
    assert back.attrs == {"where": "4 ranks · MPI on this CPU"}


def test_files_without_results_are_rejected(tmp_path):
    path = tmp_path / "other.html"
    path.write_text("<html></html>")
    with pytest.raises(ParseError, match=r"other\.html: the file contains no meshlab results; pass an HTML file"):
        Report.read(path)
    for content, message in ((b'{"rows": 1}', "columns is missing"), (b"[", "."), (b"\xff", "utf-8")):
        packed = base64.b64encode(gzip.compress(content)).decode()
        path.write_text(f'<script type="application/gzip" id="meshlab-results">{packed}</script>')
        with pytest.raises(ParseError, match=message):
            Report.read(path)
        path.write_text(f'<script type="application/gzip" id="meshlab-results">{packed[:12]}</script>')
        with pytest.raises(ParseError, match=r"the results are (damaged|incomplete)"):
            Report.read(path)
    with pytest.raises(BenchError, match=r"cannot read .*nowhere\.html: No such file.*; pass an HTML file"):
        Report.read(tmp_path / "nowhere.html")


def test_saving_writes_only_the_file(small, tmp_path):
    report = small
    assert report.save(tmp_path / "a.html") == tmp_path / "a.html"
    report.save(str(tmp_path / "a.md"))
    report.save(tmp_path / "a.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.md"]


def test_other_suffixes_are_rejected_before_anything_is_written(small, tmp_path):
    with pytest.raises(
        BenchError, match=r"unknown suffix '\.htm' of 'a\.htm' \(did you mean '\.html'\?\); choose one of"
    ):
        small.save(tmp_path / "a.htm")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(small, tmp_path):
    with pytest.raises(BenchError, match=r"cannot write '.*a\.html'"):
        small.save(tmp_path / "nowhere" / "a.html")
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(BenchError, match=r"cannot write '.*taken\.html'"):
        small.save(tmp_path / "taken.html")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]


def test_other_values_are_rejected(make_samples):
    with pytest.raises(BenchError, match="int has no results; pass a run or its folder"):
        Report(3)
    with pytest.raises(BenchError, match="this is a samples frame, but results are needed"):
        Report(make_samples(times=np.ones((2, 3)))[0])
    with pytest.raises(BenchError, match="expected a results frame, but this one has no column collective"):
        Report(pd.DataFrame({"speed": [1]}))
    with pytest.raises(BenchError, match=r"redact=True needs a run, not DataFrame, .*; pass a Run or its folder"):
        Report(empty_results(), redact=True)


def test_a_run_its_folder_its_frames_and_objects_with_results_are_accepted(small_run, tmp_path):
    run = small_run
    run.save(tmp_path / "run")
    assert Report(tmp_path / "run").html() == Report(str(tmp_path / "run")).html() == Report(run).html()
    frames = (run.results, run.samples)
    assert "3, of which 1 are warm-up" in Report(frames).markdown()
    document = Report(run.results).markdown()
    assert Report(SimpleNamespace(results=run.results)).markdown() == document
    assert Report(tmp_path / "run" / "results.parquet").markdown() == document
    assert "tp=2" not in document


def test_a_redacted_report_of_a_folder_has_no_host_names(make_results, tmp_path):
    results = make_results(exponents=[10], axes=["tp"], collectives=["all_reduce"])
    run = new_run(results, hosts=["node17"], log=["node17 started"])
    run.save(tmp_path / "run")
    assert "node17" in Report(tmp_path / "run").html()
    assert "node17" not in Report(tmp_path / "run", redact=True).html()


def test_the_repr_is_short_and_the_html_repr_shows_verdict_and_curves(run):
    report = Report(run)
    assert repr(report) == "<Report 'Collectives on dp=2, tp=2': 64 results; next: .outcome, .save('report.html')>"
    assert report._repr_html_().count("<svg") == 2
    assert "All 64 results are correct." in report._repr_html_()


def test_markdown_has_the_same_order_and_complete_tables(run):
    markdown = Report(run).markdown()
    headings = [line for line in markdown.splitlines() if line.startswith(("# ", "## "))]
    sections = ["Caveats", "Groups", "Results", "Method", "Environment"]
    assert headings == ["# Collectives on dp=2, tp=2", *(f"## {section}" for section in sections)]
    assert "**✓ All 64 results are correct. The expected speed is unknown, because " in markdown
    assert "\n- **next step** To judge GPUs, measure on GPUs. " in markdown
    blocks = re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE)
    assert len(blocks) == 1 + 2 + 2  # the groups, a table per axis, and two sections of the environment
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_markdown_with_pictures_links_files_that_exist(run, tmp_path):
    path = Report(run, cluster=preset("dgx-h100")).save(tmp_path / "night ly.md", pictures=True)
    text = path.read_text()
    named = re.findall(r"^!\[(.+)\]\(<(.+)>\)$", text, re.MULTILINE)
    assert {name for _, name in named} == {file.name for file in tmp_path.glob("*.png")}
    assert "night ly-bandwidth-tp.png" in {name for _, name in named}
    assert any("Bus bandwidth against message size. Highest: " in text for text, _ in named)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for _, name in named)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    sections = ["Caveats", "Machine", "Groups", "Bandwidth and latency", "Results", "Method", "Environment"]
    assert headings == [f"## {section}" for section in sections]


def test_markdown_cells_cannot_break_their_table(run):
    run.environment = {"host": {"a|b\nc": "x | y\r\n| z"}}
    assert "| a\\|b c | x \\| y \\| z |" in Report(run).markdown()


def test_an_empty_section_is_omitted(small_run):
    small_run.environment["Settings"] = {}
    report = Report(small_run)
    assert "Settings" not in report.html()
    assert "Settings" not in report.markdown()


def test_a_machine_too_small_for_the_mesh_is_why_nothing_is_known(make_results):
    """Ranks that share GPUs have no place of their own, and passing the cluster again would not help."""
    report = Report(make_results(source="nccl"), mesh="dp=8, tp=2", cluster="dgx-h200")
    (speed,) = [answer for answer in report.answers if answer.question == "fast enough"]
    assert speed.sentences[0] == (
        "The expected speed is unknown, because the mesh has 16 ranks, but the cluster has only 8 devices."
    )


def test_report_of_pairs_says_how_to_measure_them_again(small_run):
    # `send` alone is not a plan, because it needs pairs, so the report could not be written.
    plan = Plan(["send", "send_recv"], "world", sizes="64K", grouping="pairs")
    text = Report(new_run(small_run.results, plan=plan)).markdown()
    command = "meshlab bench send send_recv --mesh 'dp=2, tp=2' --axis world --sizes 64K --grouping pairs --backend mpi"
    assert command in text


def test_this_host_is_the_machine_of_a_run_only_with_the_same_gpus(make_results, monkeypatch):
    """Virtual machines often have the same name as others."""
    here = preset("dgx-h200")
    monkeypatch.setattr("meshlab.topology.readers._hosts.probe", lambda: here)
    results = make_results(source="nccl")

    def found(machine):
        environment = {"Host": {"machine": machine}}
        run = new_run(results, source="nccl", hosts=[platform.node()], environment=environment)
        return this_host([run])

    assert found(here.summary) is here
    assert found("1 node, 2 × NVIDIA H200, NVLink domains of 2") is None
    assert this_host([new_run(results, source="nccl", hosts=["other"])]) is None
    assert this_host([new_run(results, hosts=[platform.node()])]) is None  # MPI
