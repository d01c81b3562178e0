"""The acceptance of a machine: its stages, what makes them fail or be skipped, and how it is continued."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._thresholds import Thresholds
from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshError, ParseError
from meshlab.benchmark._run import Run
from meshlab.cli._main import main
from meshlab.commissioning import _acceptance as accepting
from meshlab.commissioning import _plans as planning
from meshlab.commissioning._doctor import Check, run_checks
from meshlab.commissioning._plans import confirming, machine_mesh, matching_preset, plans
from meshlab.report._stages import StageResult, Stages
from meshlab.runs._rundata import RunData

FINE = [Check("python", "ok", "3.11")]
LIMIT = '[[limits]]\nmetric = "busbw_gbs"\ncollective = "all_reduce"\nat_least = {}'


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller messages and fewer batches: the tests are about the stages, not about times."""
    sampling: Any = ml.Sampling(min_batches=6, max_batches=8, max_s=0.02)
    monkeypatch.setitem(planning._EXTENTS, ("cpu", True), planning._Extent("1K", "1K:4K*4", "2K", sampling, "1K, 4K"))


def accept(engines: ml.Engines, mesh: str | None = None, **options: Any) -> Any:
    return ml.acceptance(engines, mesh, **{"quick": True, "installation": FINE, **options})


def outcomes(found: Any) -> dict[str, str]:
    return {stage.name: stage.outcome for stage in found.stages.items}


def stage(found: Any, name: str) -> StageResult:
    return next(one for one in found.stages.items if one.name == name)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that share cores are slow by chance, so no pair is slow unless a test says so."""
    monkeypatch.setattr(accepting, "_slow_pairs", lambda results, hosts, least: results[:0])


@pytest.fixture
def plant_slow_pair(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plants a slow pair into what a stage has measured, in the given measurements."""

    def plant(*which: int, oversubscribed: str = "") -> None:
        n_calls = 0
        real = accepting._slow_pairs

        def slow_pairs(results: pd.DataFrame, hosts: Any, *, least: float) -> pd.DataFrame:
            nonlocal n_calls
            n_calls += 1
            times = results.assign(time_us=10.0, time_us_lo=9.9, time_us_hi=10.1, busbw_gbs=10.0)
            is_planted = times["src_rank"].eq(2) & times["dst_rank"].eq(0) & (n_calls in which)
            times.loc[is_planted, ["time_us", "time_us_lo", "time_us_hi", "busbw_gbs"]] = [100.0, 99.0, 101.0, 1.0]
            return real(times, hosts, least=least)

        monkeypatch.setattr(accepting, "_slow_pairs", slow_pairs)
        if oversubscribed:
            attrs = RunData.attrs.fget  # type: ignore[attr-defined]
            monkeypatch.setattr(RunData, "attrs", property(lambda run: attrs(run) | {"oversubscribed": oversubscribed}))

    return plant


def test_all_stages_of_threads(thread_engines: ml.Engines, faster: None) -> None:
    seen: list[StageResult] = []
    found = accept(thread_engines, "dp=2, tp=2", on_stage=seen.append)
    assert tuple(seen) == found.stages.items
    assert outcomes(found) == {
        "installation": "passed",
        "health": "skipped",
        "groups": "passed",
        "pairs": "passed",
        "sweep": "passed",
        "contention": "passed",
        "reference": "skipped",
        "thresholds": "skipped",
    }
    assert (found.outcome, found.is_passed) == ("not decided", False)
    assert found.verdict == (
        "Not decided: nothing failed, but the speed was not judged. 5 stages passed, and health, reference and "
        "thresholds were skipped."
    )
    assert "is unknown" in stage(found, "reference").sentences[0]
    # Every result is measured in one way: no row of one stage has the key of a row of another.
    results = found.run.results
    assert set(results["axis"]) == {"dp", "tp", "world"}
    keys = ["collective", "axis", "group", "grouping", "size_bytes", "src_rank", "dst_rank"]
    assert not results.duplicated(keys).any()
    assert results["run_id"].nunique() == 1
    assert set(found.run.samples["step"]) == set(results["step"])


def test_the_report_begins_with_the_stages(thread_engines: ml.Engines, faster: None, tmp_path: Path) -> None:
    found = accept(thread_engines, out=tmp_path / "a")
    html = found.report().html()
    order = [
        "Not decided: nothing failed",
        ">installation<",
        ">thresholds<",
        ">Measurements<",
        ">measured<",
        ">Method<",
    ]
    assert [html.index(text) for text in order] == sorted(html.index(text) for text in order)
    assert "Skipped: the ranks run on CPUs" in html
    assert found.report().markdown().index("**sweep**") < found.report().markdown().index("**measured**")
    assert "meshlab acceptance --mesh &#34;all_ranks=4&#34; --backend threads --quick" in html
    suite = ET.fromstring(found.report().junit())[0]
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases["sweep"] == ["system-out"]
    assert cases["reference"] == ["skipped"]
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "1", "4")
    assert len(ml.Report.read(found.save(tmp_path / "a.html")).results) == len(found.run.results)
    assert "nothing failed" in str(found)
    assert "sweep" in found._repr_html_()


@pytest.mark.full
def test_redacted_reports_have_no_host_names(
    thread_engines: ml.Engines, faster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = accept(thread_engines, installation=[Check("mpiexec", "warning", "/home/alice/bin on node17", "move it")])
    assert "alice" in found.report().markdown()
    assert "alice" not in found.report(redact=True).markdown()


@pytest.mark.parametrize(("which", "outcome"), [((), "passed"), ((1,), "passed"), ((1, 2), "failed")])
def test_a_slow_pair_fails_if_a_second_measurement_confirms_it(
    thread_engines: ml.Engines, plant_slow_pair: Any, which: tuple[int, ...], outcome: str
) -> None:
    plant_slow_pair(*which)
    found = accept(thread_engines)
    assert outcomes(found)["pairs"] == outcome
    assert found.outcome == ("failed" if outcome == "failed" else "not decided")
    pairs = stage(found, "pairs").sentences
    if outcome == "failed":
        text = "1 pair is SLOW in two measurements: send 2→0 (1.00 GB/s, 10 % of the median)."
        assert pairs[0].replace("\N{THIN SPACE}", " ") == text
        assert found.verdict.startswith("FAILED: pairs. 1 pair is SLOW")
        assert 'failures="1"' in found.report().junit()
    elif which:
        assert "measured again" in pairs[-1]


def test_slow_pairs_do_not_count_if_ranks_share_cores(thread_engines: ml.Engines, plant_slow_pair: Any) -> None:
    plant_slow_pair(1, 2, oversubscribed="4 ranks share 2 cores")
    found = accept(thread_engines)
    assert stage(found, "pairs").outcome == "passed"
    assert stage(found, "pairs").sentences[-1].endswith("No pair is judged, because 4 ranks share 2 cores.")


def test_pairs_between_hosts_are_not_compared_with_pairs_on_one_host() -> None:
    ends = [(0, 1), (2, 3), (1, 0), (0, 2), (1, 3), (0, 3)]
    rows = [
        {"src_rank": a, "dst_rank": b, "busbw_gbs": rate, "time_us": 100 / rate, "time_us_lo": 99 / rate}
        for (a, b), rate in zip(ends, [100.0, 100.0, 100.0, 10.0, 10.0, 3.0], strict=True)
    ]
    results = pd.DataFrame(rows).assign(
        collective="send", axis="all", grouping="pairs", status="ok", size_bytes=1024, dtype="float32", mode="pipelined"
    )
    slow = accepting._slow_pairs(results, ["a", "a", "b", "b"], least=0.8)
    assert slow[["src_rank", "dst_rank"]].to_numpy().tolist() == [[0, 3]]
    assert len(accepting._slow_pairs(results, ["a"] * 4, least=0.8)) == 3


@pytest.mark.parametrize(("limit", "outcome"), [(1e-9, "passed"), (1e9, "failed")])
def test_thresholds(thread_engines: ml.Engines, faster: None, limit: float, outcome: str) -> None:
    found = accept(thread_engines, "dp=4, tp=1" if limit < 1 else "dp=2, tp=2", thresholds=LIMIT.format(limit))
    assert (found.outcome, outcomes(found)["thresholds"]) == (outcome, outcome)
    assert "MISSED" in found.verdict if outcome == "failed" else "reference" in found.verdict
    assert found.report().is_passed == (outcome == "passed")


def test_what_thresholds_name_is_measured_too(thread_engines: ml.Engines) -> None:
    text = """
        [[limits]]
        metric = "time_us"
        collective = "broadcast"
        dtype = "float64"
        min_size = "8M"
        at_most = 1e9
        [[limits]]
        metric = "time_us"
        mode = "graph"
        max_size = 8
        at_most = 1e9
    """
    planned = plans(ml.DeviceMesh(tp=4), thread_engines, Thresholds.read(text), quick=True)
    plan = planned["sweep"].plan
    assert plan is not None
    assert "broadcast" in plan.collective
    assert (plan.sizes[0], plan.sizes[-1]) == (8, 8 << 20)
    assert plan.dtype == ("float32", "float64")
    assert plan.mode == ("pipelined",)  # threads have no graphs, so this limit is not measured, which is a failure


def test_one_rank_is_not_accepted() -> None:
    with ml.launch(1, backend="threads") as engines:
        found = accept(engines)
    assert found.outcome == "not decided"
    assert set(outcomes(found).values()) == {"passed", "skipped"}
    assert found.verdict == "Not accepted, because nothing was measured: there is only one rank."
    assert 'errors="1"' in found.report().junit()
    assert not found.report().is_passed


def test_a_broken_installation_and_wrong_groups_fail(
    thread_engines: ml.Engines, faster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> None:
        raise CommunicatorError("group tp_0 has ranks (0, 2), not (0, 1)")

    monkeypatch.setattr(thread_engines, "verify", wrong)
    found = accept(thread_engines, installation=[Check("mpi", "broken", "no library", "pip install mpich")])
    assert [name for name, outcome in outcomes(found).items() if outcome == "failed"] == ["installation", "groups"]
    assert found.verdict == "FAILED: installation and groups. mpi is broken: no library; pip install mpich."


def test_a_broken_library_that_the_backend_does_not_need_is_a_note(
    thread_engines: ml.Engines, faster: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('libmpi.so.12: cannot open')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    found = accept(thread_engines, installation=run_checks())
    assert stage(found, "installation").outcome == "passed"
    (note,) = [sentence for sentence in stage(found, "installation").sentences if "libmpi" in sentence]
    assert note.startswith("mpi is broken, but threads does not need it: ")
    over_mpi, _ = accepting._installation([Check("mpi", "broken", "no library", "pip install mpich", "mpi")], ["mpi"])
    assert over_mpi == "failed"


def test_faults_of_the_hardware_fail() -> None:
    broken = ml.topology.read("     GPU0 GPU1 GPU2\nGPU0  X NV18 NODE\nGPU1 NV18 X NODE\nGPU2 NODE NODE X")
    assert accepting._health(broken, "")[0] == "failed"
    assert accepting._health(ml.preset("dgx-h100"), "")[0] == "passed"


def test_ranks_that_die_fail_a_stage_and_skip_the_next(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(run: Run) -> None:
        run.cancel()
        thread_engines.kill()
        raise EngineError("rank 2 ended")

    monkeypatch.setattr(accepting, "_wait", die)
    found = accept(thread_engines)
    assert (outcomes(found)["pairs"], outcomes(found)["sweep"]) == ("failed", "skipped")
    assert found.outcome == "failed"


def test_interrupted_and_continued(
    thread_engines: ml.Engines, faster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real, n_waits = tmp_path / "a", accepting._wait, 0

    def interrupt(run: Run) -> None:
        nonlocal n_waits
        n_waits += 1
        if n_waits == 2:
            run.cancel()
            run.wait()
            raise KeyboardInterrupt
        real(run)

    monkeypatch.setattr(accepting, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt) as stop:
        accept(thread_engines, "dp=2, tp=2", out=folder, thresholds=LIMIT.format(1e-9))
    before = stop.value.measured  # type: ignore[attr-defined]
    assert before.outcome == "not decided"
    assert before.verdict == "Not accepted: interrupted in the stage sweep."
    assert [outcomes(before)[name] for name in ("pairs", "sweep", "contention", "thresholds")] == [
        "passed",
        "skipped",
        "skipped",
        "skipped",
    ]
    pairs = Run.load(folder / "pairs")
    found = ml.acceptance(thread_engines, resume=folder, installation=FINE)
    assert found.outcome == outcomes(found)["thresholds"] == "passed"
    assert found.mesh == ml.DeviceMesh("dp=2, tp=2")
    again = Run.load(folder / "pairs")
    assert again.run_id == pairs.run_id
    pd.testing.assert_frame_equal(again.results, pairs.results)
    assert Run.load(folder / "sweep").state == "done"
    with pytest.raises(BenchError, match=r"holds an acceptance with the mesh dp=2, tp=2, not tp=4"):
        accept(thread_engines, "tp=4", resume=folder)
    with pytest.raises(BenchError, match="holds an acceptance with other thresholds"):
        accept(thread_engines, resume=folder, thresholds=LIMIT.format(3))
    with pytest.raises(BenchError, match=r"holds another acceptance; continue it with resume="):
        accept(thread_engines, out=folder)


def test_folders_that_do_not_fit(thread_engines: ml.Engines, faster: None, tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="holds no acceptance: No such file"):
        accept(thread_engines, resume=tmp_path)
    ml.bench(thread_engines, sizes="1K", out=tmp_path / "run").wait()
    with pytest.raises(BenchError, match="holds a different run"):
        accept(thread_engines, out=tmp_path / "run")
    accept(thread_engines, out=tmp_path / "a")
    Run.load(tmp_path / "run").save(tmp_path / "a" / "pairs", overwrite=True)
    with pytest.raises(BenchError, match="belongs to another acceptance: it has a different plan"):
        accept(thread_engines, resume=tmp_path / "a")
    accept(thread_engines, out=tmp_path / "a", overwrite=True)
    path = tmp_path / "a" / "acceptance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 7}))
    with pytest.raises(ParseError, match="schema 7, but this version of meshlab reads 1"):
        accept(thread_engines, resume=tmp_path / "a")


def test_a_mesh_that_does_not_fit(thread_engines: ml.Engines) -> None:
    with pytest.raises(MeshError, match="tp=3 has 3 ranks, but there are 4 engines"):
        accept(thread_engines, "tp=3")


def test_the_mesh_of_a_machine() -> None:
    assert machine_mesh(["a"] * 4 + ["b"] * 4) == ml.DeviceMesh(node=2, local=4)
    assert machine_mesh(["a", "b"] * 4) == ml.DeviceMesh(all_ranks=8)  # the ranks of a node are not neighbours
    assert machine_mesh(["a", "b"]) == ml.DeviceMesh(all_ranks=2)  # one rank per node
    dgx = ml.preset("dgx-h100", nodes=1)
    devices = [SimpleNamespace(numa=numa) for numa in "00001111"]
    sockets: Any = SimpleNamespace(n_nodes=1, n_devices=8, node=lambda _: SimpleNamespace(devices=devices))
    assert machine_mesh(["a"] * 8, sockets) == ml.DeviceMesh(socket=2, local=4)
    assert machine_mesh(["a"] * 4, dgx) == ml.DeviceMesh(all_ranks=4)
    assert matching_preset(None, 8) is None
    assert matching_preset(dgx, 4) is None


def test_the_verdict_of_stages() -> None:
    passed, failed = StageResult("sweep", "passed", ("ok.",)), StageResult("pairs", "failed", ("bad.",))
    assert Stages((passed,), "sweep").headline.sentences == ("Accepted: all 1 stage passed.",)
    assert Stages((passed, failed), "sweep").outcome == "failed"
    assert Stages((passed,), "sweep", interruption="interrupted").outcome == "not decided"
    assert Stages((StageResult("sweep", "skipped", ("x.",)),), "sweep").outcome == "not decided"


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mesh", "tp=3", "--ranks", "4"], "tp=3 has 3 ranks, but there are 4 engines; pass --ranks 3, or omit"),
        (["--thresholds", "dgx-h10"], "no file 'dgx-h10' exists (did you mean 'dgx-h100'?)"),
        (["--thresholds", "limits.toml"], "unknown key 'at_lest' in limit 1 (did you mean 'at_least'?)"),
        (["-o", "a.htm"], "unknown suffix '.htm' of 'a.htm' (did you mean '.html'?); choose one of .html"),
        (["-o", "nowhere/a.html"], "-o nowhere/a.html is in a folder that does not exist; create it first"),
        (["--resume", "nowhere"], "nowhere holds no acceptance"),
        (["--out", "full"], "the folder full holds another acceptance; continue it with --resume, choose"),
        (["--ranks", "0"], "--ranks 0 must be positive"),
        (["--gpus", "a"], "--gpus 'a' is not a list of integers; write --gpus 0,1"),
        (["--redact", "--resume", "full"], "--redact cannot continue an acceptance"),
    ],
)
def test_bad_input_starts_nothing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.toml").write_text('[[limits]]\nmetric = "busbw_gbs"\nat_lest = 3\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "acceptance.json").write_text("{}")
    monkeypatch.setattr("meshlab.engines._launch.launch", lambda *_, **__: pytest.fail("started ranks"))
    assert main(["acceptance", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_the_command_on_mpi_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "node7"
    limits = tmp_path / "limits.toml"
    limits.write_text(LIMIT.format(1e9))
    command = ["acceptance", "--backend", "mpi", "--mesh", "dp=2, tp=2", "--quick", "--thresholds", str(limits)]
    assert main([*command, "--out", str(folder), "-o", str(tmp_path / "ci.xml"), "--redact"]) == 1
    out = capsys.readouterr().out
    assert "✓ sweep" in out
    assert "✕ thresholds" in out
    assert re.search("– reference +skipped: the expected speed is unknown", out)
    assert "FAILED: thresholds" in out
    names = {path.name for path in folder.iterdir()}
    assert {"acceptance.json", "pairs", "sweep", "contention", "report.html", "report.md", "junit.xml"} <= names
    assert ET.parse(tmp_path / "ci.xml").getroot()[0].get("failures") == "2"
    assert Run.load(folder / "sweep").user == ""
    assert main(["acceptance", "--resume", str(folder), "--ranks", "3"]) == 2


@pytest.fixture
def three_hosts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Six ranks that seem to run on three hosts."""
    with ml.launch(6, backend="threads") as engines:
        engines.ranks = tuple(replace(info, host=f"n{info.rank // 2}") for info in engines.ranks)
        yield engines


@pytest.fixture
def plant_slow_host(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the times of messages, of which those of a host are slow in the given measurements."""

    def plant(host: str, *which: int) -> None:
        n_calls = 0
        real = accepting.paths_between

        def paths_between(results: pd.DataFrame, hosts: Any, *arguments: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            ends = results[["src_rank", "dst_rank"]].fillna(0).astype(int)
            is_slow = (ends.map(lambda rank: hosts[rank]) == host).any(axis=1) & (n_calls in which)
            return real(results.assign(min_us=np.where(is_slow, 50_000.0, 100.0)), hosts, *arguments)

        monkeypatch.setattr(accepting, "paths_between", paths_between)
        monkeypatch.setattr(accepting, "slow_alone", lambda times, limits: {})

    return plant


@pytest.mark.full
def test_a_slow_host_fails_alone_and_is_named_everywhere(
    three_hosts: ml.Engines, faster: None, plant_slow_host: Any, tmp_path: Path
) -> None:
    plant_slow_host("n1", 1, 2, 3)
    found = accept(three_hosts, out=tmp_path / "a")
    assert found.mesh == ml.DeviceMesh(node=3, local=2)
    assert (outcomes(found)["fabric"], outcomes(found)["nodes"], outcomes(found)["pairs"]) == (
        "failed",
        "failed",
        "passed",
    )
    assert stage(found, "fabric").sentences[0] == "N1 is SLOW in two measurements."
    assert stage(found, "nodes").sentences[0] == "1 host failed: n1."
    assert found.nodes.set_index("host")["outcome"].to_dict() == {"n0": "passed", "n1": "failed", "n2": "passed"}
    assert found.nodes["ranks"].tolist() == [(0, 1), (2, 3), (4, 5)]
    suite = ET.fromstring(found.report().junit())[0]
    cases = {case.get("name"): case[0].tag for case in suite if case.get("classname") == "meshlab.acceptance.nodes"}
    assert cases == {"n0": "system-out", "n1": "failure", "n2": "system-out"}
    report = found.report()
    assert "<h2>Hosts</h2>" in report.html()
    assert "Slow: n1" in report.html()
    assert "| n1 | ✕ failed | 2, 3 |" in report.markdown()
    hidden = found.report(redact=True).markdown()
    assert "n1" not in hidden.replace("1 n", "")
    again = accept(three_hosts, resume=tmp_path / "a")
    assert set(again.runs) == set(found.runs)


@pytest.mark.full
def test_a_host_that_was_slow_once_passes(three_hosts: ml.Engines, faster: None, plant_slow_host: Any) -> None:
    plant_slow_host("n1", 1, 2)
    found = accept(three_hosts)
    assert (outcomes(found)["fabric"], outcomes(found)["nodes"]) == ("passed", "passed")
    assert "when they were measured again" in " ".join(stage(found, "fabric").sentences)


@pytest.mark.full
@pytest.mark.parametrize("n_measured", [1, 2, 3])
def test_a_measurement_that_fails_names_the_parts_that_were_slow_before(
    three_hosts: ml.Engines,
    faster: None,
    plant_slow_host: Any,
    monkeypatch: pytest.MonkeyPatch,
    n_measured: int,
) -> None:
    real, n_fabric = accepting.bench, 0

    def bench(engines: ml.Engines, mesh: Any, plan: ml.Plan, **options: Any) -> Run:
        nonlocal n_fabric
        n_fabric += plan in (fabric, confirming(fabric))
        if n_fabric > n_measured:
            raise EngineError("rank 3 is gone")
        return real(engines, mesh, plan, **options)

    fabric = plans(ml.DeviceMesh(node=3, local=2), three_hosts, None, quick=True)["fabric"].plan
    assert fabric is not None
    plant_slow_host("n1", *range(1, 9))
    monkeypatch.setattr(accepting, "may_be_chance", lambda times: True)
    monkeypatch.setattr(accepting, "bench", bench)
    found = accept(three_hosts)
    before = "measurement before" if n_measured == 1 else "measurements before"
    assert stage(found, "fabric").outcome == "failed"
    assert stage(found, "fabric").sentences[:2] == ("rank 3 is gone.", f"In the {before}, the slow parts were n1.")


@pytest.mark.full
def test_the_last_measurement_between_hosts_is_continued(
    three_hosts: ml.Engines, faster: None, plant_slow_host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real, n_waits = tmp_path / "a", accepting._wait, 0

    def interrupt(run: Run) -> None:
        nonlocal n_waits
        n_waits += 1
        real(run)
        if n_waits == 4:  # of the pairs, and of the paths between hosts
            raise KeyboardInterrupt

    plant_slow_host("n1", *range(1, 20))
    monkeypatch.setattr(accepting, "may_be_chance", lambda times: True)
    monkeypatch.setattr(accepting, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        accept(three_hosts, out=folder)
    third = Run.load(folder / "fabric-again-2")
    found = accept(three_hosts, resume=folder)
    assert stage(found, "fabric").sentences[0] == "N1 is SLOW in four measurements."
    assert Run.load(folder / "fabric-again-2").run_id == third.run_id
    pd.testing.assert_frame_equal(Run.load(folder / "fabric-again-2").results, third.results)
    assert Run.load(folder / "fabric-again-3").state == "done"


def test_the_reason_for_a_mesh_is_given() -> None:
    def reason(*hosts: str) -> str:
        return planning.mesh_reason(machine_mesh(hosts), hosts)

    assert reason("a", "a", "b", "b") == "there are 2 hosts with 2 ranks each"
    assert reason("a", "a") == "all ranks are on one host"
    assert reason("a", "b") == "there is one rank per host"
    assert reason("a", "a", "b") == "the hosts have different numbers of ranks (a: 2, b: 1)"
    assert "srun -m block or mpiexec -ppn 2" in reason("a", "b", "a", "b")


def test_the_fabric_is_measured_on_the_axis_between_the_hosts() -> None:
    block = ["a", "a", "b", "b"]
    assert planning.fabric_axis(ml.DeviceMesh("node=2, local=2"), block) == "node"
    assert planning.fabric_axis(ml.DeviceMesh("dp=2, tp=2"), ["a", "b", "a", "b"]) == "tp"
    assert planning.fabric_axis(ml.DeviceMesh("all_ranks=4"), block) == "world"
    assert planning.fabric_axis(ml.DeviceMesh("all_ranks=4"), ["a"] * 4) is None
    assert planning.fabric_axis(ml.DeviceMesh("x=128"), ["a", "b"] * 64) is None
