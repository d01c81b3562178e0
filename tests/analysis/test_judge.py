"""Verdicts on speed: the machine of a log, the published runs that decide, and what is never judged."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.analysis._measured_machine import machine_of_section, parse_nics
from meshlab.analysis._published_comparison import MeasuredCurve, busbw_near, compare_with_published
from meshlab.analysis._verdicts import THIN
from meshlab.prediction._published import PublishedCurve, published_curves
from tests.examples import examples

RANKS = ("suspiciously slow", "slow", "not known", "normal", "faster than published")
CURVES = [curve for curve in published_curves() if curve.n_ranks > 1]
P5 = "https://github.com/aws-samples/awsome-distributed-training"


def frame_of(curve: PublishedCurve, factor: float = 1.0) -> pd.DataFrame:
    """Return a curve as a frame, with times that are `factor` times as long."""
    return pd.DataFrame(
        {
            "collective": curve.collective,
            "in_place": curve.in_place,
            "dtype": curve.dtype,
            "size_bytes": curve.size_bytes,
            "time_us": curve.time_us * factor,
            "n_ranks": curve.n_ranks,
            "gpu": curve.gpu,
            "gpus_per_node": curve.gpus_per_node,
            "nodes": curve.nodes,
            "nic_gbps_per_node": curve.nic_gbps_per_node,
            "system": curve.system,
            "remark": curve.remark,
            "source": curve.source,
            "curve": curve.curve,
        }
    )


def p5(factor: float = 1.0) -> pd.DataFrame:
    curve = next(curve for curve in CURVES if curve.curve.startswith("aws-readme-aws-p5") and not curve.in_place)
    return frame_of(curve, factor)


def log_of(frame: pd.DataFrame, *, gpu: str = "NVIDIA H100 80GB HBM3", hosts: int = 2, extra: str = "") -> str:
    """Return the log of nccl-tests with these times."""
    n = int(frame["n_ranks"].iloc[0])
    per_host = n // hosts
    devices = [
        f"#  Rank {rank:2d} Group  0 Pid  1{rank} on  node{rank // per_host} device {rank % per_host:2d} [0x53] {gpu}"
        for rank in range(n)
    ]
    factor = 2 * (n - 1) / n
    rows = []
    for size, t in zip(frame["size_bytes"], frame["time_us"], strict=True):
        timing = f"{t:9.2f} {size / t / 1e3:7.2f} {factor * size / t / 1e3:7.2f}      0"
        rows.append(f"{size:12d} {size // 4:12d}     float     sum      -1 {timing} {timing}")
    rows = [row for row, size in zip(rows, frame["size_bytes"], strict=True) if size >= 1024]
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20 "
    head += "agg iters: 1 validation: 1 graph: 0"
    half = "    time   algbw   busbw #wrong "
    return "\n".join(
        [
            "# Collective test starting: all_reduce_perf",
            head,
            "#",
            "# Using devices",
            *devices,
            extra,
            f"#       size         count      type   redop    root {half}{half}",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
            *rows,
            "# Out of bounds values : 0 OK",
        ]
    )


# -- sentences and words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "word", "outcome"),
    [
        (0.8, "faster than published", "passed"),
        (1, "normal", "passed"),
        (1.4, "not known", "not decided"),
        (5, "slow", "failed"),
        (20, "suspiciously slow", "failed"),
    ],
)
def test_the_word_follows_from_the_share_of_published_runs(factor: float, word: str, outcome: str) -> None:
    judgement = ml.judge(p5(factor))
    assert judgement.verdict.word == word
    assert (judgement.verdict.outcome, judgement.outcome) == (outcome, outcome)


def test_a_verdict_is_one_sentence_with_its_numbers_and_rows() -> None:
    judgement = ml.judge(p5(5.5))
    assert re.fullmatch(
        r"all_reduce on 2 × 8 H100 with 8 × 400 Gb/s: 88\.6 GB/s at 16 GiB is 18 % of what 6 published runs reach "
        r"\(467 to 488\) and 17 % of the bound \(5\d\d\): slow\.",
        judgement.verdict.sentence.replace(THIN, " "),
    )
    references = judgement.references
    assert len(references) == 6
    assert P5 not in set(references["source"])  # its own source
    assert references["busbw_gbs"].between(467, 488).all()
    frame = judgement.frame()
    assert frame.loc[0, ["verdict", "n_published", "basis"]].tolist() == ["slow", 6, "machine"]
    assert "slow" in judgement._repr_html_()
    assert judgement.next_step.startswith("Run the test once on one host")


def test_sources_can_be_left_out() -> None:
    everything = ml.judge(p5())
    assert len(everything.references) == 6
    sources = set(everything.references["source"])
    for source in sources:
        references = ml.judge(p5(), leave_out=[source]).references
        assert source not in set(references["source"])
        assert 0 < len(references) < 6
    # Without any run of the same machine, other machines decide by the share of the line rate.
    without = ml.judge(p5(), leave_out=sources)
    assert without.verdict.comparison.basis == "network"
    assert "of the line rate of its NICs" in without.verdict.sentence


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(CURVES), st.floats(0.5, 4), st.floats(1, 30))
def test_a_slower_curve_never_has_a_better_verdict(curve: PublishedCurve, factor: float, slower: float) -> None:
    first, second = (ml.judge(frame_of(curve, scale)) for scale in (factor, factor * slower))
    before, after = (judgement.verdict for judgement in (first, second))
    if after.comparison.basis == before.comparison.basis:
        if "not known" not in (before.word, after.word):
            assert RANKS.index(after.word) <= RANKS.index(before.word)
        # Between slow and normal there is a gap, and what is below it does not return above it.
        if before.outcome == "failed":
            assert after.outcome == "failed"
        if before.outcome == "not decided" and before.comparison.runs and after.size_bytes == before.size_bytes:
            assert after.outcome != "passed"


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(CURVES))
def test_no_curve_is_judged_by_its_own_source(curve: PublishedCurve) -> None:
    by_citation = ml.judge(frame_of(curve))
    assert curve.source not in set(by_citation.references["source"])
    # Nor by its own times, if the source is not stated.
    by_times = ml.judge(frame_of(curve).drop(columns=["source", "curve"]))
    assert curve.curve not in set(by_times.references["curve"])


def test_runs_that_their_source_calls_slow_are_no_reference() -> None:
    for curve in CURVES[::7]:
        references = ml.judge(frame_of(curve)).references
        slow = {other.curve for other in CURVES if other.verdict == "slow"}
        assert not slow & set(references["curve"])


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(CURVES), st.floats(0, 1))
def test_interpolated_bandwidths_are_between_those_of_the_neighbours(curve: PublishedCurve, share: float) -> None:
    low, high = (int(curve.size_bytes[place]) for place in (0, -1))
    size = int(low * (high / low) ** share)
    near = busbw_near(curve, size)
    if near is None:
        return
    at = int(np.searchsorted(curve.size_bytes, size))
    around = curve.busbw_gbs[max(at - 1, 0) : at + 1]
    assert around.min() * 0.999 <= near[1] <= around.max() * 1.001


def test_published_runs_that_disagree_decide_nothing() -> None:
    measured = next(curve for curve in CURVES if curve.curve == "aks-a100-2n" and not curve.in_place)
    other = next(curve for curve in CURVES if curve.curve == "oke-a100-b4-2n" and not curve.in_place)
    from dataclasses import replace

    halved = replace(other, source="another", curve="another", time_us=other.time_us * 2)
    machine = ml.analysis._measured_machine.machine_of_frame(frame_of(measured))
    curve = MeasuredCurve("all_reduce", 16, False, measured.size_bytes, measured.time_us, measured.busbw_gbs)
    comparison = compare_with_published(curve, machine, curves=[other, halved])
    assert comparison.word is None
    assert "2 published runs disagree" in comparison.reason


# -- the machine of a log ----------------------------------------------------------------------------------------------


def test_a_log_is_judged_by_its_devices_and_hosts() -> None:
    verdict = ml.judge(log_of(p5())).verdict
    # The log does not state its NICs, but even the fastest known ones do not make it slow.
    assert (verdict.word, verdict.machine) == ("normal", "2 × 8 H100")
    assert "NICs not stated; true even of 8 × 400 Gb/s" in verdict.sentence


def test_what_is_missing_is_named_and_can_be_stated() -> None:
    text = log_of(p5(2))
    verdict = ml.judge(text).verdict
    assert (verdict.word, verdict.missing) == ("not known", True)
    assert "the NICs are missing" in verdict.sentence
    for statement in ({"nics": "8x400"}, {"nics": 3200}, {"cluster": "dgx-h100"}, {"cluster": "aws-p5"}):
        assert ml.judge(text, **statement).verdict.word == "slow"
    without_gpus = text.replace("NVIDIA H100 80GB HBM3", "")
    assert "the GPU is missing" in ml.judge(without_gpus).verdict.sentence
    assert ml.judge(without_gpus, gpu="H100", nics="8x400").verdict.word == "slow"


@pytest.mark.parametrize(
    ("line", "nics"),
    [
        ("node0:1:1 [0] NCCL INFO Using network AWS Libfabric", "32 × 100 Gb/s"),
        ("node0:1:1 [0] NCCL INFO Using network FasTrak", "8 × 200 Gb/s"),
        ("NCCL_TOPO_FILE set by environment to /opt/microsoft/ndv5-topo.xml", "8 × 400 Gb/s"),
        ("BM.GPU.H100.8", "16 × 200 Gb/s"),
    ],
)
def test_lines_of_nccl_and_launchers_name_the_network(line: str, nics: str) -> None:
    text = log_of(p5(), extra=line)
    (section,) = ml.nccl_tests.read(text).sections
    machine = machine_of_section(section, text)
    assert (machine.nodes, machine.gpus_per_node, machine.nics) == (2, 8, nics)


def test_the_rate_of_named_ports_is_the_missing_fact() -> None:
    extra = "node0:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    assert "the rate of the 2 NICs is missing" in ml.judge(log_of(p5(2), extra=extra)).verdict.sentence


def test_hosts_whose_names_were_replaced_are_counted_by_their_devices() -> None:
    text = log_of(p5()).replace("node0", "HOST").replace("node1", "HOST")
    (section,) = ml.nccl_tests.read(text).sections
    assert machine_of_section(section).nodes == 2


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG splits its GPUs"),
        ("AMD Instinct MI300X VF", "virtual functions"),
        ("GRID A100-40C", "virtual functions"),
    ],
)
def test_parts_of_gpus_are_not_judged(gpu: str, why: str) -> None:
    verdict = ml.judge(log_of(p5(), gpu=gpu), nics="8x400").verdict
    assert verdict.outcome == "not decided"
    assert why in verdict.sentence


def test_mixed_machines_are_not_judged() -> None:
    text = log_of(p5())
    lines = text.split("\n")
    lines = [line.replace("H100 80GB HBM3", "H200") if "on  node1" in line else line for line in lines]
    verdict = ml.judge("\n".join(lines), nics="8x400").verdict
    assert verdict.outcome == "not decided"
    assert "different GPUs (H100 to H200)" in verdict.sentence


def test_wrong_results_are_not_judged() -> None:
    lines = log_of(p5()).split("\n")
    row = next(number for number, line in enumerate(lines) if line.strip().startswith("17179869184"))
    lines[row] = lines[row][: lines[row].rindex("0")] + "7"
    verdict = ml.judge("\n".join(lines), nics="8x400").verdict
    assert verdict.outcome == "not decided"
    assert "results are wrong" in verdict.sentence


def test_small_sizes_one_rank_and_failures_are_not_judged() -> None:
    small = p5().query("size_bytes < 16 * 2**20")
    assert "no size is 16 MiB or more" in ml.judge(log_of(small), nics="8x400").verdict.sentence
    text = log_of(p5()).split("#       size")[0]
    assert "its rows are missing" in ml.judge(text).verdict.sentence
    with pytest.raises(ml.MeshlabError, match="no nccl-tests output found"):
        ml.judge("CUDA error: out of memory")


@pytest.mark.parametrize(("text", "total"), [("8x400", 3200), ("8 x 400 Gb/s", 3200), ("2 × 200Gbps", 400), (800, 800)])
def test_nics_are_a_number_and_a_rate(text: str | int, total: float) -> None:
    assert parse_nics(text)[0] == total


@pytest.mark.parametrize("text", ["", "x", "8x", "many", "8x0"])
def test_other_nics_are_refused(text: str) -> None:
    with pytest.raises(ml.MeshlabError, match="must be a number of NICs and their rate"):
        parse_nics(text)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_two_h200_are_judged() -> None:
    judgement = ml.judge(ml.example(), cluster="dgx-h200", mesh="tp=2")
    assert judgement.outcome == "passed"
    assert len(judgement.verdicts) == 12
    frame = judgement.frame()
    assert set(frame["verdict"]) == {"normal"}
    assert set(frame.loc[frame["collective"] == "all_reduce", "basis"]) == {"machine"}
    # Without its machine, published runs decide about all_reduce, and nothing about the others.
    alone = ml.judge(ml.example()).frame()
    assert set(alone.loc[alone["collective"] == "all_reduce", "verdict"]) == {"normal"}
    assert set(alone.loc[alone["collective"] != "all_reduce", "verdict"]) == {"not known"}


def test_a_cpu_is_not_judged(make_results) -> None:
    judgement = ml.judge(make_results(exponents=[28]))
    assert judgement.outcome == "not decided"
    assert "on CPUs: not known, because it was measured on CPUs" in judgement.verdict.sentence


def test_an_exported_run_has_neither_hosts_nor_gpus_of_its_own(make_results) -> None:
    results = make_results(
        "tp=2", axes=["tp"], collectives=["all_reduce"], exponents=[28], source="nccl", where="2 ranks"
    )
    verdict = ml.judge(ml.nccl_tests.write(results)).verdict
    assert verdict.machine == "unknown GPUs"
    assert "the GPU is missing" in verdict.sentence
    results.attrs["gpu"] = "NVIDIA H200"
    text = ml.nccl_tests.write(results)
    assert "the number of hosts of the 2 ranks is missing" in ml.judge(text).verdict.sentence
    assert ml.judge(text, nodes=1).verdict.machine == "2 × H200"


def test_equal_sentences_are_written_once() -> None:
    small = log_of(p5().query("size_bytes < 16 * 2**20"))
    judgement = ml.judge([small, small], nics="8x400")
    assert len(judgement.verdicts) == 2
    assert str(judgement).count("not known") == 1
    assert judgement.next_step.startswith("Measure sizes up to 8 GiB")


def test_a_name_of_no_file_is_not_taken_for_a_log() -> None:
    with pytest.raises(ml.MeshlabError, match=r"^no file 'nccl-tests\.log' exists; check the path"):
        ml.judge("nccl-tests.log")


def test_a_judgement_and_a_report_give_one_answer(tmp_path: Path) -> None:
    file = tmp_path / "all_reduce.log"
    for factor in (1, 5):
        file.write_text(log_of(p5(factor), extra="NCCL INFO Using network AWS Libfabric"))
        judgement, report = ml.judge(file), ml.Report(file)
        assert judgement.verdict.sentence in report.verdict
        assert report.outcome == judgement.outcome


def test_a_curve_of_the_site_becomes_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.analysis._site_curves import add_curves

    monkeypatch.setenv("MESHLAB_CURVES", str(tmp_path / "curves.parquet"))
    text = log_of(p5(2))
    with pytest.raises(ml.MeshlabError, match="NICs are missing"):
        add_curves(text, system="ours")
    for _ in range(2):  # the second time replaces the first
        assert add_curves(text, system="our H100", nics="8x200")[0] == tmp_path / "curves.parquet"
    site = ml.analysis.published("H100").query("system == 'our H100'")
    assert set(site["source"]) == {"this site: our H100"}
    assert site["size_bytes"].nunique() == len(site) / 2
    later = ml.judge(log_of(p5(2.04)), nics="8x200")
    assert "this site: our H100" in set(later.references["source"])


# -- published threads -------------------------------------------------------------------------------------------------

CASES = Path(os.environ.get("MESHLAB_CASES", ""))
needs_cases = pytest.mark.skipif(not (CASES / "curves").is_dir(), reason="MESHLAB_CASES has no curves")


@needs_cases
def test_verdicts_of_threads_are_not_contradicted() -> None:
    table = pd.read_csv(CASES / "curves" / "curves.csv", keep_default_na=False)
    table = table[table["verdict"].ne("") & table["size_bytes"].gt(0)]
    decided, contradicted = 0, []
    for name, rows in table.groupby("curve_id"):
        source = rows["source"].iloc[0]
        repository = source.removeprefix("github:").split(" ")[0]
        judgement = ml.judge(rows, leave_out=[f"https://github.com/{repository}", source])
        word = rows["verdict"].iloc[0]
        decided += judgement.outcome != "not decided"
        if judgement.outcome == {"normal": "failed", "slow": "passed"}[word]:
            contradicted.append((name, word, judgement.verdict.sentence))
    assert contradicted == []
    assert decided >= 0.8 * table["curve_id"].nunique()


LOGS = sorted((CASES / "nccl_logs").glob("*")) if (CASES / "nccl_logs").is_dir() else []


@needs_cases
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_every_log_gets_a_verdict_or_a_named_reason_within_a_second(log: Path) -> None:
    published_curves()  # the library is read once
    if log.name[:2] in ("07", "51"):  # without a test of nccl-tests
        with pytest.raises(ml.MeshlabError, match="nccl-tests"):
            ml.judge(log)
        return
    start = time.process_time()
    judgement = ml.judge(log)
    seconds = time.process_time() - start
    assert judgement.verdicts
    for verdict in judgement.verdicts:
        assert (verdict.word == "not known") == bool(verdict.reason)
        assert verdict.sentence.endswith(".")
        assert math.isnan(verdict.busbw_gbs) or verdict.busbw_gbs > 0
    assert seconds < 1
