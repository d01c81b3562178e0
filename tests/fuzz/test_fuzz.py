"""A short run of the fuzzer, and what long ones have found."""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base import _units as units
from meshlab.base._errors import BenchError
from meshlab.base._files import write_file
from meshlab.diagnosis._findings import rule
from meshlab.mesh.interop._frameworks import mesh_text_kind
from meshlab.runs._store import as_results
from tests.fuzz.campaign import Campaign
from tests.fuzz.entries import ENTRIES, Entry

SLOW = {"run", "tuning", "report", "words", "explain-several"}
"""Entry points whose inputs take long. They get few of them here."""


@pytest.mark.parametrize("names", [sorted(ENTRIES.keys() - SLOW), sorted(SLOW)], ids=["quick", "slow"])
def test_no_bad_input_raises_anything_but_a_meshlab_error(names: list[str]) -> None:
    campaign = Campaign(first=0, names=tuple(names))
    campaign.run(batch=2 if names[0] in SLOW else 8, rounds=2)  # mutated inputs, and then structured ones
    assert set(campaign.counts) == set(names)
    assert not [f"{one.kind} in {one.place}: {one.example!r}" for one in campaign.failures.values()]


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), OSError("oops"), BenchError("oops")])
def test_a_rule_that_raises_is_a_failure_although_explain_returns(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    @rule("broken", "A broken rule", source="none")
    def broken(paste):
        ml.DeviceMesh("tp=2")
        raise error
        yield

    def call(value, folder):
        return ml.explain(value, rules=[broken])

    entry = Entry("broken", call, lambda rng, kept: "node1:1:2 [0] NCCL INFO a\n", may_fail=(OSError,))
    assert "rule-failed" in {item.code for item in call("node1:1:2 [0] NCCL INFO a\n", None).findings}
    monkeypatch.setitem(ENTRIES, "broken", entry)
    campaign = Campaign(names=("broken",))
    campaign.run(batch=2, rounds=1)
    [failure] = campaign.failures.values()
    assert (failure.kind, failure.count) == ("RuleFailedError", 2)
    assert repr(error) in failure.message


@pytest.mark.parametrize("name", ["\0", "x" * 300, "\ud800", "a\rb", " "])
@pytest.mark.parametrize(
    "read",
    [
        *(ml.read, ml.explain, ml.topology.read, ml.nccl_tests.read, ml.frames.list_runs, ml.frames.RunData.load),
        *(ml.analysis.Tuning.load, ml.Report.read, as_results),
    ],
    ids=lambda read: read.__qualname__,
)
def test_a_text_that_no_file_can_be_named_is_an_error_of_meshlab(read, name: str) -> None:
    with pytest.raises(ml.MeshlabError) as caught:
        read(name)
    str(caught.value).encode()


def test_sizes_that_no_number_holds_are_parse_errors() -> None:
    for size in ("9" * 400, "9" * 5000, "²", "1" * 400 + "K", 10**400, -(10**5000), "1e999", "nan"):
        with pytest.raises(ml.errors.ParseError) as caught:
            units.parse_size(size)
        assert len(str(caught.value)) < 400


def test_numbers_that_are_not_finite_are_formatted_as_a_dash() -> None:
    for value in (float("nan"), float("inf"), -float("inf"), 10**400):
        for write in (units.format_size, units.format_time_us, units.format_seconds, units.format_bandwidth):
            assert write(value) == "–"


@pytest.mark.parametrize("data", [b"\x1f\x8b\x08\x00", b"\xff\xfe\x00\xd8", b"a\rb\r", b"\xed\xa0\x80", b"\0\0"])
def test_bytes_that_are_no_text_are_an_error_of_meshlab(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(data)
    for read in (ml.read, ml.explain, ml.topology.read, ml.nccl_tests.read):
        with pytest.raises(ml.MeshlabError):
            read(path)


def test_a_plan_needs_whole_numbers() -> None:
    for values in ({"root": "x"}, {"seed": 10**30}, {"launches": 1.5}, {"buffers": 2.5}):
        with pytest.raises(ml.MeshlabError):
            ml.Plan("all_reduce", "tp", **values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ml.Plan("all_reduce", "tp", sampling=[]), r"unknown sampling \[\]; choose quick"),
        (lambda: ml.Plan("all_reduce", ["tp", "\ud800"]), r"the name of an axis or a group set, not '\\ud800'"),
        (lambda: ml.predict("tp=8", "dgx-h100", "barrier"), "nothing is predicted, because none of the collectives ha"),
        (lambda: ml.search("dgx-h100", "llama3-8b", tp=10**400), "does not divide 8 ranks.* use tp=4 or 8"),
    ],
)
def test_values_that_no_one_means_are_refused(call, message: str) -> None:
    with pytest.raises(ml.MeshlabError, match=message):
        call()


@pytest.mark.parametrize("name", ["\udfff", "a\0b"])
def test_a_file_that_cannot_be_named_is_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(BenchError, match="no file can be named") as caught:
        write_file(tmp_path / name, "text")
    str(caught.value).encode()


def test_results_in_a_report_that_are_not_ascii_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text('<script type="application/gzip" id="meshlab-results">\u200a</script>')
    with pytest.raises(ml.MeshlabError, match="the results are damaged"):
        ml.Report.read(path)


def test_numbers_in_logs_are_bounded() -> None:
    tree = ml.explain("NCCL INFO Trees [0] 7/1/1->1->99999999999999999999 [1] 1/1/1->0->-1").table("trees")
    assert tree["parent"].isna().sum() < len(tree) == 2
    ml.explain(f"NCCL INFO GPU/9:GPU/9 (9/{'9' * 400}/NVL)")


@pytest.mark.parametrize("text", ["vllm serve ", "LLM(#tensor_parallel_size=", "trtllm-serve ", "accelerate launch "])
def test_the_time_to_recognise_a_text_grows_with_its_length_and_not_with_its_square(text: str) -> None:
    """A lookahead of each match would scan the rest of the text: 5,000 commands took five seconds."""

    def seconds(n: int) -> float:
        begin = time.process_time()
        assert mesh_text_kind(text * n) is None
        return time.process_time() - begin

    assert min(seconds(20_000) for _ in range(2)) < 40 * max(min(seconds(2_000) for _ in range(3)), 0.002)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document["mesh"].update(axes=[["tp"]]), "mesh.axes"),
        (
            lambda document: [document["files"].pop(f"samples.{end}") for end in ("parquet", "csv")],
            "is missing, and the run was saved without samples.csv",
        ),
        (lambda document: document.update(journal="rows\0.journal"), "not a name of a file"),
    ],
)
def test_a_damaged_description_of_a_run_is_an_error(thread_engines, tmp_path: Path, change, message: str) -> None:
    run = ml.bench(thread_engines, "dp=2, tp=2", sizes="1K")
    run.wait(progress=False)
    path = run.save(tmp_path / "run") / "run.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ml.MeshlabError, match=message):
        ml.frames.RunData.load(path.parent)
    assert len(ml.frames.list_runs(tmp_path)) <= 1


@pytest.mark.parametrize(
    "change",
    [{"rows": ["ok"]}, {"rows": [{}]}, {"rows": 3}, {"facts": {"error": True}}, {"samples": [{"batch": {"x": 1}}]}],
)
def test_a_journal_with_other_values_is_an_error_when_it_is_read(
    thread_engines: ml.Engines, tmp_path: Path, change: dict[str, object]
) -> None:
    run = ml.bench(thread_engines, "dp=2, tp=2", sizes="1K")
    run.wait(progress=False)
    path = run.save(tmp_path / "run") / "run.json"
    text = json.dumps({"number": 0, "facts": {}, "rows": [], "samples": []} | change).encode()
    (path.parent / "steps-0.jsonl").write_bytes(b"%08x %s\n" % (zlib.crc32(text), text))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"journal": "steps-0.jsonl"}))
    with pytest.raises(ml.MeshlabError, match=r"not a journal|other values than rows and samples|error"):
        ml.frames.RunData.load(path.parent)
