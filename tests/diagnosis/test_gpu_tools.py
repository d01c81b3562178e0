"""Tools that people run next to NCCL: what they measured becomes a table, and what failed becomes a finding."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import ParseError
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._dcgm import read_diagnostics, read_link_states
from meshlab.diagnosis.formats._gpu_pairs import read_pair_matrices, read_peer_access
from meshlab.diagnosis.formats._smi_query import read_queried_values
from meshlab.diagnosis.formats._smi_table import read_gpu_processes, read_gpu_rows
from meshlab.diagnosis.rules._gpu_health import HEALTH_RULES
from meshlab.diagnosis.rules._gpu_tests import GPU_TEST_RULES
from tests.diagnosis.tool_texts import (
    DIAGNOSTIC,
    DIAGNOSTIC_4,
    DOWN,
    INSPECTED,
    LINKS,
    NVBANDWIDTH,
    P2P_TEST,
    PASSED,
    PERFTEST,
    SLOW_P2P,
    STOPPED,
    TABLE,
)


def pairs(text: str) -> pd.DataFrame:
    return ml.read(text).value.table("gpu_pairs")


def severities(text: str) -> dict[str, str]:
    return {item.code: item.severity for item in ml.explain(text).all_findings}


# -- bandwidths and latencies ------------------------------------------------------------------------------------------


def test_values_of_nvbandwidth_have_a_source_and_a_destination() -> None:
    reading = ml.read(NVBANDWIDTH)
    frame = pairs(NVBANDWIDTH)
    assert reading.kind == "nvbandwidth"
    assert reading.value.facts["GPUs"] == "2 × NVIDIA L40S"
    assert frame["test"].unique().tolist() == [
        "host_to_device_memcpy_ce",
        "device_to_device_memcpy_write_ce",
        "device_to_device_latency_sm",
    ]
    host = frame[frame["source_gpu"].isna()]
    assert host["destination_gpu"].tolist() == [0, 1]
    assert host["value"].tolist() == [25.51, 24.98]
    # GPU(row) <- GPU(column): the data goes from the column to the row.
    written = frame[(frame["source_gpu"] == 1) & (frame["destination_gpu"] == 0) & (frame["what"] == "bandwidth")]
    assert written["value"].tolist() == [19.25]
    latency = frame[frame["what"] == "latency"]
    assert latency["value"].tolist() == [1.25, 1.3]
    assert set(latency["unit"]) == {"us"}


def test_the_json_of_nvbandwidth_has_the_same_values() -> None:
    document = {
        "nvbandwidth": {
            "Driver Version": "550.54.15",
            "testcases": [
                {
                    "name": "device_to_device_memcpy_read_ce",
                    "status": "Passed",
                    "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
                    "bandwidth_matrix": [["N/A", "43.1"], ["42.7", "N/A"]],
                    "sum": 85.8,
                },
                {"name": "multicast", "status": "Error", "error": "ASSERT in expression h_errorFlag == 0"},
            ],
        }
    }
    text = f"$ nvbandwidth -j\n{json.dumps(document, indent=3)}\ndone"
    frame = pairs(text)
    assert frame[["source_gpu", "destination_gpu", "value"]].to_numpy().tolist() == [[0, 1, 43.1], [1, 0, 42.7]]
    assert severities(text) == {"wrong-results": "error"}
    assert severities(text[:-40]) == {}  # truncated: named, and nothing is found in it
    assert ml.read(text[:-40]).kind == "nvbandwidth"


def test_a_matrix_of_nvbandwidth_without_its_head_and_with_a_cut_row_is_read() -> None:
    text = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n      0     1     2\n0  0.00  21.1  20.9\n1  21.0  0.00"
    assert pairs(text)["value"].tolist() == [21.1, 20.9, 21.0]
    assert pairs(text)["test"].unique().tolist() == ["memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"]


def test_a_wrong_copy_is_an_error() -> None:
    text = "Running device_to_device_memcpy_write_sm.\n Invalid value when checking the pattern at 0x7f00\n"
    (finding,) = ml.explain(text).findings
    assert (finding.code, finding.subject) == ("wrong-results", "device_to_device_memcpy_write_sm")
    sample = "> Peer access from RTX A (GPU0) -> RTX A (GPU1) : Yes\nVerification error @ element 1: val = 0, ref = 4\n"
    assert severities(sample) == {"wrong-results": "error"}
    assert severities(NVBANDWIDTH) == {}


def test_matrices_of_the_p2p_test_have_directions() -> None:
    frame = pairs(P2P_TEST.format(on=13.21))
    assert ml.read(P2P_TEST.format(on=13.21)).kind == "p2pBandwidthLatencyTest"
    assert frame["what"].unique().tolist() == ["bandwidth", "latency", "CPU latency"]
    off = frame[~frame["p2p"] & (frame["source_gpu"] == 0) & (frame["destination_gpu"] == 1)]
    assert off[["value", "unit", "direction"]].to_numpy().tolist() == [[11.04, "GB/s", "unidirectional"]]
    # With reads, the GPU of the row fetches from that of the column.
    reads = frame[(frame["test"] == "P2P Reads") & (frame["source_gpu"] == 1) & (frame["destination_gpu"] == 0)]
    assert reads["value"].tolist() == [12.01]
    matrices = read_pair_matrices(Paste(P2P_TEST.format(on=13.21)))
    assert len(matrices) == 5
    assert all(item.allowed for item in read_peer_access(Paste(P2P_TEST)))


def test_p2p_that_is_slower_than_copies_through_the_host_is_found() -> None:
    assert severities(P2P_TEST.format(on=4.4)) == {"acs-iommu-p2p": "warning"}
    assert severities(SLOW_P2P) == {"acs-iommu-p2p": "warning"}
    assert severities(P2P_TEST.format(on=13.21)) == {}


MATRIX = """\
P2P Connectivity Matrix
     D\\D     0     1     2
     0\t     1     1     0
     1\t     1     1     0
     2\t     0     0     1
"""


@pytest.mark.parametrize(
    ("text", "severity", "words"),
    [
        (MATRIX, "info", "2 pairs of GPUs, only within 0 and 1"),
        ("Device=0 CANNOT Access Peer Device=1\nDevice=1 CANNOT Access Peer Device=0\n", "info", "1 pair of GPUs"),
        ("> Peer access from Tesla V100-SXM2 (GPU0) -> Tesla V100-SXM2 (GPU1) : No\n", "warning", "have NVLink"),
        (
            "Device: 0, RTX 3090, pciBusID: 1\nDevice: 1, RTX A6000, pciBusID: 2\n"
            "Device=0 CANNOT Access Peer Device=1\n",
            "info",
            "different products (RTX 3090 and RTX A6000)",
        ),
    ],
)
def test_pairs_without_peer_access_are_named(text: str, severity: str, words: str) -> None:
    (finding,) = ml.explain(text).findings
    assert (finding.code, finding.severity) == ("p2p-not-supported", severity)
    assert words in finding.why


# -- dcgmi -------------------------------------------------------------------------------------------------------------


def test_failed_tests_of_dcgm_name_the_test_and_the_gpus() -> None:
    findings = {item.subject: item for item in ml.explain(DIAGNOSTIC).findings}
    assert set(findings) == {"GPU Memory, GPU 2", "Persistence Mode, GPU 2", "Targeted Power"}
    assert findings["Targeted Power"].code == "gpu-test-skipped"
    assert findings["GPU Memory, GPU 2"].severity == "error"
    assert "A memory mismatch was found at address 0x7f00." in findings["GPU Memory, GPU 2"].why
    assert findings["Persistence Mode, GPU 2"].severity == "info"  # a setting, not a fault
    frame = ml.explain(DIAGNOSTIC).table("diagnostics")
    assert frame["status"].tolist() == ["Pass", "Fail", "Pass", "Fail", "Skip"]


def test_the_table_of_version_4_has_a_row_for_each_gpu() -> None:
    (finding,) = ml.explain(DIAGNOSTIC_4).findings
    assert (finding.subject, finding.severity) == ("memory, GPU 1", "error")
    assert "Error writing to the memory of the GPU." in finding.why
    passed = [test.gpus for test in read_diagnostics(Paste(DIAGNOSTIC_4)) if test.status == "Pass"]
    assert passed == [(0, 1), (0,)]


@pytest.mark.parametrize("root", ["DCGM Diagnostic", "DCGM GPU Diagnostic"])
def test_the_json_of_dcgm_is_read_in_all_versions(root: str) -> None:
    new = {"entity_group": "GPU", "entity_id": 5, "status": "Fail", "warnings": [{"warning": "Bad.", "error_id": 3}]}
    old = {"gpu_ids": "5", "status": "FAIL", "warnings": "Bad."}
    skipped = {"gpu_id": "4", "status": "Skip"}
    results = [new if root == "DCGM Diagnostic" else old, skipped]
    document = {
        root: {"test_categories": [{"category": "Integration", "tests": [{"name": "pcie", "results": results}]}]}
    }
    finding, skipped_tests = ml.explain(json.dumps(document, indent=1)).findings
    assert (finding.code, finding.subject) == ("gpu-test-failed", "pcie, GPU 5")
    assert "Bad." in finding.why
    assert skipped_tests.code == "gpu-test-skipped"


def test_a_test_that_failed_without_a_gpu_is_reported_too() -> None:
    summary = DIAGNOSTIC_4.replace("GPU1: Fail", "GPU1: Pass").replace(
        "Error writing", "There was an internal error in"
    )
    (finding,) = ml.explain(summary).findings
    assert (finding.code, finding.severity) == ("gpu-test-failed", "warning")
    assert "DCGM itself failed" in finding.why
    case = {"name": "pcie", "results": [{"entity_id": 0, "status": "Pass"}], "test_summary": {"status": "Fail"}}
    text = json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Integration", "tests": [case]}]}})
    assert severities(text) == {"gpu-test-failed": "error"}
    assert severities(text.replace("Fail", "Pass")) == {"nothing-wrong": "info"}


def test_texts_of_which_the_pages_show_the_rules() -> None:
    assert severities(PASSED) == {"nothing-wrong": "info"}
    assert severities(DOWN) == {"nvlinks-inactive": "warning"}
    assert severities(STOPPED) == {"rdma-test-failed": "error"}


def test_rows_of_dcgm_without_the_head_of_their_section_are_read() -> None:
    text = "| GPU Memory      | Pass - GPUs: 0, 1     |\n|                 | Fail - GPU: 2         |\n"
    (finding,) = ml.explain(text).findings
    assert finding.subject == "GPU Memory, GPU 2"


def test_links_that_dcgm_calls_down_may_be_those_of_a_board_without_nvlink() -> None:
    head = "+-----  Integration  -------+---------+\n"
    text = f"{head}| PCIe     | Fail - All   |\n| Warning  | GPU 1's NvLink link 3 is down |\n"
    (finding,) = ml.explain(text).findings
    assert (finding.subject, finding.severity) == ("PCIe, GPU 1", "warning")
    assert "without NVLink" in finding.why


@pytest.mark.parametrize(
    ("states", "codes"),
    [
        ("U U U U", {"nothing-wrong": "info"}),
        ("U U D D", {"nvlinks-inactive": "warning"}),
        ("D D D D", {"nvlinks-inactive": "error"}),
        ("_ _ _ _", {}),
    ],
)
def test_links_of_dcgm_are_compared_among_gpus(states: str, codes: dict[str, str]) -> None:
    assert severities(LINKS.format(states)) == codes
    assert [item.states for item in read_link_states(Paste(LINKS.format(states)))][-1] == "UUDX"


def test_equal_gpus_with_a_part_of_their_links_are_no_fault() -> None:
    text = "".join(f"    gpuId {k}:\n        U U U U D D U U U U D D U U U U D D\n" for k in range(2))
    assert severities(text) == {"nvlinks-inactive": "info"}
    assert severities(text.replace("U", "D")) == {"nvlinks-inactive": "warning"}


def test_error_counters_of_dcgm_are_those_of_nvlinks() -> None:
    text = """\
+-----------------------------+------------------------------------------------+
| NVLINK Error Counts                                                          |
| GPU 3                                                                        |
+=============================+================================================+
| Link 0                      |                                                |
| -> CRC FLIT Error           | 0                                              |
| Link 7                      |                                                |
| -> CRC FLIT Error           | 0                                              |
| -> Replay Error             | 12                                             |
+-----------------------------+------------------------------------------------+
"""
    (finding,) = ml.explain(text).findings
    assert (finding.code, finding.subject) == ("nvlink-error-counters", "GPU3")
    assert "link 7: 12 Replay Error" in finding.why


@pytest.mark.parametrize(("health", "severity"), [("Failure", "error"), ("Warning", "warning"), ("Odd", "warning")])
def test_a_health_report_of_dcgm_names_its_gpus(health: str, severity: str) -> None:
    text = f"""\
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | {health.ljust(56)} |
| GPU                       |                                                          |
| -> 6                      | {health.ljust(56)} |
|    -> Errors              |                                                          |
|       -> Memory system    | {health.ljust(56)} |
|                           | A pending retired page has been detected.                |
+---------------------------+----------------------------------------------------------+
"""
    (finding,) = ml.explain(text).findings
    assert (finding.subject, finding.severity) == ("GPU 6", severity)
    assert "A pending retired page" in finding.why
    assert severities("| Overall Health            | Healthy          |\n") == {}


# -- nvidia-smi --------------------------------------------------------------------------------------------------------


def test_the_plain_table_is_read_completely() -> None:
    explanation = ml.explain(TABLE)
    assert severities(TABLE) == {"mig": "info"}
    assert dict(explanation.facts) == {
        "GPUs": "2 × NVIDIA A30",
        "driver": "525.85.12",
        "CUDA of the driver": "12.0",
        "GPU memory": "GPU0 522 of 24,576 MiB",
        "MIG": "on for GPU1",
        "processes": "2",
    }
    first, second = read_gpu_rows(Paste(TABLE))
    assert (first.memory_used_mib, first.utilisation_percent, first.mig) == (522, 3, False)
    assert (second.memory_used_mib, second.mig, second.ecc) == (None, True, None)
    assert [(p.gpu, p.pid, p.memory_mib) for p in read_gpu_processes(Paste(TABLE))] == [(0, 4242, 519), (1, 4243, 9876)]
    assert explanation.table("gpus")["product"].tolist() == ["NVIDIA A30"] * 2
    assert explanation.cluster is not None
    assert [d.bus_id for d in explanation.cluster.devices] == [
        "0000:17:00.0",
        "0000:65:00.0",
    ]


def test_the_xml_of_nvidia_smi_has_the_values_of_the_text() -> None:
    xml = """\
<gpu id="00000000:3B:00.0">
    <product_name>NVIDIA H200</product_name>
    <fabric><state>Completed</state><status>Success</status><cliqueId>0</cliqueId>
        <health><summary>Unhealthy</summary><bandwidth>Full</bandwidth></health></fabric>
    <ecc_errors>
        <volatile><dram_uncorrectable>2</dram_uncorrectable><sram_correctable>5</sram_correctable></volatile>
    </ecc_errors>
    <clocks_event_reasons>
        <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
    </clocks_event_reasons>
    <gpu_recovery_action>Drain and Reset</gpu_recovery_action>
</gpu>
"""
    values = {(item.sections, item.name): item.value for item in read_queried_values(Paste(xml))}
    assert values[("Fabric", "Health"), "Summary"] == "Unhealthy"
    assert values[("ECC Errors", "Volatile"), "DRAM Uncorrectable"] == "2"
    findings = ml.explain(xml).findings
    assert {item.code for item in findings} == {
        "fabric-unhealthy",
        "ecc-uncorrectable",
        "gpu-slowed-down",
        "gpu-needs-recovery",
    }
    assert all("0000:3b:00" in item.subject for item in findings)


# -- perftest and NCCL Inspector ---------------------------------------------------------------------------------------


def test_rows_of_perftest_are_in_gigabytes_per_second() -> None:
    reading = ml.read(PERFTEST)
    frame = reading.value.table("rdma")
    assert reading.kind == "perftest"
    assert frame["average_gbs"].tolist() == [23.0, 24.5]
    assert frame["peak_gbs"].isna().tolist() == [True, False]  # 0.00 was not measured
    assert set(frame["gpu"]) == {"NVIDIA H20"}
    assert set(frame["device"]) == {"mlx5_4"}
    head = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n"
    assert ml.explain(f"{head} 2 1000 1.10 9.75 1.15 1.17\n").table("rdma")["latency_us"].tolist() == [1.15]


def test_memory_of_a_gpu_that_the_nic_cannot_register_is_an_error() -> None:
    text = "[pid = 5, dev = 0] device name = [Tesla T4]\nCouldn't allocate MR with error=14\nfailed to create mr\n"
    assert severities(text) == {"gdr-registration-failed": "error"}
    assert severities(text.partition("\n")[2]) == {}  # memory of the host has other reasons


@pytest.mark.parametrize(
    ("status", "code"), [(12, "ib-retry-exceeded"), (4, "gdr-protection-error"), (10, "rdma-test-failed")]
)
def test_a_status_of_perftest_has_the_code_of_the_same_error_in_nccl(status: int, code: str) -> None:
    text = f" Completion with error at client\n Failed status {status}: wr_id 0 syndrom 0x51\nscnt=828, ccnt=700\n"
    assert severities(text) == {code: "error"}
    assert ml.read(text).kind == "perftest"


def test_calls_of_the_inspector_are_a_table() -> None:
    reading = ml.read(INSPECTED)
    frame = reading.value.table("inspector")
    assert reading.kind == "NCCL Inspector log"
    assert frame["collective"].tolist() == ["reduce_scatter"] * 2
    assert frame["rank"].tolist() == [0, 1]
    assert ml.explain(INSPECTED[:-30]).table("inspector")["rank"].tolist() == [0]


# -- tools that are only named -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1700000000.1] [n1:7:0]  ucc_context.c:402  UCC  ERROR failed to create tl context\n", "UCC"),
        ("[Mar 3 2025] [INFO] [tid 9] Fabric Manager version 550.90.07 is running\n", "Fabric Manager"),
        ("[n1] mscclpp::Connection failed\n", "MSCCL++"),
        ("[1,0]<stderr>:[horovod/common/operations.cc:704] Horovod initialised\n", "Horovod"),
    ],
)
def test_a_tool_that_is_not_read_is_named(text: str, words: str) -> None:
    for reader in (ml.read, ml.explain):
        with pytest.raises(ParseError, match="not read yet") as caught:
            reader(text)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("WEIGHT TABLE:\n             0000:05:00.0\n0000:05:00.0 0\n", "amd-smi"),
        ("======= ROCm System Management Interface =======\n", "rocm-smi"),
    ],
)
def test_output_of_amd_without_links_is_refused_by_its_name(text: str, words: str) -> None:
    for reader in (ml.read, ml.explain):
        with pytest.raises(
            ParseError, match=f"this is the output of {words}.*links.*missing or cut; pass the whole output"
        ):
            reader(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"schemaVersion": 1, "distributedInfo": {"rank": 6, "world_size": 8},\n"traceEvents": [\n',
            "rank 6",
        ),
        ('[{"ph": "X", "name": "ncclDevKernel", "ts": 1}]', "profiler trace"),
    ],
)
def test_a_trace_is_not_explained_but_its_file_is_read(text: str, words: str) -> None:
    for reader in (ml.read, ml.explain):
        with pytest.raises(
            ParseError, match=r"contains times, but no messages to explain; pass its file to ml\.read"
        ) as caught:
            reader(text)
        assert words in str(caught.value)


def test_a_trace_is_refused_even_if_its_events_contain_messages() -> None:
    trace = '{"traceEvents": [\n{"ph": "X", "name": "NCCL WARN Cuda failure"},\n{"Process Group Name": "0"}]}\n'
    with pytest.raises(ParseError, match="profiler trace"):
        ml.explain(trace)


def test_the_table_is_read_with_an_indentation_and_errors_are_no_products() -> None:
    lost = "|   5  ERR!                On   | 00000000:91:00.0 Off |                 ERR! |\n"
    text = "".join(f"    {line}\n" for line in TABLE.splitlines()) + lost
    explanation = ml.explain(text)
    assert explanation.facts["GPUs"] == "2 × NVIDIA A30, 1 × unreadable"
    assert "mixed-gpus" not in severities(text)


def test_lines_of_devicequery_are_not_taken_for_another_program() -> None:
    text = "> Peer access from RTX A (GPU0) -> RTX A (GPU1) : Yes\ndeviceQuery, CUDA Driver = CUDART, NumDevs = 2\n"
    assert ml.read(text).kind == "deviceQuery"


def test_every_rule_of_these_tools_has_a_source_and_a_docstring() -> None:
    rules = [*HEALTH_RULES, *GPU_TEST_RULES]
    assert len({rule.check.__name__ for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.source
        assert (rule.check.__doc__ or "").startswith(("Looks", "Compares"))
