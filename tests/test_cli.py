"""The command line, called in this process."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import EngineError
from meshlab.benchmark import _executor as executor
from meshlab.cli import _commands as commands
from meshlab.cli._main import main

ROOT = Path(__file__).parents[1]


def words(text: str) -> list[str]:
    import shlex

    return shlex.split(text)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("show 'dp=2, tp=x'", "size of axis 'tp' must be an integer, not 'x'"),
        (
            "show 'dp=2, tp=3' --ranks 8",
            "dp=2 × tp=3 is 6 ranks, but 8 were given; tp=3 does not divide 8; nearest: dp=2, tp=4",
        ),
        ("show 'dp=-1, tp=8' --ranks 12", "12 ranks cannot be divided by tp=8"),
        ("show 'dp=2, dp=2'", "axis 'dp' appears 2 times"),
        ("show 'dp=2' --axis tp", "unknown axis or group 'tp'; choose one of the axes dp"),
        ("bench --mesh 'tp=2' --axis ep", "unknown axis or group 'ep'"),
        ("search llama3-7b --cluster dgx-h100", "unknown model 'llama3-7b' (did you mean 'llama3-70b'?)"),
        ("search llama3-8b --cluster dgx-h100 --tp 3", "tp=3 does not divide 8 ranks; use --tp 2 or 4"),
        ("search llama3-8b --cluster dgx-h100 --set layers=33 --pp 2", "use --pp 3, --set layers=32 or 34, or --set"),
        ("search llama3-8b --cluster dgx-h100 --memory 20", "pass --set recompute=full (17.9"),
        ("search llama3-8b --cluster dgx-h100 --set dtype=float64", "float64 is unknown; pass --peak N in TFLOP/s"),
        ("search llama3-8b --cluster dgx-h100 --set recomputation=full", "(did you mean 'recompute'?); write --set"),
        ("search llama3-8b --cluster dgx-h10", "tapered-h100, or pass a file that describes hardware"),
        ("search llama3-8b --cluster dgx-h100 --rows 0", "--rows 0 must be positive"),
        ("search llama3-8b --cluster dgx-h100 --out a.pdf", "--out a.pdf must end in one of .csv, .png, .svg"),
        ("search llama3-70b --cluster dgx-h100", "no layout of 8 ranks can run Llama 3 70B: the nearest is tp=8"),
        (
            "bench all_reduced --mesh 'tp=2'",
            "unknown collective 'all_reduced' (did you mean 'all_reduce'?); choose one of all_reduce",
        ),
        (
            "bench --mesh 'tp=2' --dtype float33",
            "unknown dtype 'float33' (did you mean 'float32'?); choose one of float",
        ),
        ("predict tp=2", "a prediction needs a cluster or a calibration; pass the name of a preset"),
        ("predict tp=2 gather --cluster dgx-h100", "gather has no cost model; choose all_gather, which is the nearest"),
        ("predict tp=2 --cluster dgx", "unknown preset 'dgx'"),
        ("predict tp=2 --cluster dgx-h100 --out a.pdf", "--out a.pdf must end in one of .csv, .png, .svg"),
        ("bench --mesh 'tp=2' --op xor", "unknown reduce operation 'xor'; choose one of sum"),
        ("bench --mesh 'tp=2' --mode fast", "unknown mode 'fast'; choose one of isolated, pipelined"),
        ("bench --mesh 'tp=2' --sizes 12Q", "'12Q' is not a size"),
        ("bench --mesh 'tp=2' --sizes 1K-16M", "'1K-16M' is not a size (did you mean '1K:16M'?); write first:last"),
        ("bench allreduce --mesh 'tp=2'", "unknown collective 'allreduce' (did you mean 'all_reduce'?); choose one of"),
        ("bench --mesh 'tp=2' --op mean", "unknown reduce operation 'mean' (did you mean 'avg'?); choose one of sum"),
        ("bench --mesh 'tp=2' --axis TP", "unknown axis or group 'TP' (did you mean 'tp'?); choose one of the axes tp"),
        ("bench --mesh 'tp=4' --ranks 2", "tp=4 has 4 ranks, but there are 2 engines; pass --ranks 4, or omit --ranks"),
        ("bench --mesh 'tp=2' --seconds 0", "--seconds 0 must be positive; pass the maximum time of a step in seconds"),
        ("show 'dp=-1, tp=2'", "which is unknown; pass --ranks N"),
        ("show dp=-1 tp=8 --ranks 12", "12 ranks cannot be divided by tp=8"),
        ("show 'dp=2, tp=2' --axis dp,tp", "for the groups that span these axes, pass --axis dp-tp"),
        ("bench all_reduce,all_reduced --mesh dp=2 tp=2", "unknown collective 'all_reduced'"),
        ("bench --mesh dp=2 tp=2 --axis dp,ep", "unknown axis or group 'ep'"),
        ("bench --mesh 'tp=2' --ranks 1", "tp=2 has 2 ranks, but there is 1 engine; pass --ranks 2, or omit --ranks"),
        ("demo --mesh 'dp=2 tp'", "'tp' is not an axis; write name=size"),
        ("rehearse llama3-8x --mesh tp=4", "unknown model 'llama3-8x' (did you mean 'llama3-8b'?)"),
        ("rehearse llama3-8b --mesh dp=3", "micro_batch × dp = 1 × 3; use --set global_batch=513"),
        ("rehearse llama3-8b --mesh tp=3", "32 heads are not divisible by tp = 3; use tp = 4"),
        ("rehearse llama3-8b --mesh tp=2 --mesh tp=4", "need the same number of ranks: tp=2 has 2, tp=4 has 4"),
        ("rehearse llama3-8b --mesh tp=4 --out steps.pdf", "--out steps.pdf must end in .csv"),
        (
            "rehearse llama3-8b --mesh tp=4 --out nowhere/steps.csv",
            "is in a folder that does not exist; create it first",
        ),
        ("rehearse llama3-8b --mesh tp=4 --ranks 2", "tp=4 has 4 ranks, but there are 2 engines"),
        ("rehearse llama3-8b --mesh tp=4 --set layer=3", "--set layer=3 is not a change of the job (did you mean"),
        ("bench --here", "--here needs a mesh, because the launcher is unknown"),
        ("bench --axis tp", "unknown axis or group 'tp'; choose one of the axes all_ranks or of the groups world"),
        (
            "bench --mesh 'tp=2' --concurrent dp",
            "--concurrent dp has no collective; write --concurrent dp=reduce_scatter",
        ),
        ("bench --mesh 'tp=2' --beside dp", "--concurrent dp has no collective"),
        ("bench --mesh 'tp=2' --grouping some", "unknown grouping 'some'; choose one of together, alone, pairs"),
        ("bench --mesh 'tp=2' --groups some", "unknown grouping 'some'"),
        ("bench --mesh 'tp=2' --grouping pairs", "pairs of ranks support send and send_recv, not all_reduce"),
        ("bench --resume no-such-folder", "no-such-folder holds no run"),
        ("report no-such-folder", "no-such-folder holds no run"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words(command)) == 2
    err = capsys.readouterr().err
    assert err.startswith("meshlab: ")
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_of_a_launcher_reports_bad_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", "4")
    assert main(words("bench --mesh tp=3")) == 2
    err = capsys.readouterr().err
    assert err == ("" if rank else "meshlab: tp=3 has 3 ranks, but there are 4 engines; start 3 processes\n")
    with pytest.raises(SystemExit) as stop:
        main(words("bench --mesh tp=4 --quick"))
    assert stop.value.code == 2
    assert ("unrecognized arguments: --quick" in capsys.readouterr().err) == (rank == 0)


@pytest.mark.parametrize(
    ("where", "library", "label"),
    [
        ("2 × H200 · NCCL 2.28.9", "NCCL 2.28.9", "2 × H200 · NCCL 2.28.9"),
        ("2 ranks · MPI on this CPU", "MPICH 5.0.2", "2 ranks · MPI on this CPU, MPICH 5.0.2"),
    ],
)
def test_the_library_is_named_once(where: str, library: str, label: str) -> None:
    ranks = (SimpleNamespace(capabilities=SimpleNamespace(library=library)),)
    assert commands.system_label(SimpleNamespace(where=where, ranks=ranks)) == label


@pytest.mark.parametrize("command", ["demo", "bench all_reduce --mesh tp=2"])
def test_a_folder_that_cannot_be_written_is_reported_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*words(command), "--out", str(tmp_path / "file" / "out")]) == 2
    out, err = capsys.readouterr()
    assert "cannot write the folder" in err
    assert "ready in" not in out
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "command",
    [
        "",
        "--help",
        "demo --help",
        "bench --help",
        "show --help",
        "report --help",
        "predict --help",
        "lab --help",
        "app --help",
        "export --help",
        "rehearse --help",
        "tune --help",
    ],
)
def test_help_shows_usage_examples_and_exit_codes(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words(command))
    out, err = capsys.readouterr()
    assert stop.value.code == (2 if command == "" else 0)
    text = out + err
    assert "usage: meshlab" in text
    if command == "--help":
        assert "examples:" in text
        assert "exit codes:" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"meshlab {ml.__version__}\n"


def test_show_prints_axes_groups_and_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dp=2, tp=4", "--axis", "dp"]) == 0
    out = capsys.readouterr().out
    assert "dp  4 groups of 2   dp_0 [0, 4]" in out
    assert "dp=1   4:0  5:1  6:2  7:3" in out


def test_a_mesh_need_not_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dp=2,", "tp=4"]) == 0
    assert "dp=2, tp=4 · 8 ranks" in capsys.readouterr().out
    options = "--sizes 1K --seconds 0.02 --backend threads --axis dp,tp"
    assert main(words(f"bench all_reduce,broadcast --mesh dp=2 tp=2 {options}")) == 0
    out = capsys.readouterr().out
    assert "5 groups verified" in out
    assert "4 steps, about" in out


@pytest.mark.parametrize(("n_gpus", "n_cores", "n"), [(4, 64, 4), (0, 1, 2), (0, 6, 6), (0, 64, 8)])
def test_a_benchmark_without_a_mesh_takes_all_gpus_or_some_cores(
    monkeypatch: pytest.MonkeyPatch, n_gpus: int, n_cores: int, n: int
) -> None:
    monkeypatch.setattr("meshlab.engines._launch.count_gpus", lambda: n_gpus)  # what the machine has
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(n_cores))
    assert commands.default_ranks("auto") == commands.default_ranks("nccl") == n
    assert commands.default_ranks("mpi") == commands.default_ranks("threads") == min(max(n_cores, 2), 8)


def test_a_benchmark_needs_no_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("bench all_reduce --sizes 1K --seconds 0.02 --backend threads --ranks 3")) == 0
    assert "1 group of 3 · 3 ranks · threads in this process" in capsys.readouterr().out
    assert main(words("bench all_reduce --sizes 1K --seconds 0.02 --backend threads")) == 0
    assert re.search(r"1 group of (\d) · \1 ranks · threads in this process", capsys.readouterr().out)


def test_predict_prints_a_table_and_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("predict dp=2 tp=8 all_gather --cluster dgx-h100 --axis tp --sizes 1G")) == 0
    text = capsys.readouterr().out
    assert "dp=2, tp=8 on DGX H100, 2 nodes" in text
    assert re.search(r"tp +all_gather +1\sGiB +\S+ Simple", text)
    assert "formula only" in text
    assert "Nothing of this was measured." in text


@pytest.mark.parametrize("suffix", ["csv", "png", "svg"])
def test_predict_writes_the_table_or_the_figure(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"times.{suffix}"
    assert main(["predict", "tp=8", "--cluster", "dgx-h100", "--sizes", "1M:1G", "--out", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    start = {"csv": b"axis,groups", "png": b"\x89PNG", "svg": b"<svg"}[suffix]
    assert path.read_bytes().startswith(start)


def test_predict_calibrates_with_results_of_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from meshlab.frames._files import frame_to_parquet

    frame_to_parquet(ml.example(), tmp_path / "h200.parquet")
    arguments = words(f"predict tp=2 --cluster dgx-h200 --sizes 1K --calibration {tmp_path / 'h200.parquet'}")
    assert main([*arguments, "--mode", "graph"]) == 0
    assert "calibrated" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "mix the modes graph, pipelined, isolated; choose one, such as --mode graph" in capsys.readouterr().err


def test_show_stays_short_for_a_large_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "pp=16, dp=128, tp=8"]) == 0
    out = capsys.readouterr().out
    assert len(out) < 4000
    assert "and 2,040 more" in out


@pytest.mark.parametrize("mesh", ["dp=64, tp=64", "tp=64", "pp=2, dp=2, cp=2, tp=8", "pp=16, dp=128, tp=8"])
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_show_fits_the_width_of_the_terminal(
    mesh: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", mesh]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


def test_show_uses_80_columns_if_the_width_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))
    assert main(["show", "dp=64, tp=64"]) == 0
    assert 60 < max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_doctor_lists_the_parts_of_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("python", "numpy", "ipyparallel", "mpi ", "mpiexec", "shared memory", "cupy"):
        assert word in out
    assert "broken" not in out


def test_doctor_reports_a_broken_part_and_its_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHLAB_MPIEXEC", "/no/such/mpiexec")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "/no/such/mpiexec does not exist" in out
    assert "→ correct or unset MESHLAB_MPIEXEC" in out


FILES = {"report.html", "report.md", "results.parquet", "results.csv", "samples.parquet", "samples.csv", "run.json"}


def test_bench_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = "bench all_reduce broadcast --mesh dp=2,tp=2 --axis tp --sizes 1K:4K --backend threads --seconds 0.02"
    assert main([*words(command), "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "6 groups verified" not in out
    assert "5 groups verified: each contains exactly the expected ranks" in out
    assert "tp · 2 groups of 2, the slowest shown" in out
    assert f"report: {tmp_path / 'run' / 'report.html'}" in out
    written = {file.name for file in (tmp_path / "run").iterdir()}
    assert written >= FILES
    pictures = {f"report-{name}-tp.png" for name in ("membership", "bandwidth", "latency")}
    assert pictures <= written
    markdown = (tmp_path / "run" / "report.md").read_text()
    assert set(re.findall(r"\(<(.*?)>\)", markdown)) == {name for name in written if name.endswith(".png")}
    assert len(ml.Run.load(tmp_path / "run").results) == 2 * 3 * 2

    (tmp_path / "run" / "report.html").unlink()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "short.md")]) == 0
    assert (tmp_path / "short.md").read_text().startswith("# ")
    assert not list(tmp_path.glob("*.png"))
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "long.md"), "--pictures"]) == 0
    assert len(list(tmp_path.glob("long-*.png"))) == len(pictures) + 1  # the groups of dp are shown too


@pytest.mark.long  # .ci/run runs the demo too
def test_the_demo_runs_all_steps_over_mpi(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["demo", "--sizes", "1K:16K*4", "--out", str(tmp_path / "demo")]) == 0
    out = capsys.readouterr().out
    assert "4 ranks · MPI on this CPU" in out
    run = ml.Run.load(tmp_path / "demo")
    assert set(run.results["collective"]) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    assert set(run.results["axis"]) == {"dp", "tp"}
    assert (run.results["n_wrong"] == 0).all()
    assert "MPI on this CPU" in (tmp_path / "demo" / "report.html").read_text()


def test_the_exit_code_of_compare_is_1_for_a_regression(
    thread_engines: ml.Engines, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sampling = ml.Sampling(max_s=0.1)
    run = ml.bench(thread_engines, ml.DeviceMesh("tp=4"), sizes="64K, 256K", launches=3, sampling=sampling)
    run.wait(120)
    run.save(tmp_path / "before")
    assert main(["compare", str(tmp_path / "before"), str(tmp_path / "before")]) == 0
    slower = ml.Run.load(tmp_path / "before")
    for frame in ("results", "samples"):
        n_rows, table = slower._frames[frame]
        times = [name for name in table.columns if name.endswith("_us") and name != "start_offset_us"]
        slower._frames[frame] = (n_rows, table.assign(**{name: table[name] * 50 for name in times}))
    slower.save(tmp_path / "after")
    assert main(["compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 1
    assert "2 regressions beyond 5%" in capsys.readouterr().out
    # One launch, because three of a busy machine may differ so much that they are refused as repeats.
    (tmp_path / "log.txt").write_text(ml.nccl_tests.write(run.results.query("launch == 0")))
    assert main(["compare", str(tmp_path / "log.txt"), str(tmp_path / "log.txt")]) == 0
    assert main(["compare", str(tmp_path / "nothing"), str(tmp_path / "log.txt")]) == 2
    both = [str(tmp_path / "before"), str(tmp_path / "after")]
    capsys.readouterr()
    assert main(["compare", "--before", both[0], both[0], "--after", both[1]]) == 1
    assert "2 runs (before) → after\n" in capsys.readouterr().out
    for mixed in ([both[0]], [*both, "--after", both[1]], [*both, both[0]], ["--before", both[0]]):
        assert main(["compare", *mixed]) == 2
    assert "compare needs two sides: meshlab compare BEFORE AFTER" in capsys.readouterr().err


def test_compare_names_runs_after_their_folders_and_accepts_percent(
    thread_engines: ml.Engines, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = ml.bench(thread_engines, ml.DeviceMesh("tp=4"), sizes="1K", sampling=ml.Sampling(max_s=0.02, min_batches=6))
    run.wait(120)
    for name in ("monday", "tuesday"):
        run.save(tmp_path / name)
    assert main(["compare", str(tmp_path / "monday"), str(tmp_path / "tuesday"), "--threshold", "900%"]) == 0
    assert capsys.readouterr().out.startswith("monday (before) → tuesday (after)\n1 row compared")
    for text in ("-1", "much", "5%%", "nan"):
        with pytest.raises(SystemExit) as stop:
            main(["compare", "a", "b", f"--threshold={text}"])
        assert stop.value.code == 2
        assert "is not a positive fraction; write 0.05 or 5% for 5 % slower" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "wednesday"), str(tmp_path / "monday")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot read " in err
    assert "wednesday: No such file or directory; pass the folder of a run" in err


def test_a_file_that_cannot_be_read_is_an_error_of_every_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for words in (["explain"], ["predict", "tp=2", "--cluster"]):
        assert main([*words, "/proc/self/mem"]) == 2  # opens, but cannot be read
        assert capsys.readouterr().err == "meshlab: reading or writing failed: Input/output error\n"
    assert main(["explain", str(tmp_path / "loop")]) == 2
    assert "loop: Too many levels of symbolic links" in capsys.readouterr().err


def test_a_comparison_can_be_printed_without_names(
    make_results: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from meshlab.runs._rundata import RunData

    for folder, note in (("zuse17-monday", "zuse17 with 10.1.2.3"), ("zuse17-tuesday", "zuse18, seen by /home/lise")):
        results = make_results("dp=2, tp=2", axes=("tp",), exponents=(10,), collectives=("all_reduce",))
        results.attrs["environment"] = {"NCCL_SOCKET_IFNAME": note, "HF_TOKEN": f"hf_{folder}"}
        run = RunData(
            ml.Plan("all_reduce", "tp", sizes="1K"), ml.DeviceMesh("dp=2, tp=2"), run_id=folder, source="mpi",
            where=note, state="done", hosts=["zuse17", "zuse18"], user="lise", results=results,
        )  # fmt: skip
        run.save(tmp_path / folder)
    command = ["compare", *(str(tmp_path / name) for name in ("zuse17-monday", "zuse17-tuesday"))]
    assert main(command) == 0
    plain = capsys.readouterr().out
    assert main([*command, "--redact"]) == 0
    redacted = capsys.readouterr().out
    for name in ("zuse17", "zuse18", "10.1.2.3", "lise", "hf_"):
        assert name in plain
        assert name not in redacted
    assert re.match(r"host-(\w+)-monday \(before\) → host-\1-tuesday \(after\)\n2 rows compared", redacted)


@pytest.mark.parametrize("command", ["bench", "demo", "report", "compare", "explain", "tune"])
def test_every_command_that_shows_what_was_measured_or_pasted_offers_redaction(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--redact" in capsys.readouterr().out


def test_a_corrupt_file_in_a_run_is_reported_in_one_line(
    thread_engines: ml.Engines, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = ml.bench(thread_engines, ml.DeviceMesh("tp=4"), sizes="1K", sampling=ml.Sampling(max_s=0.02, min_batches=6))
    run.wait(120)
    folder = run.save(tmp_path / "run")
    (folder / "results.parquet").write_bytes(b"PAR1")
    for command in (["report", str(folder)], ["compare", str(folder), str(folder)]):
        assert main(command) == 0
        err = capsys.readouterr().err
        assert (
            err.splitlines()[0] == f"meshlab: {folder}: results.parquet is corrupt; its rows were read from results.csv"
        )
    (folder / "results.csv").unlink()
    for command in (["report", str(folder)], ["compare", str(folder), str(folder)]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "results.parquet: the file is corrupt, and results.csv next to it is not complete either" in err


def test_bench_replaces_a_different_run_only_with_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = f"bench --mesh dp=2,tp=2 --sizes 1K --seconds 0.02 --backend threads --out {folder}"
    assert main(words(f"{command} --axis tp --axis dp")) == 0
    first = ml.Run.load(folder).run_id
    capsys.readouterr()
    assert main(words(f"{command} --axis tp")) == 2
    out, err = capsys.readouterr()
    assert "ready in" not in out
    assert (
        f"holds a different run, {first}; choose another folder, or pass --force to replace that run and its report"
        in err
    )
    assert main(words(f"{command} --axis tp --force")) == 0
    assert ml.Run.load(folder).run_id != first
    assert not list(folder.glob("report-bandwidth-dp.png"))
    assert main(words(f"bench --resume {folder} --backend threads --out {folder}")) == 0


def test_bench_prints_an_estimate_and_resumes_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = (
        f"bench all_reduce --mesh dp=2,tp=2 --axis tp --sizes 1K,4K --seconds 0.02 --backend threads --out {folder}"
    )
    assert main(words(f"{command} --grouping together,alone --launches 2 --shuffle --redact")) == 0
    out = capsys.readouterr().out
    assert "8 steps, about" in out
    assert "tp, one group at a time · 2 groups of 2" in out
    assert len(ml.Run.load(folder).results) == 2 * 2 * 2 * 2
    import platform

    assert platform.node() not in (folder / "run.json").read_text()
    before = ml.Run.load(folder)
    assert main(words(f"bench --resume {folder} --backend threads --out {tmp_path / 'again'}")) == 0
    again = ml.Run.load(tmp_path / "again")
    assert again.run_id == before.run_id
    assert again.results["time_us"].tolist() == before.results["time_us"].tolist()  # nothing was left to measure
    assert main(words(f"report {folder} --redact --out {tmp_path / 'report.md'}")) == 0


# So that it is killed while it measures, however late that is.
STOPS_IN_ITS_FOURTH_STEP = """
import itertools, sys, time
from meshlab.benchmark._executor import Executor
from meshlab.cli._main import main

numbers, measure = itertools.count(), Executor._measure
Executor._measure = lambda *arguments: time.sleep(600) if next(numbers) == 3 else measure(*arguments)
sys.exit(main(sys.argv[1:]))
"""


def test_bench_that_is_killed_continues_in_its_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = f"--mesh dp=2,tp=2 --sizes 1K:64K --seconds 0.05 --backend threads --out {folder}"
    command = [sys.executable, "-c", STOPS_IN_ITS_FOURTH_STEP, "bench", *words(options)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        n_done, deadline = 0, time.monotonic() + 120
        while n_done < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            if (folder / "run.json").exists():
                n_done = ml.Run.load(folder).progress.done
        process.kill()
    before = ml.Run.load(folder)
    assert (before.state, before.progress.done >= 2) == ("interrupted", True)
    assert main(words(f"report {folder}")) == 1
    assert "The run was interrupted" in (folder / "report.html").read_text()
    assert "The run was interrupted, so results are missing." in capsys.readouterr().out
    assert main(words(f"bench --resume {folder} --backend threads")) == 0
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out
    after = ml.Run.load(folder)
    assert (after.state, after.run_id) == ("done", before.run_id)
    assert after.results["time_us"].head(len(before.results)).tolist() == before.results["time_us"].tolist()
    assert "The run was interrupted" not in (folder / "report.html").read_text()


def test_bench_measures_pairs_and_concurrent_axes(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--mesh dp=2,tp=2 --sizes 1K --seconds 0.02 --backend threads"
    for option in ("--grouping", "--groups"):
        assert main(words(f"bench send send_recv --axis world {option} pairs {options}")) == 0
        assert "pairs of all ranks · 18 pairs and directions" in capsys.readouterr().out
    for option in ("--concurrent", "--beside"):
        assert main(words(f"bench all_reduce --axis tp {option} dp=reduce_scatter {options}")) == 0
        assert "tp, while dp runs reduce_scatter · 2 groups of 2" in capsys.readouterr().out


def test_a_run_that_loses_a_rank_keeps_its_rows_and_can_be_resumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ml.Run.wait

    def wait(run: ml.Run, *arguments: Any) -> Any:
        original(run, *arguments)
        raise EngineError(
            "rank 1 was killed by signal 9", hint="call engines.restart() to start new ranks", log="the log"
        )

    monkeypatch.setattr(ml.Run, "wait", wait)
    command = "bench --mesh tp=2 --sizes 1K --seconds 0.02 --backend threads"
    assert main(words(command)) == 1
    assert capsys.readouterr().err == "meshlab: rank 1 was killed by signal 9; run the command again\nthe log\n"
    assert main([*words(command), "--out", str(tmp_path / "run")]) == 1
    assert f"continue with meshlab bench --resume {tmp_path / 'run'}\n" in capsys.readouterr().err
    assert len(ml.Run.load(tmp_path / "run").results) == 1


@pytest.mark.parametrize("error", [AttributeError("no such method"), KeyboardInterrupt()])
def test_a_report_that_cannot_be_drawn_does_not_lose_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(ml.Report, "save", fail)
    folder = tmp_path / "run"
    assert main(words(f"bench --mesh tp=2 --sizes 1K --seconds 0.02 --backend threads --out {folder}")) == 1
    out, err = capsys.readouterr()
    assert f"the run is saved, but its report could not be drawn: {type(error).__name__}" in err
    assert out.endswith(f"run: {folder}\n")
    assert len(ml.Run.load(folder).results) == 1


def test_a_closed_pipe_ends_the_command_without_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "meshlab", "show", "dp=2, tp=4"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows_and_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "meshlab", "bench", "--mesh", "tp=2", "--sizes", "1K:64M", "--seconds", "0.3"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MESHLAB_PROGRESS": "0"},
    )
    with process:
        assert process.stdout is not None
        while "steps, about" not in process.stdout.readline():  # the run has started
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 130, err
    assert err.startswith("meshlab: interrupted; stopping after this step, and keeping the rows; press Ctrl-C again")
    run = ml.Run.load(tmp_path / "run")
    assert run.state == "cancelled"
    assert (run.results["status"] == "ok").all()
    assert (tmp_path / "run" / "report.html").exists()


def test_the_second_ctrl_c_ends_the_ranks_and_keeps_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = executor.measure_together

    is_in_second_step = threading.Event()

    def slow(comm: Any, everyone: Any, step: Any, *rest: Any) -> Any:
        if step.index:
            is_in_second_step.set()
            time.sleep(30)  # one long sleep, which cannot be interrupted
        return original(comm, everyone, step, *rest)

    def waits(frame: Any) -> bool:
        return frame is not None and (frame.f_code.co_qualname == "Run.wait" or waits(frame.f_back))

    monkeypatch.setattr(executor, "measure_together", slow)
    monkeypatch.setattr(commands, "_PATIENCE_S", 20.0)
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    is_over = threading.Event()

    def press() -> None:
        client = threading.main_thread().ident
        while not (is_in_second_step.is_set() and waits(sys._current_frames()[client])) and not is_over.wait(0.01):
            pass
        for text in ("stopping after this step", "ending the ranks"):
            if not is_over.is_set():
                os.kill(os.getpid(), signal.SIGINT)
            while text not in err.getvalue() and not is_over.wait(0.01):
                pass

    presses = threading.Thread(target=press)
    presses.start()
    out = tmp_path / "run"
    try:
        code = main(["bench", "--mesh", "tp=2", "--sizes", "1K:2K", "--backend", "threads", "--out", str(out)])
    finally:
        is_over.set()  # if the run ends early, the signal must not hit the tests
        presses.join()
    assert code == 130
    assert err.getvalue().splitlines() == [
        "meshlab: interrupted; stopping after this step, and keeping the rows; press Ctrl-C again to end the ranks now",
        "meshlab: ending the ranks; the rows measured so far are kept",
    ]
    run = ml.Run.load(out)
    assert run.state == "cancelled"
    assert run.results["status"].tolist() == ["ok", "cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "after_s",
    [
        0.3,  # while the controller starts
        pytest.param(0.7, marks=pytest.mark.long),
        1.6,  # while the engines start
        pytest.param(2.5, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_while_engines_start_prints_one_line_and_cleans_up(tmp_path: Path, after_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "meshlab", "bench", "--mesh", "tp=2", "--sizes", "1K:64M", "--out", "run"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MESHLAB_PROGRESS": "0", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    with process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("meshlab-*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 130, err
    assert err == "meshlab: interrupted\n"
    assert not list(tmp_path.glob("meshlab-*"))


def test_the_demo_rejects_a_launcher(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--mesh", "tp=2"]) == 2
    assert "measure on these ranks: mpiexec -n 2 meshlab bench --mesh dp=2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_lab_opens_the_first_notebook(tmp_path: Path) -> None:
    import socket
    import urllib.request

    pytest.importorskip("jupyterlab")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    (tmp_path / "work").mkdir()
    server = [f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=secret", "--ip=127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "meshlab", "lab", str(tmp_path / "work"), "--", "--no-browser", "--allow-root", *server],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **folders},
        start_new_session=True,
    )
    with process:
        try:
            deadline = time.monotonic() + 180
            while True:
                try:
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{port}/api/contents", headers={"Authorization": "token secret"}
                    )
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        assert "01_first_mesh.ipynb" in answer.read().decode()
                    break
                except OSError:
                    assert process.poll() is None, process.stderr.read() if process.stderr else ""
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=120)
    assert (tmp_path / "work" / "01_first_mesh.ipynb").stat().st_size > 1000


def test_lab_does_not_overwrite_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "01_first_mesh.ipynb").write_text("mine")
    called: list[list[str]] = []
    monkeypatch.setattr("meshlab.cli._commands.subprocess.call", lambda command: called.append(command) or 0)
    assert main(["lab", str(tmp_path)]) == 0
    assert (tmp_path / "01_first_mesh.ipynb").read_text() == "mine"
    assert called[0][-1] == str(tmp_path / "01_first_mesh.ipynb")
    assert main(["lab", str(tmp_path / "missing")]) == 2


def test_a_rehearsal_compares_layouts_and_writes_its_frame(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "steps.csv"
    options = "--set global_batch=4 --set layers=4 --rounds 1 --steps 1 --scale 0.25 --backend threads"
    assert main(words(f"rehearse llama3-8b --mesh dp=2,tp=2 --mesh tp=4 {options} --out {out}")) == 0
    printed = capsys.readouterr().out
    assert "No verdict about time: 4 ranks are threads of one process." in printed
    assert "tp (4 ranks, " in printed
    frame = pd.read_csv(out)
    assert frame["layout"].unique().tolist() == ["dp=2, tp=2", "tp=4"]
    assert frame["n_wrong"].dropna().eq(0).all()


def test_search_prints_the_best_layouts_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("layouts.csv", "layouts.png", "layouts.svg"):
        out = tmp_path / name
        command = f"search llama3-8b --cluster dgx-h100 --nodes 2 --set recompute=full --tp 1,2 --rows 3 --out '{out}'"
        assert main(words(command)) == 0
        assert out.stat().st_size > 1000
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["place", "mesh", "step"]
    assert sum(line.startswith("    1") for line in lines[:4]) >= 1
    assert any("is first" in line for line in lines)


def test_app_needs_voila(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["app"]) == 2
    assert "Voilà is not installed; run pip install '.[app]'" in capsys.readouterr().err


def test_app_rejects_an_unknown_machine_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert main(["app", "--cluster", "dgx-h1000"]) == 2
    assert "dgx-h1000" in capsys.readouterr().err


def test_the_page_of_the_app_is_a_program_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n")
    for cluster, mesh in ((None, None), ("dgx-h100", "dp=1, tp=8"), ("topo.txt", "tp=2")):
        code = commands._app_code(cluster, mesh)
        *lines, last = code.splitlines()
        scope: dict[str, Any] = {}
        exec("\n".join(lines), scope)
        assert eval(last, scope).mesh.world_size == {None: 32, "dgx-h100": 8, "topo.txt": 2}[cluster]
        assert Path.cwd() == tmp_path


CUT_LOG = "     1048576        262144     float     sum      -1    20.00   52.43   52.43      0\n"


@pytest.mark.parametrize(
    ("form", "start"),
    [("text", "No known problem"), ("markdown", "**No known"), ("html", "<!doctype html>"), ("json", '{\n "verdict"')],
)
def test_explain_prints_or_writes_every_format(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str, start: str
) -> None:
    log = tmp_path / "run.log"
    log.write_text(CUT_LOG)
    assert main(["explain", str(log), "--format", form]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(start)
    out = tmp_path / f"out.{ {'text': 'txt', 'markdown': 'md'}.get(form, form) }"
    assert main(["explain", str(log), "--out", str(out)]) == 0
    assert out.read_text() == printed
    assert capsys.readouterr().out.splitlines()[-1] == str(out)


def test_explain_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CUT_LOG.encode("utf-16"))))
    assert main(["explain", "-"]) == 0
    assert "peak busbw 52.4 GB/s" in capsys.readouterr().out


def test_explain_reads_several_files_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, text in (("a.log", CUT_LOG), ("b.txt", "DeviceMesh('dp=2, tp=4')")):
        (tmp_path / name).write_text(text)
    assert main(["explain", str(tmp_path / "a.log"), str(tmp_path / "b.txt")]) == 0
    printed = capsys.readouterr().out
    assert "peak busbw 52.4 GB/s" in printed
    assert "dp=2, tp=4: 8 ranks" in printed


def test_explain_exits_with_1_for_an_error_and_with_2_if_nothing_is_recognised(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.diagnosis import _explain as explaining
    from tests.diagnosis.texts_with_rules import RULES, printer_text

    log = tmp_path / "a.log"
    log.write_text(printer_text())
    assert main(["explain", str(log)]) == 2
    assert re.search(r"nothing was recognised: .*; paste ", capsys.readouterr().err)
    assert main(["explain", str(tmp_path / "missing.log")]) == 2
    assert "missing.log: No such file" in capsys.readouterr().err
    monkeypatch.setitem(explaining.explain.__kwdefaults__, "rules", RULES)
    assert main(["explain", str(log)]) == 1
    assert capsys.readouterr().out.startswith("The printer is jammed: lp0.")
    log.write_text("toner low")
    assert main(["explain", str(log)]) == 0


def test_explain_imports_neither_pandas_nor_matplotlib_nor_engines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("node1:1:2 [0] NCCL INFO NCCL version 2.26.6\n")
    code = (
        "import sys; from meshlab.cli._main import main; main(['explain', sys.argv[1]]); "
        "print([name for name in ('pandas', 'matplotlib', 'scipy', 'meshlab.engines._engines') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
