"""Rank lists of layouts that other projects published in docstrings, papers and issues."""

from __future__ import annotations

import itertools

from meshlab.mesh._mesh import DeviceMesh


def lists(mesh: DeviceMesh, *axes: str) -> list[list[int]]:
    return mesh[axes].array.tolist()


def test_megatron_docstring_of_eight_ranks() -> None:
    mesh = DeviceMesh.read({"tp": 2, "pp": 2, "dp": 2, "order": "tp-pp-dp"}, framework="megatron")
    assert lists(mesh, "dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert lists(mesh, "tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert lists(mesh, "pp") == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_megatron_docstring_of_24_ranks() -> None:
    mesh = DeviceMesh.read({"tp": 2, "dp": 3, "pp": 4, "order": "tp-dp-pp"}, framework="megatron")
    groups = lists(mesh, "dp")
    assert (groups[0], groups[1], groups[7]) == ([0, 2, 4], [1, 3, 5], [19, 21, 23])


def test_megatron_hierarchical_context_groups_of_16_ranks() -> None:
    mesh = DeviceMesh("cp=16").split_axis("cp", level3=4, level2=2, level1=2)
    assert lists(mesh, "level1") == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert sorted(lists(mesh, "level2"))[:4] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted(lists(mesh, "level3")) == [[first, first + 4, first + 8, first + 12] for first in range(4)]


def test_xdit_issue_with_five_axes() -> None:
    mesh = DeviceMesh.read(
        {"tp": 1, "sp": 2, "pp": 2, "cfg": 2, "dp": 2, "order": "tp-sp-pp-cfg-dp"}, framework="megatron"
    )
    assert lists(mesh, "dp") == [[rank, rank + 8] for rank in range(8)]
    assert lists(mesh, "cfg") == [[rank + half, rank + half + 4] for half in (0, 8) for rank in range(4)]
    assert lists(mesh, "sp") == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert lists(mesh, "pp") == [[rank, rank + 2] for rank in (0, 1, 4, 5, 8, 9, 12, 13)]


def test_deepspeed_docstring_of_eight_ranks() -> None:
    mesh = DeviceMesh.read("ProcessTopology(axes=['pipe', 'data', 'model'], dims=[2, 2, 2])")
    assert lists(mesh, "pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.select(pp=0, dp=1).ranks.tolist() == [2, 3]


def test_deepspeed_docstring_of_experts() -> None:
    mesh = DeviceMesh("dp=8, tp=2").view("edp=2, ep=4, tp=2")
    assert sorted(lists(mesh, "ep")) == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert sorted(lists(mesh, "edp")) == [[rank, rank + 8] for rank in range(8)]


def test_torch_docstring_of_slices_and_flattening() -> None:
    mesh = DeviceMesh("dp=2, pp=2, cp=2")
    for rank in (0, 1, 4, 5):
        assert mesh.submesh("dp", "cp", rank=rank).ranks.tolist() == [[0, 1], [4, 5]]
    assert lists(DeviceMesh("dp=2, cp=2, tp=2").flatten("dp", "cp"), "dp_cp") == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_torch_issue_of_folding_tensor_and_expert_parallelism() -> None:
    mesh = DeviceMesh("dp=2, tp=8")
    experts = mesh.view("dp=2, ep=4, etp=2")
    assert lists(mesh, "tp") == [list(range(8)), list(range(8, 16))]
    assert lists(experts, "ep")[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert lists(experts, "etp")[:2] == [[0, 1], [2, 3]]


def test_llama3_figure_of_16_gpus() -> None:
    mesh = DeviceMesh.read({"tp": 2, "cp": 2, "pp": 2, "dp": 2, "order": "tp-cp-pp-dp"}, framework="megatron")
    for axis, partner in (("tp", 1), ("cp", 2), ("pp", 4), ("dp", 8)):
        assert mesh[axis].of(0).ranks == (0, partner)


def test_megatron_issue_of_data_ranks_under_context_parallelism() -> None:
    mesh = DeviceMesh.read("--context-parallel-size 16", world_size=32)
    assert lists(mesh, "cp") == [list(range(16)), list(range(16, 32))]
    assert lists(mesh, "dp") == [[rank, rank + 16] for rank in range(16)]
    assert mesh.coordinates(17) == {"dp": 1, "cp": 1}


def test_order_strings_of_all_permutations_put_the_first_token_fastest() -> None:
    sizes = {"tp": 2, "cp": 3, "dp": 2, "pp": 5}
    for order in itertools.permutations(sizes):
        mesh = DeviceMesh.read({**sizes, "order": "-".join(order)}, framework="megatron")
        stride = 1
        for token in order:
            assert mesh[token].of(0).ranks == tuple(range(0, stride * sizes[token], stride))
            stride *= sizes[token]
