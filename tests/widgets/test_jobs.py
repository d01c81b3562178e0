"""A job in the workbench without a browser: its fields, its step, the search, and the decision between A and B."""

from __future__ import annotations

import re
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._models import MODELS
from meshlab.widgets._exports import export
from meshlab.widgets._jobs import FIELDS, job_code, with_field
from meshlab.widgets._workbench import Workbench
from tests.widgets.test_workbench import do, problem, rerun


@pytest.fixture
def machine() -> ml.Cluster:
    return ml.preset("dgx-h100", nodes=4)


@pytest.fixture
def wb(machine) -> Workbench:
    return Workbench(machine, "dp=4, tp=8", axis="dp", job="llama3-8b")


def search(wb: Workbench) -> list[dict[str, Any]]:
    """A search by hand."""
    wb._handle_custom_msg({"type": "search"}, [])
    return wb._job["search"]["rows"]


def take(wb: Workbench, row: dict[str, Any]) -> None:
    do(wb, "layout", **{name: row[name] for name in ("mesh", "experts", "interleave")})


# -- the job -----------------------------------------------------------------------------------------------------------


def test_a_job_is_chosen_changed_and_undone_by_hand(machine):
    wb = Workbench(machine, "dp=4, tp=8")
    assert (wb.job, wb._job["step"], wb._job["fields"]) == (None, None, [])
    do(wb, "job", name="llama3-70b", where="job")
    assert wb.job == ml.Job.preset("llama3-70b")
    assert wb._job["step"]["fits"] is False
    assert wb._job["step"]["fix"].startswith("set ZeRO stage 3 (")
    do(wb, "job_field", fields=wb._job["step"]["edits"])
    assert wb._job["step"]["fits"] is True
    do(wb, "undo")
    before = wb._job["step"]["memory"]
    do(wb, "job_field", field="recompute", value="full")
    assert wb.job.recompute == "full"
    assert wb._job["step"]["memory"] != before
    do(wb, "job_field", field="global_batch", value="2,048")
    assert wb.job.global_batch == 2048
    do(wb, "undo")
    do(wb, "undo")
    do(wb, "undo")
    assert wb.job is None
    do(wb, "redo")
    assert wb.job == ml.Job.preset("llama3-70b")
    do(wb, "job", name="", where="job")
    assert wb.job is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layers", "0", "layers must be an integer of at least 1, not 0"),
        ("layers", "x", "Layers must be a positive integer, not 'x'"),
        ("recompute", "some", "Recomputation must be one of none, selective, full, not 'some'"),
        ("colour", "1", "unknown field 'colour' of a job"),
    ],
)
def test_wrong_fields_keep_the_job_and_are_explained(wb, field, value, message):
    do(wb, "job_field", field=field, value=value, where=f"job:{field}")
    assert message in problem(wb)["text"]
    assert (problem(wb)["where"], problem(wb)["value"]) == (f"job:{field}", value)
    assert wb.job == ml.Job.preset("llama3-8b")


def test_a_job_from_code_is_checked_and_removed(wb):
    with pytest.raises(MeshError, match="unknown model 'llama3-9b'"):
        wb.job = "llama3-9b"
    with pytest.raises(MeshError, match="job must be a Job or the name of a model, not 3"):
        wb.job = 3
    wb.job = None
    assert wb.step_time is None
    with pytest.raises(MeshError, match="there is no job"):
        wb.search()


def test_published_sizes_are_named(wb):
    notes = {field["name"]: field["note"] for field in wb._job["fields"]}
    assert (notes["layers"], notes["global_batch"], notes["micro_batch"]) == ("published", "chosen by meshlab", "")
    assert wb._job["source"].startswith("Published: 8.03 B parameters. arXiv 2407.21783")
    do(wb, "job_field", field="layers", value="16")
    notes = {field["name"]: field["note"] for field in wb._job["fields"]}
    assert notes["layers"] == "published: 32"
    assert wb.job.name == "custom, from Llama 3 8B"
    do(wb, "job_field", field="layers", value="32")
    assert wb.job.name == "Llama 3 8B"


@pytest.mark.parametrize("model", MODELS)
def test_the_code_of_a_job_creates_it(model):
    job = ml.Job.preset(model)
    for field, value in (("global_batch", "4096"), ("layers", "16"), ("recompute", "full"), ("dtype", "float16")):
        assert field in FIELDS
        job = with_field(job, field, value)
        assert eval(job_code(job), {"ml": ml}) == job
    own = ml.Job(parameters="70B", layers=80, hidden=8192, heads=64, sequence=8192, global_batch=1024)
    assert eval(job_code(own), {"ml": ml}) == own


def test_the_step_follows_the_mesh_and_the_machine(wb):
    times = [wb.step_time.high_s]
    do(wb, "step", axis="tp", by=-1)
    times.append(wb.step_time.high_s)
    do(wb, "fail", part="node1/NIC3")
    times.append(wb.step_time.high_s)
    assert times[1] < times[2] < times[0]
    assert wb._job["step"]["time"] == "12.1 to 19.7\N{THIN SPACE}s per step"
    assert [part["name"] for part in wb._job["step"]["parts"]] == ["compute", "tp", "dp"]
    assert "tp takes" in wb._job["step"]["limit"]
    do(wb, "paste", text="dp=4, model=8")
    assert wb.step_time is None
    assert "a training job has no axis 'model'" in wb._job["step"]["problem"]
    assert "step: a training job has no axis 'model'" in wb.describe()


def test_the_fix_of_a_job_that_cannot_run_is_an_edit(wb):
    wb.job, wb.failed = "llama3-8b", ["node1"]
    assert wb._job["step"]["fix"] == "use Batch, sequences 513"
    assert wb._job["step"]["edits"] == [["global_batch", "513"]]
    do(wb, "job_field", fields=wb._job["step"]["edits"])
    assert wb.step_time is not None
    wb.mesh = "pp=3, dp=1, tp=8"  # several ways out, of which the user chooses one
    assert " or " in wb._job["step"]["fix"]
    assert wb._job["step"]["edits"] == []


# -- the search --------------------------------------------------------------------------------------------------------


def test_a_layout_of_the_search_is_put_on_the_picture(wb):
    rows = search(wb)
    assert [row["mesh"] for row in rows[:2]] == [str(wb.layouts.mesh(i)) for i in range(2)]
    assert not any(row["shown"] for row in rows)
    take(wb, rows[0])
    assert wb.mesh == wb.layouts.mesh(0)
    assert [row["shown"] for row in wb._job["search"]["rows"]] == [True] + [False] * (len(rows) - 1)
    assert "layouts:" in wb.describe()
    do(wb, "undo")
    assert wb.mesh == DeviceMesh("dp=4, tp=8")


def test_layouts_of_another_job_or_machine_are_not_listed(wb):
    search(wb)
    do(wb, "job_field", field="sequence", value="4096")
    assert wb._job["search"] is None
    search(wb)
    do(wb, "fail", part="node0/GPU0")
    assert (wb._job["search"], wb.layouts) == (None, None)
    search(wb)
    assert wb._job["search"]["rows"]
    assert "On 16 of 31 GPUs" in wb._job["search"]["note"]


def test_a_search_without_a_layout_names_the_fix(wb):
    wb.job = ml.Job.preset("llama3-8b", layers=37, sequence=7, global_batch=7)
    assert search(wb) == []
    assert "no layout of 32 ranks can run" in wb._job["search"]["note"]


def test_layouts_over_the_memory_are_listed_as_such(wb):
    wb.job = "llama3-405b"
    rows = search(wb)
    assert rows
    assert all(row["memory"].endswith(", over") for row in rows)
    assert "of which 0 fit the memory" in wb._job["search"]["more"]


def test_layouts_with_experts_and_chunks_are_taken_over(machine):
    wb = Workbench(machine, "dp=4, tp=8", job=ml.Job.preset("mixtral-8x7b", interleave=1))
    row = next(row for row in search(wb) if row["experts"])
    take(wb, row)
    assert wb.experts == row["experts"]
    assert wb.step_time.experts is not None
    again = rerun(wb)
    assert (again.experts, again.step_time.high_s) == (wb.experts, wb.step_time.high_s)
    do(wb, "experts", value="ep=3", where="job:experts")
    assert problem(wb)["where"] == "job:experts"
    do(wb, "layout", mesh="pp=2, dp=4, tp=4", experts="", interleave=2)
    assert (wb.job.interleave, wb.experts) == (2, "")
    do(wb, "job", name="llama3-8b")
    assert wb.experts == ""


# -- A and B -----------------------------------------------------------------------------------------------------------


def test_the_decision_is_a_sentence_with_a_reason(wb):
    assert (wb.decision, wb._decision) == ("", {})
    wb.mesh = "dp=2, cp=2, tp=8"
    wb.pin()
    assert wb.decision == "Not decided, because the step takes the same time in both."
    wb.mesh = "dp=8, tp=4"
    reason = r"tp takes 4\.2\d\u2009s less \(4 ranks instead of 8\)"
    assert re.fullmatch(rf"B takes 5 to 36\u2009% less time than A, because {reason}\.", wb.decision)
    assert wb.comparison.choice == "B"
    labels = [label for label, *_ in wb.comparison.rows]
    exposed = ["tp, exposed", "cp, exposed", "dp, exposed"]
    assert labels == ["Step time", "Memory per GPU", "Computation", *exposed, "Busiest link"]
    wb.swap()
    assert wb.comparison.choice == "A"
    wb.mesh = "tp=8, dp=4"
    assert wb.decision.endswith("times as long as A, because tp leaves NVLink.")
    wb.mesh = "dp=32"
    assert wb.decision == "A, because B does not fit: it needs 101 of 72\N{THIN SPACE}GiB per GPU."
    wb.mesh = "dp=4, model=8"
    assert wb.decision.startswith("Not decided, because B has no step: a training job has no axis 'model'")


def test_a_difference_within_the_own_errors_of_two_layouts_is_not_decided(wb):
    wb.pin()
    wb.mesh = "dp=8, tp=4"  # a step of 12 % less is expected
    assert wb.decision.startswith("Not decided, because the step takes 0.7")
    assert "what computation reaches on one layout and not on another" in wb.decision


def test_small_differences_are_not_decided(wb):
    wb.pin()
    do(wb, "fail", part="node1/NIC3")
    assert wb.decision.startswith("Not decided, because B takes only 0.1 to 0.2")
    assert wb.comparison.choice == "not decided"


def test_jobs_of_different_length_are_compared_per_token(wb):
    wb.pin()
    do(wb, "job_field", field="global_batch", value="1024")
    assert "in B per token" in wb.decision or wb.decision.startswith("Not decided, because")
    do(wb, "job", name="llama3-70b")
    assert "they train different models: Llama 3 8B in A, Llama 3 70B in B" in wb.decision


def test_without_a_job_calls_move_as_many_bytes_in_all_groups(machine):
    wb = Workbench(machine, "dp=4, tp=8", axis="dp")
    wb.pin()
    do(wb, "step", axis="tp", by=-1)  # dp has 4 groups instead of 8, and tp 8 instead of 4
    rows = {label: (a, b) for label, a, b, _ in wb.comparison.rows}
    assert "all_reduce of 128\N{THIN SPACE}MiB" in rows["dp"][0]
    assert "all_reduce of 512\N{THIN SPACE}MiB" in rows["tp"][0]
    assert "all_reduce of 256\N{THIN SPACE}MiB" in rows["dp"][1]
    assert wb.decision.startswith("Not decided, because one call per axis takes")
    changes = {row["axis"]: row["change"] for row in wb._table["rows"]}
    assert re.fullmatch(r"\+1\d %", changes["dp"])
    do(wb, "undo")
    do(wb, "fail", part="node1/NIC3")
    assert wb.decision.startswith("B takes 28 to 3")
    assert wb.decision.endswith("because dp shares NICs or changes rails (in A it stays on its rails).")
    do(wb, "paste", text="pp=2, dp=2, tp=8")
    assert "pp is only in B; with a job, their steps can be compared" in wb.decision


def test_a_candidate_keeps_its_job(wb):
    wb.pin()
    assert wb.pinned == (wb.cluster, wb.mesh, wb.job)
    do(wb, "job_field", field="recompute", value="full")
    assert wb.decision.startswith("B takes ")
    assert "because computation takes" in wb.decision
    again = rerun(wb)
    assert (again.decision, again.pinned, again.code) == (wb.decision, wb.pinned, wb.code)
    wb.swap()
    assert wb.job.recompute == "none"
    wb.pinned = (wb.cluster, "dp=2, tp=16")
    assert len(wb.pinned) == 2
    assert wb.decision.startswith("B takes ")
    with pytest.raises(MeshError, match="pinned must be a cluster and a mesh"):
        wb.pinned = (wb.cluster, "dp=8, tp=4", wb.job, "", "more")


def test_the_picture_of_a_is_sent_beside_that_of_b(wb):
    assert (wb._pinned_view, wb._pinned_scene) == ({}, {})
    do(wb, "fail", part="node1/NIC3")
    wb.pin()
    do(wb, "restore")
    do(wb, "step", axis="tp", by=-1)
    assert [mark["name"] for mark in wb._pinned_view["failed"]] == ["node1/NIC3"]
    assert wb._view["failed"] == []
    assert (wb._pinned_view["axes"], wb._view["axes"]) == ([["dp", 4], ["tp", 8]], [["dp", 8], ["tp", 4]])
    assert wb._pinned_loads["axis"] == "dp"
    wb.axis = "tp"
    assert wb._pinned_view["axis"] == "tp"
    wb.unpin()
    assert wb._pinned_view == {}


def test_the_report_has_the_decision_the_pictures_and_the_step(wb):
    wb.pin()
    wb.show("dp=8, tp=4")
    wb.fail("node1/NIC3")
    page = export(wb, "report")["text"]
    assert page.count("<svg") == 2
    for text in (wb.decision, "tp, exposed", "A and B", "Step", "Llama 3 8B: 8.03 B parameters", "job = ml.Job.preset"):
        assert text in page
    wb.axis = "dp"
    assert "tp (8 groups of 4)" in export(wb, "report")["text"]  # the axis of the headline


def test_failed_parts_are_crossed_in_the_report(wb):
    assert "failed, or slower" not in export(wb, "report")["text"]
    wb.failed = ["node1/NIC3"]
    assert "failed, or slower" in export(wb, "report")["text"]


# -- experts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def routed(machine) -> Workbench:
    return Workbench(machine, "dp=32", job=ml.Job.preset("mixtral-8x7b"), experts="edp=4, ep=8")


def test_the_skew_of_experts_is_a_slider_that_is_undone_and_saved(routed):
    (field,) = [row for row in routed._job["fields"] if row["name"] == "skew"]
    assert (field["value"], field["note"]) == ("0.0", "balanced")
    assert field["slider"] == {"type": "range", "min": 0, "max": 2.0, "step": 0.1}
    before = routed.step_time.seconds
    do(routed, "job_field", field="skew", value="0.8", where="job:skew")
    assert routed.job.skew == 0.8
    assert routed.step_time.seconds > before
    assert "skew=0.8" in routed.code
    assert rerun(routed).job == routed.job
    routed.undo()
    assert (routed.job.skew, routed.step_time.seconds) == (0.0, before)


@pytest.mark.parametrize("value", ["-1", "2.5", "much", ""])
def test_a_wrong_skew_keeps_the_job_and_is_explained(routed, value):
    do(routed, "job_field", field="skew", value=value, where="job:skew")
    assert routed.job.skew == 0.0
    assert problem(routed)["text"].startswith("Skew of experts must be a number from 0 to 2, not")


def test_a_measured_popularity_is_named_and_saved(routed):
    routed.job = routed.job.replace(skew=[1, 1, 2, 1, 1, 1, 1, 1])
    (field,) = [row for row in routed._job["fields"] if row["name"] == "skew"]
    assert field["note"] == "measured"
    assert rerun(routed).job == routed.job


def test_a_dense_job_has_neither_a_slider_nor_a_routing(wb):
    assert [row for row in wb._job["fields"] if row["name"] == "skew"] == []
    assert wb._job["routing"] is None


def test_the_routing_is_drawn_while_it_is_shown(routed):
    do(routed, "job_field", field="skew", value="1.0", where="job:skew")
    assert routed._job["routing"] == ""
    routed._handle_custom_msg({"type": "routing", "open": True}, [])
    html = routed._job["routing"]
    assert html.count("<svg") == 3  # the tokens, and the dispatch before and after
    assert "The busiest link is NVLink" in html
    routed.experts = "edp=1, ep=32"
    assert "8 experts are not divisible by ep=32" in routed._job["routing"]
    routed.experts = ""
    assert "all experts are on each rank" in routed._job["routing"]
    routed._handle_custom_msg({"type": "routing", "open": False}, [])
    assert routed._job["routing"] == ""
