"""Redaction: nothing that identifies a host, a user or hardware is left in any file that somebody shares."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import BenchError
from meshlab.cli._main import main
from meshlab.runs._redact import Redactor, redactor_of
from meshlab.runs._rundata import RunData
from meshlab.topology import Cluster, Device, Nic, Node

UUID = "0a1b2c3d-1111-2222-3333-44445555cafe"
PRIVATE_KEY = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nzzTopSecret\n-----END OPENSSH PRIVATE KEY-----"
)

# Where each secret is planted, and the part of it that must not be left anywhere.
IN_LOG = {
    "zebra7-ib0:41:52 [0] NCCL INFO Bootstrap : Using ib0": "zebra7",  # an interface of a listed host
    "ZEBRA7 is slow, zebra7.savanna too": "zebra7.savanna",
    "okapi12:99:120 [3] NCCL WARN Call to connect failed": "okapi12",  # hosts that only the log names
    "srun: error: giraffe03: task 3: Exited with exit code 1": "giraffe03",
    "slurmstepd: error: *** STEP 9.0 ON lion-a CANCELLED AT 2026-01-01 ***": "lion-a",
    "[gnu08:11992] *** Process received signal ***": "gnu08",
    "MASTER_ADDR=rhino-head": "rhino-head",
    "connect to hyena4<41301> failed": "hyena4",
    "Nov 29 01:02:03 cheetah kernel: NVRM: Xid (PCI:0000:3b:00): 79": "cheetah",
    "ssh mallory@buffalo.intern.lab-x.de failed": "mallory",
    "the proxy is gazelle.lab-x.de": "gazelle",
    "listening on ip-10-77-3-4": "ip-10-77-3-4",
    "peer 10.77.3.9:4567 closed, route 2001:db8:77::9%eth0": "10.77.3.9",
    "from [2001:db8:77::5]:4567": "2001:db8:77::5",
    "link/ether 00:1b:44:77:3a:b7 brd ff:ff:ff:ff:ff:ff": "00:1b:44:77:3a:b7",
    "link/infiniband 80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:77:00:12:34:56": "c9:77:00",
    "gid fe80:0000:0000:0000:0002:c977:0012:3456": "c977",
    "Node GUID: 0x0002c97700123456, switch S-0002c97700123499": "c97700",
    f"device GPU-{UUID} fell off the bus": "44445555cafe",
    "Serial Number : 1650577003444": "1650577003444",
    "saved in /home/eve/runs, copied to /scratch/eve/runs": "scratch/eve",
    r"opened C:\Users\trent\run.json": "trent",
    "mail to peggy.smith@lab-x.de": "peggy.smith",
    "export HF_TOKEN=hf_QWERTYuiopASDFghjklZXCV": "hf_QWERTY",
    "WANDB_API_KEY: 77aa45c01234567890abcdef77aa45c012345678": "77aa45c0",
    "aws AKIA77QWERTYUIOPASDF aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY": "wJalrXUtnFEMI",
    "git clone https://victor:hunter2@git.lab-x.de/x.git?private_token=abcd77": "hunter2",
    "Authorization: Bearer qwe.RTY77.uio": "RTY77",
    "jwt eyJhbGciOi77.eyJzdWIiOiI3.abc": "eyJhbGciOi77",
    PRIVATE_KEY: "zzTopSecret",
    "NET/Socket : Using [0]ibs1:fe80::77e:48ff:fe00:1122%ibs1<0>": "fe80::77e",
    "MAC a077.9f12.3456 on port 3": "a077.9f12",
    "redis://:swordfish77@cache:6379/0": "swordfish77",
    "https://x.blob.core.windows.net/c?sv=2020&sig=Qwe77Rty%3D": "Qwe77Rty",
    "train.py --api-key tok_plain --lr 1": "tok_plain",
    'config {"password": "correct horse battery"}': "battery",
    r'command "{\"password\": \"hunter77\"}"': "hunter77",
    "https://hooks.slack.com/services/T00000077/B00000000/XXXXXXXXXXXX": "T00000077",
    "SLURM_JOB_NODELIST=quagga[012-015,020], and quagga013 died": "quagga",
    "srun: error: Node failure on okapi-b[01-04]": "okapi-b",
    "mpirun -H puma:8,ocelot77:8 python train.py": "ocelot77",
    "SwitchName=leaf-savanna Nodes=dingo[1-4]": "leaf-savanna",
    "UserId=trudy(1001), USER=trudy, cd ~trudy/src": "trudy",
    "Accepted publickey for wendy from 10.77.3.9 port 22": "wendy",
    "The node 'tapir77_1234_0' has failed to join": "tapir77",
    "  host      : jackal": "jackal",
    "torchrun --rdzv-endpoint=lynx77:29500": "lynx77",
    "Waiting for bison77:2379": "bison77",
}
ELSEWHERE = {
    "the measuring user": "walter",
    "a host of the ranks": "zebra7",
    "the host of the client": "antelope",
    "a host of the cluster": "warthog",
    "a note of the cluster": "10.77.9.9",
    "the uuid of a device": "44445555cafe",
    "the title": "zebra7",
    "the error": "impala9",
    "the reason of a stop": "kudu5",
    "a device": "zebra7",
    "a group of the mesh": "zebra7",
    "an axis of the environment": "/home/sybil",
    "a password in the environment": "swordfish",
    "a setting of the tuning": "tok-tuning-77",
    "a traffic": "zebra7",
}
SECRETS = sorted({text.lower() for text in (*IN_LOG.values(), *ELSEWHERE.values())})


def planted_run(make_results: Any) -> RunData:
    mesh = ml.DeviceMesh("dp=2, tp=2").with_group("zebra7_ranks", [0, 1])
    results = make_results("dp=2, tp=2", axes=("tp",), exponents=(10, 12), collectives=("all_reduce",))
    results["mesh_fingerprint"] = mesh.fingerprint
    custom = results.head(1).assign(axis="zebra7_ranks", group="zebra7_ranks")
    custom["traffic"] = "routed-on-zebra7"
    failed = results.tail(1).assign(status="failed", stop_reason="rank 0 on kudu5: OSError: kudu5 and KUDU5 failed")
    results = pd.concat([results, custom, failed], ignore_index=True)
    where = "4 ranks · MPI on zebra7"
    results.attrs = {"where": where, "note": "by walter@zebra7", "environment": {"NCCL_TOPO_FILE": "/home/sybil/t.xml"}}
    return RunData(
        ml.Plan(
            "all_reduce, all_to_all_v",
            "tp",
            sizes="1K, 4K",
            traffic=ml.Traffic.matrix([[0, 16], [16, 0]]).named("routed-on-zebra7"),
        ),
        mesh,
        run_id="r1",
        source="mpi",
        where=where,
        state="failed",
        error=BenchError("rank 2 on impala9 raised", hint="look at impala9"),
        hosts=["zebra7", "antelope.lab-x.de"],
        user="walter",
        devices=[{"when": "before", "host": "zebra7", "device": 0, "uuid": f"GPU-{UUID}", "throttle": "on zebra7"}],
        environment={
            "Run": {"note": "measured by Walter, on ZEBRA7-mgmt", "mesh": "dp=2, tp=2"},
            "Host": {"name": "zebra7", "machine": "zebra7: 8 × H100 80GB"},
            "Library": {"library": "MPICH 5.0.2", "loaded from": "/home/sybil/lib/libmpi.so.12"},
            "Software": {"numpy": "2.3.1", "nvidia-cublas-cu12": "12.4.5.8"},
            "Settings": {"NCCL_TOPO_FILE": "/home/sybil/t.xml", "DB_PASSWORD": "swordfish"},
        },
        log=[f"10:11:12 {line}" for text in IN_LOG for line in text.split("\n")[:1]] + [PRIVATE_KEY],
        results=results,
    )


def planted_cluster() -> Cluster:
    device = Device(id=0, name="H100 80GB", uuid=f"GPU-{UUID}")
    node = Node("warthog1", devices=(device, replace(device, id=1)), nics=(Nic(name="mlx5_0"),), notes=("on warthog1",))
    nodes = [node, replace(node, name="warthog2.lab-x.de")]
    return Cluster.from_nodes(nodes, title="machine of warthog1", notes=("the switch is 10.77.9.9",))


LIMITS = """
title = "the machine zebra7"
[[limits]]
metric = "p99_us"
at_most = 1
source = "/home/sybil/limits"
"""


def planted_tuning() -> Tuning:
    tuning = ml.example("tuning")
    settings = {name: {**values, "API_TOKEN": "tok-tuning-77"} for name, values in tuning.settings.items()}
    settings = settings or {"a": {"API_TOKEN": "tok-tuning-77"}}
    system = {**tuning.system, "hosts": "zebra7, okapi12", "note": "on zebra7", "user": "walter"}
    return replace(tuning, system=system, settings=settings)


def left_in(*documents: str | bytes) -> list[str]:
    """Return the secrets that are left in documents, also in Base64 and in capitals."""
    text = "\n".join(item.decode("latin-1") if isinstance(item, bytes) else item for item in documents).lower()
    return [secret for secret in SECRETS if secret in text]


def test_there_are_many_secrets_and_all_are_found_without_redaction(make_results: Any, tmp_path: Path) -> None:
    assert len(IN_LOG) + len(ELSEWHERE) >= 40
    run = planted_run(make_results)
    run.save(tmp_path / "run")
    planted_tuning().save(tmp_path / "tuning.json")
    report = ml.Report(run, cluster=planted_cluster(), title="Nightly of zebra7").markdown()
    files = [path.read_bytes() for path in [*(tmp_path / "run").iterdir(), tmp_path / "tuning.json"]]
    assert set(SECRETS) - set(left_in(report, str((planted_cluster().names, planted_cluster().notes)), *files)) == set()


def test_no_secret_is_left_in_any_format(make_results: Any, tmp_path: Path) -> None:
    run, tuning = planted_run(make_results), planted_tuning()
    run.save(tmp_path / "run", redact=True)
    tuning.save(tmp_path / "tuning.json", redact=True)
    report = ml.Report(
        run,
        cluster=planted_cluster(),
        tuning=tuning,
        baseline=planted_run(make_results),
        thresholds=LIMITS,
        title="Nightly of Zebra7",
        redact=True,
    )
    report.save(tmp_path / "report.html")
    report.save(tmp_path / "report.md")
    report.save(tmp_path / "report.xml")
    report.save(tmp_path / "report.csv")
    (tmp_path / "answers").write_text(str(report) + report._repr_html_())
    copy = run.redacted()
    copy.results.to_csv(tmp_path / "results.csv")
    (tmp_path / "shown").write_text(repr(copy) + str(copy.table()) + copy.devices.to_html() + str(copy.error))
    paths = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(paths) >= 10
    for path in paths:
        assert left_in(path.name, path.read_bytes()) == [], path
    attrs = ml.Report.read(tmp_path / "report.html").results.attrs
    assert left_in(json.dumps(attrs)) == []


def test_a_redacted_run_is_a_run(make_results: Any, tmp_path: Path) -> None:
    run = planted_run(make_results)
    run.save(tmp_path / "run", redact=True)
    copy = ml.Run.load(tmp_path / "run")
    assert copy.run_id == run.run_id
    assert copy.user == ""
    numbers = ["time_us", "size_bytes", "busbw_gbs", "n_ranks", "collective", "dtype", "status"]
    pd.testing.assert_frame_equal(copy.results[numbers], run.results[numbers])
    assert set(copy.results["mesh_fingerprint"]) == {copy.mesh.fingerprint}
    assert [axis.name for axis in copy.mesh.axes] == ["dp", "tp"]
    (group,) = copy.mesh.custom_groups
    assert group.name in set(copy.results["group"])
    assert tuple(group.ranks) == (0, 1)
    assert (run.hosts[0], run.log[0][:15]) == ("zebra7", "10:11:12 zebra7")  # the run itself is unchanged
    twice = copy.redacted()
    assert left_in(json.dumps(twice.environment), *twice.log) == []


def test_a_name_has_one_hash_in_all_parts_of_a_report(make_results: Any) -> None:
    text = ml.Report(planted_run(make_results), cluster=planted_cluster(), title="zebra7", redact=True).markdown()
    title = text.splitlines()[0].removeprefix("# ")
    assert re.fullmatch(r"host-[0-9a-f]{8}", title)
    assert f"MPI on {title}" in text
    assert text.count(title) > 4


def test_what_identifies_nobody_stays_readable() -> None:
    texts = [
        "all_reduce on tp at 1 GiB reaches 370.1 GB/s busbw, 94 % of the bound",
        "NCCL 2.27.3+cuda12.4, driver 535.104.5.12, version 12.4.5.8, nvidia-cublas-cu12==12.4.5.8",
        "rank 3 on H100 80GB, GPU 0: 0000:3b:00.0, mlx5_0, eth0, ib0, sm_90, tp_0, dp_1",
        "12:34:56 step 3 of 40: std::vector, ncclComm::init, comm 0x7f1234567890",
        "127.0.0.1:8866, 0.0.0.0, ::1, localhost, max_tokens=4096, tokenizer=llama, key: value, basic information",
        "see https://docs.nvidia.com/deeplearning/nccl and https://github.com/NVIDIA/nccl/issues/1",
        "node 3 of 4, host memory, server error, on node failure, peer access, the machine has 2 NUMA nodes",
        "nodes: sizes[0], ranks[0-3] of tp[0-3], gpu[0-7], user=user",
        "--max-new-tokens 512, --tokenizer gpt2, curl -H x",
        "fingerprint 3f2a99b1, nccl-2.27.3-1.el9.x86_64.rpm, libnccl.so.2.27.3, torch.distributed.run",
    ]
    redactor = Redactor(["zebra7"], ["walter"]).learn(*texts)
    assert [redactor.text(text) for text in texts] == texts


@pytest.mark.parametrize(
    "text",
    ["NODE7", "node7.cluster", "node7-ib0", "node7_eth1", "mgmt-node7", "Node7.Cluster.Example", "(node7)", "node7:8"],
)
def test_a_host_is_found_with_prefixes_suffixes_and_capitals(text: str) -> None:
    hashed = Redactor(["node7"]).text(f"a {text} b")
    assert "node7" not in hashed.lower()
    assert "cluster" not in hashed.lower()
    assert hashed.count("host-") == 1


def test_similar_words_are_not_hosts() -> None:
    texts = ["node77", "node", "anode7", "node7a", "7", "nodes"]
    assert [Redactor(["node7"]).text(text) for text in texts] == texts
    assert Redactor(["node7"]).text("node7.log").endswith(".log")


@pytest.mark.parametrize("host", ["log", "all_reduce", "name", "1", "10.0.0.1", ""])
def test_a_host_with_the_name_of_a_key_does_not_damage_the_run(make_results: Any, host: str, tmp_path: Path) -> None:
    run = planted_run(make_results)
    run.hosts = (host, "zebra7")
    run.environment["Host"]["name"] = host
    run.save(tmp_path / "run", redact=True)
    assert len(ml.Run.load(tmp_path / "run").results) == len(run.results)


def test_an_item_without_a_word_stays() -> None:
    value = {"NCCL_ALGO": " ", "HF_TOKEN": "\t"}
    assert redactor_of(None).anything(value) == value


def test_anything_is_redacted_at_any_depth() -> None:
    value = {"a": [("zebra7", {"zebra7": {"zebra7"}}), np.array(["zebra7", "x"]), 3, None, planted_cluster()]}
    redactor = redactor_of(None, hosts=["zebra7", "warthog1", "warthog2"])
    assert left_in(repr(redactor.anything(value))) == []
    mesh = ml.DeviceMesh("dp=2, tp=2")
    assert redactor.anything(mesh) is mesh


def test_an_explanation_is_redacted_with_its_text_and_tables(tmp_path: Path, capsys: Any) -> None:
    log = "\n".join(
        [
            "zebra7:41:41 [0] NCCL INFO NCCL version 2.27.3+cuda12.4",
            "zebra7:41:52 [0] NCCL INFO NET/Socket : Using [0]eth0:10.77.3.9<0>",
            *IN_LOG,
            "zebra7:41:52 [0] NCCL WARN Call to connect to 10.77.3.9<41301> failed : Connection refused",
        ]
    )
    explanation = ml.explain(log).redacted()
    assert explanation.findings
    shown = [str(explanation), explanation.to_markdown(), explanation.to_json(), explanation._repr_html_()]
    tables = [explanation.table(name).to_csv() for name in explanation.tables]
    found = left_in(*shown, *tables, explanation.paste.text)
    assert found == []
    assert len(explanation.paste) == len(ml.explain(log).paste)  # the numbers of lines still fit
    (tmp_path / "a.log").write_text(log)
    main(["explain", str(tmp_path / "a.log"), "--redact", "--out", str(tmp_path / "a.html")])
    assert left_in((tmp_path / "a.html").read_bytes(), capsys.readouterr().out) == []


@pytest.mark.parametrize("part", ["a", "-a", "a.", "/a", "ab:", "=", "1 ", " "])
def test_the_time_is_linear_in_the_length_of_a_text(part: str) -> None:
    text = part * (50_000 // len(part))
    assert isinstance(Redactor(["zebra7"]).learn(text).text(text), str)  # took minutes with unbounded repetitions
