"""A script as users write it: every public function as in the README. It is checked by mypy and pyright, and runs.

``python user_script.py FOLDER`` writes its files into a folder. Functions that need GPUs, several hosts or another
process are checked, but do not run.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshlab as ml


def describe() -> ml.DeviceMesh:
    mesh = ml.DeviceMesh("dp=2, tp=2")
    group: ml.Group = mesh["tp"][0]
    ranks: list[int] = list(group.ranks)
    assert ranks == [0, 1]
    coordinates: dict[str, int] = mesh.coordinates(3)
    assert coordinates == {"dp": 1, "tp": 1}
    names: list[str] = mesh.group_names()
    assert names[0] == "dp_0"
    assert mesh.to("megatron").text.startswith("RankGenerator")
    other = ml.DeviceMesh.read("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", world_size=8)
    assert len(other.diff("dp=2, pp=2, tp=2").frame())
    try:
        ml.DeviceMesh("dp=2, tp=3", world_size=8)
    except ml.MeshlabError as error:
        print(error.message, error.hint)
    mesh.plot("tp")
    return mesh


def decide(folder: Path) -> None:
    big, cluster = ml.DeviceMesh("pp=2, dp=2, tp=8"), ml.preset("dgx-h100", nodes=4)
    placement = ml.place(big, cluster)
    assert "NVLink" in placement.explain()
    words: str = placement.loads("tp").algorithm_words
    assert words
    ml.plot.topology(big, cluster, axis="dp", group=0)
    problems = ml.probe().health()
    assert isinstance(problems.summary, str)
    frame = ml.predict(big, cluster).frame().query("size_bytes == 2**30")
    assert {"axis", "busbw_gbs"} <= set(frame.columns)
    calibration = ml.calibrate(ml.example().query("mode == 'graph'"), "dgx-h200")
    ml.predict("tp=2", "dgx-h200", calibration=calibration).plot()
    job = ml.Job.preset("llama3-8b")
    layouts = ml.search(cluster, job)
    best: ml.DeviceMesh = layouts.mesh(0)
    print(layouts.summary(2), job.memory(best), job.volumes(best), sep="\n")
    workbench = ml.Workbench(cluster, big, axis="pp", job=job)
    workbench.failed = ["node1/NIC5"]
    workbench.undo()
    saved: Path = workbench.save(folder / "workbench.html")
    assert saved.exists()


def measure(mesh: ml.DeviceMesh, folder: Path) -> None:
    quick = ml.Sampling(max_s=0.02, min_batches=6)

    def gradients(comm: ml.Communicator) -> Callable[[], Any]:
        buffer = comm.xp.zeros(1000)
        call = comm.prepare("all_reduce", buffer, buffer)
        return lambda: call()

    with ml.launch(4, backend="threads") as engines:
        checks = engines.verify(mesh)
        assert bool(checks["is_right"].all())
        sums = engines.run(lambda comm: comm.all_reduce(comm.xp.ones(3)), mesh, axis="tp")
        assert len(sums) == 4
        run: ml.Run = ml.bench(engines, mesh, ["all_reduce", "all_gather"], axis="tp", sizes="4K, 64K", sampling=quick)
        results = run.wait()
        assert set(results["status"]) == {"ok"}
        print(run.table(), run.estimate, ml.describe(), sep="\n")
        run.plot()
        report = ml.Report(run, cluster="dgx-h100")
        assert report.outcome in ("passed", "failed", "not decided")
        report.save(folder / "report.html")
        run.save(folder / "run1")
        loaded = ml.Run.load(folder / "run1")
        assert ml.compare(loaded, run).counts["WRONG"] == 0
        both = ml.bench(engines, mesh, axis="tp", sizes="4K", grouping="together, alone", sampling=quick)
        both.wait()
        print(both.contention(), both.stragglers(), both.spikes(), sep="\n")
        pairs = ml.bench_pairs(engines, mesh, sizes="4K", sampling=quick)
        pairs.wait()
        ml.plot.matrix(pairs.matrix())
        own = ml.bench(engines, mesh, gradients, axis="dp", sampling=quick)
        own.wait()
        again = ml.bench(engines, resume=folder / "run1", out=folder / "run1")
        again.wait()
        (folder / "log.txt").write_text(run.to_nccl_tests())
    log = ml.nccl_tests.read(folder / "log.txt")
    assert log.sections[0].collective == "all_reduce"


def understand(folder: Path) -> None:
    judgement = ml.judge(ml.example(), cluster="dgx-h200")
    verdict: str = judgement.verdict.word
    assert verdict
    explanation = ml.explain("node7:41:52 [0] NCCL WARN Call to connect to 10.0.0.4<41301> failed : Connection refused")
    for finding in explanation.findings:
        print(finding.code, finding.do)
    reading = ml.read(folder / "log.txt")
    print(reading.kind, reading.value)
    trace = ml.Trace.example()
    print(trace.by_axis(steps=False), trace.explain(), trace.against(ml.predict(trace.mesh(), "dgx-h100")), sep="\n")
    trace.plot("timeline", step=0)
    tuning = ml.example("tuning")
    option: str = tuning.option_for("all_reduce", "2M")
    assert option
    tuning.plot()
    ml.plot.bandwidth(ml.example())


def need_more(engines: ml.Engines, mesh: ml.DeviceMesh, client: Any) -> None:
    """Use what takes minutes, GPUs or several hosts."""
    tuning = ml.tune(engines, mesh, ["all_reduce", "all_gather"], axis="tp")
    tuning.save("tuning.json")
    steps = ml.rehearse(engines, ["dp=2, tp=2", "tp=4"], "llama3-8b", rounds=1, steps=1)
    steps.plot()
    sides = {"separate": {"in_place": False}, "in place": {"in_place": True}}
    print(ml.benchmark.compare_now(engines, mesh, sides, axis="tp", sizes="64K", budget_s=2).headline)
    print(ml.compare_env(mesh, {"default": {}, "ring": {"NCCL_ALGO": "Ring"}}).headlines)
    with ml.attach(client) as attached:
        attached.restart()
    outcome = ml.acceptance(engines)
    assert outcome.is_passed
    joined = ml.engines.join()
    if joined is not None:
        joined.close()


def main(folder: Path) -> None:
    mesh = describe()
    decide(folder)
    measure(mesh, folder)
    understand(folder)
    print("every part of the script ran")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
