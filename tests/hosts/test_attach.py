"""Engines without MPI on two hosts, which become ranks of Gloo through their controller alone."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.hosts.network import Hosts, end_tree, wait_until

pytestmark = pytest.mark.full
pytest.importorskip("torch")

CLIENT = """
import sys
import ipyparallel
import meshlab as ml

client = ipyparallel.Client(profile_dir=sys.argv[1], cluster_id="test")
client.wait_for_engines(3, timeout=60)
with ml.attach(client, deadline_s=60) as engines:
    print(engines.where)
    print([(info.rank, info.host) for info in engines.ranks])
    print(engines.verify("dp=3")["is_right"].all())
    print(engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())["value"].tolist())
    run = ml.bench(engines, sizes="1K, 1M", sampling=ml.Sampling(max_s=0.2))
    print(run.wait(progress=False)["status"].tolist())
with ml.attach(client, backend="gloo") as engines:  # the same processes in another world
    print(engines.run(lambda comm: comm.ranks)["value"].tolist())
try:
    ml.attach(client, backend="nccl")
except ml.MeshlabError as error:
    print(error)
"""


@pytest.mark.parametrize("has_default_route", [False, True])
def test_two_engine_sets_without_mpi_become_ranks_of_gloo(hosts: Hosts, has_default_route: bool) -> None:
    profile = hosts.shared / f"profile-{has_default_route}"
    file = profile / "security" / "ipcontroller-test-engine.json"
    of_controller = ["--profile-dir", profile, "--cluster-id", "test"]
    if has_default_route:
        for name in ("h1", "h2"):
            hosts[name].add_default_route()
    with ExitStack() as stack:
        options = [f"--ip={hosts['login'].address}", "--IPController.enable_curve=True"]
        controller = hosts["login"].start(["python", "-m", "ipyparallel.controller", *of_controller, *options])
        stack.callback(end_tree, controller)
        wait_until(file.exists, subject="a controller")
        for host in ("h2", "h1", "h2"):  # in any order
            engine = hosts[host].start(["python", "-m", "ipyparallel.engine", "--file", file])
            stack.callback(end_tree, engine)
        done = hosts["login"].python(CLIENT, str(profile))
    lines = done.stdout.splitlines()
    assert lines[:-1] == [
        "3 ranks on 2 hosts · Gloo over eth0",
        "[(0, 'h1'), (1, 'h2'), (2, 'h2')]",
        "True",
        "[3.0, 3.0, 3.0]",
        "['ok', 'ok']",
        "[(0, 1, 2), (0, 1, 2), (0, 1, 2)]",
    ], done.stderr
    assert lines[-1].startswith("backend 'nccl' needs CuPy and nccl4py, which h")
    assert "encryption" not in done.stderr
