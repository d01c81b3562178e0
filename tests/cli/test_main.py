"""The command line as a whole, called in this process."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.cli._arguments import Command
from meshlab.cli._main import COMMANDS, join_axes, main

ROOT = Path(__file__).parents[2]


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
        ("search llama3-8b --cluster dgx-h100 --set dtype=float64", "float64 is unknown; pass --peak N in TFLOP/s"),
        ("search llama3-8b --cluster dgx-h100 --set recomputation=full", "(did you mean 'recompute'?); write --set"),
        ("search llama3-8b --cluster dgx-h10", "tapered-h100, or pass a file that describes hardware"),
        ("search llama3-8b --cluster dgx-h100 --rows 0", "--rows 0 must be positive"),
        ("search llama3-8b --cluster dgx-h100 --out a.pdf", "--out a.pdf must end in one of .csv, .png, .svg"),
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
        ("bench --resume no-such-folder", "no folder 'no-such-folder' exists; pass the folder of a saved run"),
        ("report no-such-folder", "no folder 'no-such-folder' exists"),
        ("show 'dp=-1, tp=8' --world-size 12", "12 ranks cannot be divided by tp=8"),
        ("tune --mesh tp=4 --axis pp", "unknown axis or group 'pp'; choose one of the axes tp"),
        ("tune all_reduced --mesh tp=4 --axis tp", "unknown collective 'all_reduced' (did you mean 'all_reduce'?)"),
        ("tune --mesh dp=1,tp=4 --axis dp", "the groups of dp have one rank, so nothing is sent; choose tp"),
        ("tune --mesh dp=2,tp=2 --axis dp,tp", "a tuning has one axis, not dp, tp"),
        ("tune --mesh tp=4 --axis tp --sizes 12Q", "'12Q' is not a size"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == 2
    err = capsys.readouterr().err
    assert err.startswith("meshlab: ")
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "usage", "message"),
    [
        ("shwo tp=2", "meshlab show", "unknown command 'shwo' (did you mean 'show'?); choose one of demo,"),
        ("xyz", "meshlab [-h]", "unknown command 'xyz'; choose one of demo,"),
        ("--verson", "meshlab [-h]", "unrecognized arguments: --verson (did you mean '--version'?)"),
        ("show dp=2 --axes dp", "meshlab show", "unrecognized arguments: --axes dp (did you mean '--axis'?)"),
        ("bench --output run", "meshlab bench", "unrecognized arguments: --output (did you mean '--out'?)"),
        ("bench --quick", "meshlab bench", "unrecognized arguments: --quick (did you mean '--sampling quick'?)"),
        ("report run -out r.html", "meshlab report", "unrecognized arguments: -out (did you mean '--out'?)"),
        ("bench --backend gllo", "meshlab bench", "invalid choice: 'gllo' (did you mean 'gloo'?); choose one of auto"),
    ],
)
def test_a_mistake_gets_the_usage_of_the_command_and_a_suggestion(
    capsys: pytest.CaptureFixture[str], command: str, usage: str, message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(command))
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"usage: {usage}")
    assert message in err.splitlines()[-1]


@pytest.mark.parametrize("option", ["-o", "--out"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_with_an_output_has_a_short_option_for_it(command: Command, option: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    actions = parser._option_string_actions
    if "--out" not in actions:
        assert command.name in ("doctor", "show", "compare", "app", "lab", "launch", "docs")
    elif command.name == "acceptance":  # its reports and its folder are two outputs
        assert actions["-o"].dest == "files"
    else:
        assert actions[option].dest == "out"


def test_the_size_of_the_world_is_the_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dp=-1, tp=2", "--world-size", "8"]) == 0
    by_size = capsys.readouterr().out
    assert main(["show", "dp=-1, tp=2", "--ranks", "8"]) == 0
    assert capsys.readouterr().out == by_size


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", ["", *(command.name for command in COMMANDS)])
def test_help_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert " ".join(out.split()).count("1GB is 10^9 bytes") == ("--sizes SIZES" in out)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_of_a_launcher_reports_bad_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", "4")
    assert main(shlex.split("bench --mesh tp=3")) == 2
    err = capsys.readouterr().err
    problem = "tp=3 has 3 ranks, but there are 4 engines"
    assert err == ("" if rank else f"meshlab: {problem}; start 3 processes\nmore: meshlab docs frameworks\n")
    with pytest.raises(SystemExit) as stop:
        main(shlex.split("bench --mesh tp=4 --quick"))
    assert stop.value.code == 2
    assert ("unrecognized arguments: --quick" in capsys.readouterr().err) == (rank == 0)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("bench --ranks 2", "--ranks 2 differs from the 4 processes that a launcher started; omit --ranks"),
        ("rehearse llama3-8b --mesh dp=-1 --ranks 2", "--ranks 2 differs from the 4 processes"),
        ("acceptance --ranks 2", "--ranks 2 differs from the 4 processes"),
        ("acceptance --gpus 0,1", "--gpus 0,1 has no effect on the processes that a launcher started; omit it"),
    ],
)
def test_a_choice_of_other_ranks_than_a_launcher_started_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, problem: str
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setattr("meshlab.engines._mpi_world.load_mpi", lambda: pytest.fail("MPI was initialised"))
    assert main(shlex.split(command)) == 2
    assert f"meshlab: {problem}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "bench all_reduce --mesh tp=2"])
def test_a_folder_that_cannot_be_written_is_reported_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*shlex.split(command), "--out", str(tmp_path / "file" / "out")]) == 2
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
        main(shlex.split(command))
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


def test_a_mesh_need_not_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dp=2,", "tp=4"]) == 0
    assert "dp=2, tp=4 · 8 ranks" in capsys.readouterr().out
    options = "--sizes 1K --seconds 0.02 --backend threads --axis dp,tp"
    assert main(shlex.split(f"bench all_reduce,broadcast --mesh dp=2 tp=2 {options}")) == 0
    out = capsys.readouterr().out
    assert "5 groups verified" in out
    assert "4 steps, about" in out


def test_a_file_that_cannot_be_read_is_an_error_of_every_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for words in (["explain"], ["predict", "tp=2", "--cluster"]):
        assert main([*words, "/proc/self/mem"]) == 2  # opens, but cannot be read
        assert capsys.readouterr().err == "meshlab: reading or writing failed: Input/output error\n"
    assert main(["explain", str(tmp_path / "loop")]) == 2
    assert "loop: Too many levels of symbolic links" in capsys.readouterr().err


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


def test_a_closed_pipe_ends_the_command_without_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "meshlab", "show", "dp=2, tp=4"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


def test_the_words_of_a_mesh_without_quotes_are_joined() -> None:
    words = ["bench", "broadcast", "--mesh", "dp=2", "tp=4", "--ranks", "8"]
    assert join_axes(words) == ["bench", "broadcast", "--mesh", "dp=2 tp=4", "--ranks", "8"]
