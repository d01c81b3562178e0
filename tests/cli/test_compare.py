"""The command ``meshlab compare``, called in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.cli._main import main


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
        assert "is not a positive fraction; write 0.05 or 5% for 5 % more time" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "wednesday"), str(tmp_path / "monday")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot read " in err
    assert "wednesday: No such file or directory; pass the folder of a run" in err


def test_a_comparison_can_be_printed_without_names(
    make_results: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from meshlab.runs._rundata import RunData

    for folder, note in (("zuse17-monday", "zuse17 with 10.1.2.3"), ("zuse17-tuesday", "zuse18, seen by /home/lise")):
        results = make_results("dp=2, tp=2", axes=("tp",), exponents=(10,), collectives=("all_reduce",))
        results.attrs["environment"] = {"NCCL_SOCKET_IFNAME": note, "HF_TOKEN": f"hf_{folder}"}
        run = RunData(
            ml.Plan("all_reduce", "tp", sizes="1K"),
            ml.DeviceMesh("dp=2, tp=2"),
            run_id=folder,
            source="mpi",
            where=note,
            state="done",
            hosts=["zuse17", "zuse18"],
            user="lise",
            results=results,
        )
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
