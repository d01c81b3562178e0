"""Texts of meshlab's other readers, alone and between other lines."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError

LOG = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4242 on      node1 device  0 [0x0a] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4243 on      node1 device  1 [0x18] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    20.00   52.43   52.43      0    21.00   49.93   49.93      0
     2097152        524288     float     sum      -1    25.00   83.89   83.89      0    26.00   80.66   80.66      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 66.7275
"""
JSON = """{"version": 3, "nccl_version": "2.27.3", "args": {"test": "all_reduce_perf"}, "results": []}"""
XML = """\
<system version="1">
  <cpu numaid="0" affinity="00ff" arch="x86_64">
    <pci busid="0000:0a:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
  </cpu>
</system>
"""
SLURM = "SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=spine Switches=leaf1\n"
NOISE = "starting the job\nsome application output\n\n\n\n\n\n"


@pytest.mark.parametrize("before", ["", NOISE])
@pytest.mark.parametrize("after", ["", NOISE])
def test_a_log_of_nccl_tests_shows_its_peak_between_other_lines(before: str, after: str) -> None:
    explanation = ml.explain(before + LOG + after)
    (span,) = (span for span in explanation.recognised if span.kind == "nccl-tests log")
    first = before.count("\n") + 1
    assert (span.first, span.last) == (first, first + 12)
    assert (
        explanation.facts["all_reduce"]
        == "2 ranks, 2 sizes from 1\u2009MiB to 2\u2009MiB, peak busbw 83.9 GB/s, complete"
    )
    assert explanation.table("results")["size_bytes"].max() == 2 << 20


@pytest.mark.parametrize("lines", range(10, 13))
def test_a_log_that_was_cut_shows_what_there_is(lines: int) -> None:
    explanation = ml.explain("\n".join(LOG.splitlines()[:lines]))
    assert "truncated" in str(dict(explanation.facts)) or "peak busbw" in str(dict(explanation.facts))


def test_a_log_without_a_start_is_recognised_by_its_rows() -> None:
    assert ml.explain("\n".join(LOG.splitlines()[9:11])).tables == ("results",)


def test_json_of_nccl_tests_is_recognised() -> None:
    assert [span.kind for span in ml.explain(JSON).recognised] == ["nccl-tests log"]


@pytest.mark.parametrize(("text", "size"), [(XML, 1), (SLURM, 4)])
def test_files_that_describe_hardware_become_the_cluster(text: str, size: int) -> None:
    for paste in (text, f"$ cat topo\n{text}\n{NOISE}"):
        explanation = ml.explain(paste)
        assert explanation.cluster is not None
        assert max(explanation.cluster.n_devices, explanation.cluster.n_nodes) == size
        assert explanation.facts["hardware"] == explanation.cluster.summary


def test_a_graph_file_of_nccl_shows_its_channels() -> None:
    graph = (
        '<graphs version="1">\n<graph id="0" pattern="4" speedintra="30" typeintra="NVL">\n<channel><gpu dev="0"/>'
        '<gpu dev="1"/></channel>\n</graph>\n</graphs>\n'
    )
    explanation = ml.explain(NOISE + graph)
    assert explanation.facts["ring of NCCL"] == "1 channel, GPUs over NVL"
    assert explanation.table("graphs")["gpus"].tolist() == [[0, 1]]
    assert explanation.cluster is None


def test_half_of_a_topology_file_is_recognised_as_incomplete() -> None:
    explanation = ml.explain(XML[: len(XML) // 2])
    assert [span.kind for span in explanation.recognised] == ["topology file"]
    assert explanation.cluster is not None
    assert not explanation.cluster.templates[0].complete


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("dp=2, tp=4", "dp=2, tp=4"),
        ("DeviceMesh('pp=2, tp=4')", "pp=2, tp=4"),
        (">>> mesh\nDeviceMesh((dp=2, tp=4), device: 'cuda', stride: (4, 1))", "dp=2, tp=4"),
        ("mesh = init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))", "dp=2, tp=4"),
        ("Mesh('data': 2, 'model': 4)", "data=2, model=4"),
        ("vllm serve m -tp 8", "tp=8"),
        ("vllm serve m --tensor-parallel-size 4 --pipeline-parallel-size 2", "pp=2, tp=4"),
        (NOISE * 10 + "INFO mesh is DeviceMesh((dp=2, tp=4), device: 'cuda', stride: (4, 1))\n" + NOISE, "dp=2, tp=4"),
    ],
)
def test_layouts_show_their_axes(text: str, mesh: str) -> None:
    explanation = ml.explain(text)
    assert explanation.mesh == ml.DeviceMesh(mesh)
    assert explanation.facts["mesh"].startswith(f"{mesh}: ")


def test_flags_without_the_number_of_ranks_are_recognised() -> None:
    explanation = ml.explain("python pretrain.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2")
    assert explanation.mesh is None
    assert "number of ranks" in explanation.facts["mesh"]


@pytest.mark.parametrize("text", ["Sum(a=2)", "key=value\nother=thing", "the DeviceMesh is fine", "a = b, c"])
def test_ordinary_text_is_not_a_mesh(text: str) -> None:
    with pytest.raises(ParseError, match="nothing was recognised"):
        ml.explain(text)


WRONG_LOG = LOG.replace("49.93      0", "49.93     16").replace("values : 0 OK", "values : 1 FAILED")


@pytest.mark.parametrize("before", ["", NOISE, "x" * 100 + "\n" + "other line\n" * 120_000])
def test_wrong_results_are_an_error_with_their_rows(before: str) -> None:
    explanation = ml.explain(before + WRONG_LOG)
    (finding,) = (item for item in explanation.findings if item.severity == "error")
    assert (finding.code, finding.subject) == ("wrong-results", "all_reduce")
    assert finding.why.startswith("1 of 4 measurements returned values that differ")
    assert [explanation.paste.line(number).text.split()[0] for number in finding.lines] == ["1048576", "#"]


def test_right_results_and_results_without_a_check_are_no_error() -> None:
    for text in (LOG, LOG.replace("      0", "    N/A")):
        assert not ml.explain(text).findings
