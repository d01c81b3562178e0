"""Real texts of NCCL: findings name the right ranks, hosts and devices, and healthy logs have none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError

FOLDER = Path(os.environ.get("MESHLAB_CASES", ""))

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (FOLDER / "explain").is_dir(), reason="MESHLAB_CASES names no folder with explained texts"),
]

# The code that is due, and what its subject must name.
SUBJECTS = {
    "08_one_hca_used_of_cluster.txt": ("single-nic", ["nodeB", "mlx5_0"]),
    "11_loopback_chosen_two_hosts.txt": ("wrong-interface-loopback", ["nodeA", "nodeB", "lo"]),
    "13_connection_abort_firewall.txt": ("net-unreachable", ["nodeA", "rank 0", "10.0.0.2", "45763"]),
    "14_torchrun_each_nranks_1.txt": ("net-plugin-too-old", ["node-4", "libnccl-net.so"]),
    "16_sigbus_at_init.txt": ("shm-too-small", ["nodeA", "1131", "/dev/shm"]),
    "19_p2p_disabled_consumer_info.txt": ("p2p-not-supported", ["GPUs 0-2", "nodeA"]),
    "21_nvswitch_a100_zero_nvls_is_normal.txt": ("nothing-wrong", ["nodeA"]),
    "23_imex_two_pods_one_node.txt": ("p2p-import-across-containers", ["pod-0", "rank 0"]),
    "24_modify_qp_no_such_device_sriov.txt": ("ib-device-not-in-container", ["pod-a", "mlx5_3"]),
    "26_ibext_plugin_noise_is_normal.txt": ("nothing-wrong", ["nodeA"]),
    "27_ib_disable_ignored_by_plugin.txt": ("ib-disable-without-effect", ["nodeC", "IBext_v8"]),
    "28_efa_provider_tcp_and_lo.txt": ("efa-missing", ["6f2d8a82d208"]),
    "30_efa_no_plugin_no_verbs.txt": ("socket-fallback", ["worker-1"]),
    "32_rccl_iommu_pt_warn.txt": ("iommu-not-passthrough", ["nodeA", "RCCL 2.20.5"]),
    "35_nccl_pattern_nets_at_sys_10gbe.txt": ("slow-network", ["nodeA", "NET/0-3"]),
    "36_shm_full_ci_t4.txt": ("shm-too-small", ["worker-t4", "GPU 0", "/dev/shm"]),
    "39_shm_cumem_217_no_p2p.txt": ("cumem-host-no-p2p", ["worker", "GPU 0"]),
    "41_collective_mismatch_ib_sizes.txt": ("size-mismatch", ["nodeA", "10.0.0.6"]),
    "43_nvls_401_present_state.txt": ("nvls-fabric", ["node004", "GPU 1"]),
    "45_ib_error12_roce_gid.txt": ("ib-retry-exceeded", ["worker-1", "GPU 0", "mlx5_0", "RoCE"]),
    "47_ib_error4_gdr_in_vm.txt": ("gdr-protection-error", ["vm1", "vm2"]),
    "48_modify_qp_110_rails.txt": ("rails-not-connected", ["host-01", "mlx5_5", "10.0.5.1", "10.0.2.7"]),
    "49_modify_qp_network_unreachable.txt": ("roce-no-route", ["node-3", "rank 1", "RoCE"]),
    "50_ib_memlock_too_small.txt": ("memlock-too-small", ["nodeA", "8192 kB"]),
    "52_version_mismatch_SYNTH.txt": ("version-mismatch", ["nodeA", "rank 0", "2.27.7", "nodeB", "rank 8", "2.26.2"]),
    "54_same_gpu_new_wording_SYNTH.txt": ("duplicate-gpu", ["511", "512", "nodeA", "device 0"]),
    "59_duplicate_gpu_torch_text.txt": ("duplicate-gpu", ["ranks 0, 3 and 7", "0000:0f:00.0"]),
    "63_nvls_bind_failed_torch_text.txt": ("nvls-fabric", ["host"]),
}

HEALTHY = [
    "own_gpu/nccl_info_tuning_h200x2.txt",
    "nccl_logs/16_k8s-mpi-prefix-h100x16-info-nvls.txt",
    "nccl_logs/17_k8s-mpi-prefix-a100x16-nccl29-info.txt",
    "nccl_logs/27_allgather-check-off-NA.txt",
    "nccl_logs/29_rows-cut-by-info-interleave.txt",
    "nccl_logs/31_h200x16-bf16-broken-first-row.txt",
    "nccl_logs/32_a100-pcie-2gpu-graph-info-v217.txt",
    "nccl_logs/33_sendrecv-2gpu-graph-info.txt",
    "nccl_logs/51_info-only-pytorch-8rank-2node-channels.txt",
]


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_subject_names_what_is_affected(name: str) -> None:
    code, words = SUBJECTS[name]
    (finding,) = [item for item in ml.explain(FOLDER / "explain" / name).findings if item.code == code]
    assert not [word for word in words if word not in finding.subject], finding.subject
    assert finding.lines


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_has_no_error_and_no_warning(name: str) -> None:
    assert not [item for item in ml.explain(FOLDER / name).findings if item.severity in ("error", "warning")]


@pytest.mark.parametrize("name", SUBJECTS)
def test_any_prefix_of_a_text_can_be_explained(name: str) -> None:
    """A paste is cut anywhere."""
    text = (FOLDER / "explain" / name).read_text()
    for length in range(0, len(text), max(len(text) // 20, 1)):
        try:
            explanation = ml.explain("\n" + text[:length])
        except ParseError:
            continue
        for table in explanation.tables:
            explanation.table(table)
