"""Devices, nodes, and the links between them."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import TopologyError
from meshlab.topology.model._hardware import Device, Nic, Node, count_cpus, cpus_of_mask, format_cpus, parse_cpus
from meshlab.topology.model._links import Distance, clique_numbers, distances, explain_words, nvlink_gbs, pcie_gbs
from meshlab.topology.model._products import models_in
from tests.examples import examples


def node(words: str, **facts: object) -> Node:
    rows = tuple(tuple(row.split()) for row in words.strip().splitlines())
    devices = tuple(Device(id=i, compute_capability=(9, 0)) for i in range(sum(len(row) > 0 for row in rows)))
    return Node("a", devices, words=rows, **facts)  # type: ignore[arg-type]


def test_device_is_immutable_and_can_be_pickled_and_copied() -> None:
    device = Device(id=3, name="H100", memory_bytes=2**36, unknown={"temperature_c": "Not Supported"})
    with pytest.raises(FrozenInstanceError):
        device.name = "A100"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(device)) == device == copy.deepcopy(device)
    assert hash(replace(device, name="A100")) != hash(device)


def test_missing_values_are_shown_as_unknown_with_the_reason() -> None:
    page = Device(id=0, unknown={"temperature_c": "Not <Supported>"})._repr_html_()
    assert "unknown: Not &lt;Supported&gt;" in page
    assert ">0<" not in page.replace("device 0", "")


@pytest.mark.parametrize(
    ("capability", "fp16", "int8"), [((5, 2), False, False), ((6, 0), True, False), ((8, 0), True, True), (None,) * 3]
)
def test_number_formats_depend_on_the_compute_capability(
    capability: tuple[int, int] | None, fp16: bool | None, int8: bool | None
) -> None:
    device = Device(id=0, compute_capability=capability)
    assert (device.supports_fp16, device.supports_int8) == (fp16, int8)


def test_matrix_of_wrong_size_is_rejected() -> None:
    with pytest.raises(TopologyError, match=r"must be a 2 × 2 matrix \(2 devices, 0 NICs\), not 1 rows of length 1"):
        Node("a", (Device(id=0), Device(id=1)), words=(("X",),))


def test_links_of_a_node_without_words_are_unknown() -> None:
    bare = Node("a", (Device(id=0), Device(id=1)))
    assert bare.words == (("X", "?"), ("?", "X"))
    assert math.isnan(bare.gbs[0, 1])
    assert bare.nvlink_groups.tolist() == [0, 1]


def test_missing_direction_of_a_link_is_taken_from_the_other() -> None:
    half = node("X NV18 SYS\n? X ?\n? ? X")
    assert half.distance.tolist() == [[0, 1, 6], [1, 0, 7], [6, 7, 0]]
    assert half.nvlinks[1, 0] == 18
    assert [link.word for link in half.links()] == ["NV18", "SYS", "?"]


def test_bandwidths_are_those_of_nccl() -> None:
    h100 = node("X NV18 SYS\nNV18 X PIX\nSYS PIX X", cpu_model="Intel Xeon Platinum 8480C")
    assert h100.gbs[0, 1] == pytest.approx(370.8)
    assert h100.gbs[1, 2] == 48  # PCIe 5 x16
    assert h100.gbs[0, 2] == 22  # between two Sapphire Rapids sockets
    assert math.isnan(nvlink_gbs((3, 5)))
    assert (pcie_gbs(3), pcie_gbs(4, 8), pcie_gbs(5)) == (12, 12, 48)
    assert math.isnan(pcie_gbs(None))


def test_gpu_without_nvlink_has_its_own_domain() -> None:
    broken = node("X NV18 NODE NV18\nNV18 X NODE NV18\nNODE NODE X NODE\nNV18 NV18 NODE X")
    assert broken.nvlink_groups.tolist() == [0, 0, 1, 0]


def test_nearest_nics_and_the_devices_that_share_them() -> None:
    devices = tuple(Device(id=i) for i in range(3))
    nics = (Nic(name="mlx5_0"), Nic(name="mlx5_1"))
    words = [["X", "?", "?", "PIX", "SYS"], ["?", "X", "?", "PIX", "SYS"], ["?", "?", "X", "SYS", "NODE"]]
    words += [["PIX", "PIX", "SYS", "X", "SYS"], ["SYS", "SYS", "NODE", "SYS", "X"]]
    host = Node("a", devices, nics, words=tuple(map(tuple, words)))
    assert host.near_nics.tolist() == [[True, False], [True, False], [False, True]]
    assert host.nic_groups.tolist() == [0, 0, 1]


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.booleans(), min_size=n * n, max_size=n * n)))
def test_domains_are_cliques_that_cover_all_devices(bits: list[bool]) -> None:
    size = math.isqrt(len(bits))
    linked = np.array(bits).reshape(size, size)
    linked |= linked.T
    numbers = clique_numbers(linked)
    assert sorted(set(numbers.tolist())) == list(range(numbers.max() + 1))
    for number in range(numbers.max() + 1):
        members = np.flatnonzero(numbers == number)
        assert all(linked[a, b] for a in members for b in members if a != b)


def test_distances_follow_the_order_of_the_legend() -> None:
    words = ["X", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]
    assert distances([words]).tolist() == [list(range(8))]
    assert distances([["SOC"]]).tolist() == [[Distance.SYS]]  # drivers before 390


@settings(deadline=None, max_examples=examples(60))
@given(st.sets(st.integers(0, 300), min_size=1, max_size=40))
def test_cpu_lists_and_masks_round_trip(cpus: set[int]) -> None:
    ordered = tuple(sorted(cpus))
    assert parse_cpus(format_cpus(ordered)) == ordered
    mask = sum(1 << cpu for cpu in cpus)
    words = [f"{mask >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range(10))]
    assert cpus_of_mask(",".join(words)) == format_cpus(ordered)


def test_invalid_cpu_lists_are_empty() -> None:
    assert parse_cpus("N/A") == parse_cpus(None) == parse_cpus("") == ()
    assert cpus_of_mask("xyz") == ""
    assert count_cpus("6,14,22,30") == 4
    assert len(parse_cpus("0-99999")) <= 65537


@pytest.mark.parametrize(("backend", "hint"), [("CUDA", ""), ("cudda", "did you mean 'cuda'"), (None, ""), ("tpu", "")])
def test_an_unknown_backend_of_a_device_is_an_error(backend: str, hint: str) -> None:
    with pytest.raises(TopologyError, match=f"device 3: unknown backend {backend!r}") as caught:
        Device(id=3, backend=backend)
    assert hint in str(caught.value)
    assert "choose one of cuda, rocm, cpu" in str(caught.value)


@pytest.mark.parametrize("backend", ["cuda", "rocm", "cpu"])
def test_devices_of_all_backends_can_be_copied(backend: str) -> None:
    device = Device(id=0, backend=backend)
    assert pickle.loads(pickle.dumps(device)) == device
    assert replace(device, id=1).backend == backend


def test_link_words_of_a_text_are_explained() -> None:
    text = "dp leaves NVLink: its worst link is SYS, and tp stays inside it: NV18"
    assert explain_words(text) == ["SYS stands for the link between CPU sockets", "NV18 stands for 18 NVLinks"]
    assert explain_words("pp leaves the host") == []


def test_memory_and_form_factor_of_a_gpu_are_not_its_model() -> None:
    assert models_in("NVIDIA H100 80GB HBM3") == {"H100"}
    assert models_in("A100-SXM4-40GB") == {"A100"}
    assert models_in("some GPU") == set()
