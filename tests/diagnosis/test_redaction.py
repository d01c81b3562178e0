"""Redaction of explanations: planted names of every kind and format, and the names in real logs, are in no output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import meshlab as ml
from meshlab.base._errors import MeshlabError
from meshlab.cli._main import main
from meshlab.diagnosis._explanation import Explanation
from meshlab.diagnosis._html import as_page
from meshlab.runs._redact import Redactor
from tests.diagnosis.planted_secrets import PLANTED, Planted

# A line that is recognised whatever is around it.
_RECOGNISED = "fleetless:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda13.0"


def outputs(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield everything that an explanation shows, with its name."""
    yield "text", str(explanation)
    yield "repr", repr(explanation)
    yield "verdict", explanation.verdict
    yield "brief", explanation.brief()
    yield "HTML", explanation._repr_html_()
    yield "page", as_page(explanation)
    yield "Markdown", explanation.to_markdown()
    yield "JSON", explanation.to_json()
    yield "findings", explanation.frame().to_csv()
    yield "facts", str(dict(explanation.facts))
    yield "paste", f"{explanation.paste.name} {explanation.paste.text}"
    for name in explanation.tables:
        table = explanation.table(name)
        yield f"table {name}", table.to_csv() + str(table.attrs) + str(list(table.columns))
    if explanation.cluster is not None:
        yield "cluster", str(explanation.cluster) + repr(explanation.cluster) + explanation.cluster._repr_html_()


def pattern_of(planted: Planted) -> re.Pattern[str]:
    """Return where a secret is left: anywhere, or if it could be a part of another word, at the beginning of one."""
    before = "" if planted.kind == "password" or any(map(str.isdigit, planted.secret)) else "(?<![A-Za-z0-9])"
    return re.compile(rf"(?i){before}{re.escape(planted.secret)}")


def left_in(explanation: Explanation, planted: Planted) -> list[str]:
    """Return the outputs that contain a secret."""
    pattern = pattern_of(planted)
    return [name for name, text in outputs(explanation) if pattern.search(text)]


def test_ten_kinds_are_planted_in_ten_formats() -> None:
    assert len(PLANTED) >= 58
    assert len({planted.kind for planted in PLANTED}) >= 10
    assert len({planted.form for planted in PLANTED}) >= 10
    assert all(planted.secret in planted.text.lower() for planted in PLANTED)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.form}-{planted.secret}")
def test_a_planted_name_is_in_no_output(planted: Planted) -> None:
    explanation = ml.explain(f"{_RECOGNISED}\n{planted.text}\n")
    assert left_in(explanation, planted)
    assert left_in(explanation.redacted(), planted) == []


def test_all_planted_names_together_are_in_no_output(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "kirk.log"
    path.write_text("\n".join([_RECOGNISED, *dict.fromkeys(planted.text for planted in PLANTED)]))
    explanation = ml.explain(path).redacted()
    assert explanation.findings
    assert [planted for planted in PLANTED if left_in(explanation, planted)] == []
    for suffix in ("txt", "html", "md", "json"):
        out = tmp_path / f"out.{suffix}"
        main(["explain", str(path), "--redact", "--out", str(out)])
        shown = out.read_text() + capsys.readouterr().out
        assert [planted for planted in PLANTED if pattern_of(planted).search(shown)] == []


def test_a_picture_of_a_redacted_cluster_names_no_host(tmp_path: Path) -> None:
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-7\nGPU1\tNV18\t X \t0-7\n"
    text = f"starbase:1:2 [0] NCCL INFO NCCL version 2.28.9\n{matrix}"
    cluster = ml.explain(text).redacted().cluster
    assert cluster is not None
    with plt.rc_context({"svg.fonttype": "none"}):
        figure: Any = cluster.plot()
        figure = getattr(figure, "figure", figure)
        figure.savefig(tmp_path / "a.svg")
        plt.close(figure)
    assert "starbase" not in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("host", ["login", "node", "gpu", "worker", "head"])
def test_an_ordinary_word_stays_readable(host: str) -> None:
    text = f"{host}:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\nlogin to the head node: worker 3 lost a gpu"
    assert ml.explain(text).redacted().paste.text == text


@pytest.mark.parametrize(
    "text",
    [
        "node 3 of 4, host memory, server error, on node failure, host: unreachable, nodes: busy",
        "srun -p hopper -N 2 --mpi=pmix ./all_reduce_perf; ssh -p 22 x; mkdir -p out; nvidia-smi topo -p2p n",
        "gcc -pthread -pipe -pedantic; mpiexec -prepend-rank -ppn 8; docker run -p 8080:80; pytest -p no:cacheprovider",
        "/scratch/checkpoints/step_100.pt /lustre/run.py /project/datasets/imagenet",
        'ncclDevKernel<41>, LoadWithCast<1>, "grid": [4096, 1, 1], "block": [32, 4, 1]',
        "password: None, token=512, the serial port is open, serialization of 12345 objects",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert Redactor().learn(text).text(text) == text


def test_a_host_like_a_device_is_replaced_in_its_own_capitals() -> None:
    text = "gpu187:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\nGPU187 is a device, gpu187-ib0 an interface"
    redacted = Redactor().learn(text).text(text)
    assert "gpu187" not in redacted
    assert "GPU187 is a device" in redacted


def cases() -> list[Path]:
    """Return the real texts, in the folder that MESHLAB_CASES names."""
    root = os.environ.get("MESHLAB_CASES")
    paths = sorted(path for path in Path(root).rglob("*") if path.is_file()) if root else []
    return [path for path in paths if path.stat().st_size < 3_000_000]


_HOST_IN_SUBJECT = re.compile(
    r"(?<![\w.-])(?:node|pod|worker|host|vm|spark|cn|gpu|box|test)-?_?\d{1,5}[a-z]?(?![\w.-])"
)
_DEVICE = re.compile(r"(?i)gpu\d{1,2}")


def hosts_in(subject: str) -> list[str]:
    """Return the hosts that a subject names, as far as their names have a number."""
    return [name for name in _HOST_IN_SUBJECT.findall(subject) if not _DEVICE.fullmatch(name)]


@pytest.mark.full
@pytest.mark.skipif(not cases(), reason="MESHLAB_CASES names no folder of real logs")
def test_no_subject_of_a_real_log_names_a_host_after_redaction() -> None:
    n_names, left = 0, []
    for path in cases():
        try:
            explanation = ml.explain(path)
        except (MeshlabError, OSError):
            continue
        readings = [item for reading in explanation.paste.readings() if isinstance(reading, tuple) for item in reading]
        fields = {getattr(item, "host", None) for item in readings[:5000]}
        names = {name for item in explanation.all_findings for name in hosts_in(item.subject)}
        names |= {name for name in fields if isinstance(name, str) and re.search(r"[A-Za-z].*\d", name)}
        names |= set() if explanation.cluster is None else set(explanation.cluster.names)
        n_names += len(names)
        if names:
            redacted = explanation.redacted()
            shown = list(outputs(redacted))
            for name in names:
                pattern = re.compile(rf"(?<![A-Za-z0-9.]){re.escape(name)}(?![A-Za-z0-9])")
                left += [(path.name, name, where) for where, text in shown if pattern.search(text)]
    assert n_names > 100
    assert left == []
