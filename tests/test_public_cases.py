"""Texts of public reports, with the right answers beside them in MESHLAB_CASES/public. Skipped without that folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab import DeviceMesh
from meshlab.base._errors import MeshlabError

FOLDER = Path(os.environ.get("MESHLAB_CASES", ".")) / "public"
AVAILABLE = "MESHLAB_CASES" in os.environ and (FOLDER / "expected.json").is_file()
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text()) if AVAILABLE else {}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not AVAILABLE, reason="MESHLAB_CASES is not set to a folder with public/expected.json"),
]


def case(start: str) -> tuple[Path, dict[str, Any]]:
    """Return the file whose name starts so, and its right answer."""
    (name,) = (name for name in EXPECTED if name.startswith(start))
    return FOLDER / name, EXPECTED[name]


def lists(mesh: DeviceMesh, axis: str) -> list[list[int]]:
    return mesh[axis].array.tolist()


def test_every_public_case_has_a_test_here() -> None:
    starts = tuple(re.findall(r'"(case_\w+_)"', Path(__file__).read_text()))
    assert [name for name in EXPECTED if not name.startswith(starts)] == []


# -- nccl-tests --------------------------------------------------------------------------------------------------------


def test_the_preamble_of_rccl_tests_is_read() -> None:
    path, right = case("case_01_")
    (section,) = ml.nccl_tests.read(path).sections
    assert (section.preamble.tool, section.preamble.tool_version) == (right["tool"], right["tool_version"])
    assert section.preamble.library_version == right["library_version"]
    assert (section.collective, section.n_ranks) == (right["collective"], right["n_ranks"])
    assert len(section.rows) == right["rows"]
    assert section.footer.average_busbw_gbs == right["average_busbw_gbs"]


def test_lines_of_json_of_rccl_tests_are_read() -> None:
    path, right = case("case_02_")
    (section,) = ml.nccl_tests.read(path).sections
    rows = section.rows
    assert (section.collective, section.n_ranks, len(rows)) == (right["collective"], right["n_ranks"], right["rows"])
    assert [row.size_bytes for row in rows] == right["size_bytes"]
    assert [row.out_of_place.time_us for row in rows] == pytest.approx(right["out_of_place_time_us"])
    assert [row.in_place.time_us for row in rows] == pytest.approx(right["in_place_time_us"])
    assert [row.out_of_place.busbw_gbs for row in rows] == pytest.approx(right["busbw_out"])
    assert {half.n_wrong for row in rows for half in (row.out_of_place, row.in_place)} == {right["n_wrong"]}
    frame = ml.nccl_tests.read(path).results
    assert (set(frame["dtype"]), set(frame["op"])) == ({right["dtype"]}, {right["op"]})


@pytest.mark.parametrize(
    ("start", "copies", "n_ranks"),
    [("case_10b_", 2, 8), ("case_37_", 2, 6)],
)
def test_two_copies_are_named_with_their_cure(start: str, copies: int, n_ranks: int) -> None:
    path, _ = case(start)
    (section,) = ml.nccl_tests.read(path).sections
    assert (section.copies, section.n_ranks, section.status) == (copies, n_ranks, "no_table")
    assert any(f"{copies} copies" in str(note) and "make MPI=1" in str(note) for note in section.warnings)


def test_all_gather_of_2019_has_the_rates_of_today() -> None:
    path, right = case("case_07_")
    log = ml.nccl_tests.read(path)
    (section,) = log.sections
    assert (section.collective, section.n_ranks, len(section.rows)) == ("all_gather", right["n_ranks"], right["rows"])
    for row, wanted in ((section.rows[0], right["first_row"]), (section.rows[-1], right["last_row"])):
        half = row.out_of_place
        assert (row.size_bytes, half.time_us, half.busbw_gbs) == (
            wanted["size_bytes"],
            wanted["time_us"],
            wanted["busbw_gbs"],
        )
    assert section.rows[0].count == right["first_row"]["count"]
    last = log.results.query("size_bytes == 134217728 and not in_place").iloc[0]
    assert (last["algbw_gbs"], last["busbw_gbs"]) == pytest.approx((40.69, 20.34), abs=0.01)
    texts = " ".join(map(str, log.warnings))
    assert "rows are missing" in texts
    assert "6.6972" in texts
    assert right["warning_not_wanted"] not in texts


def test_bandwidths_of_a_million_are_read() -> None:
    path, right = case("case_08_")
    (section,) = ml.nccl_tests.read(path).sections
    last = section.rows[-1]
    assert (len(section.rows), section.unparsable_rows) == (right["rows"], right["unparsable_rows"])
    assert (last.size_bytes, last.out_of_place.time_us, last.in_place.time_us) == tuple(right["last_row"].values())


def test_runs_in_notes_are_sections_and_no_repeats() -> None:
    path, right = case("case_25_")
    log = ml.nccl_tests.read(path)
    assert [section.footer.average_busbw_gbs for section in log.sections] == right["averages"]
    assert {(section.collective, section.n_ranks) for section in log.sections} == {
        (right["collective"], right["n_ranks"])
    }
    # Each side is one launch, so the rows get no verdict about time, but their ratios are those of the right answer.
    compared = ml.compare(log.sections[0], log.sections[1])
    assert len(compared.frame()) == 6
    assert "all of them take 7 to 7.9 times as long" in str(compared)
    with pytest.raises(MeshlabError, match=r"has 4 runs whose times differ by a factor of up to 7\.9"):
        ml.compare(path, path)


# -- topologies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    ["case_04_", "case_12_"],
)
def test_matrices_of_launchers_and_of_lossy_pastes_are_read(start: str) -> None:
    path, right = case(start)
    cluster = ml.topology.read(path)
    node = cluster.node(0)
    words = cluster.link_words()
    assert len(node.devices) == right["gpus"]
    assert set(words[words != "X"]) == {right["every_pair"]}
    assert [device.numa for device in node.devices] == right["numa"]
    assert [device.cpus for device in node.devices] == right["cpus"]
    near = {
        f"GPU{gpu}": [nic.name for nic, is_near in zip(node.nics, row, strict=True) if is_near]
        for gpu, row in enumerate(node.near_nics)
    }
    for gpu, nic in right.get("nearest_nic", {}).items():
        assert near[gpu] == [nic]
    assert "GPU7 has no NIC" not in str(cluster.health())


def test_inactive_links_are_explained_or_refused_by_name() -> None:
    path, _ = case("case_16_")
    with pytest.raises(MeshlabError, match="nvidia-smi nvlink") as raised:
        ml.topology.read(path)
    assert "topo -m" in str(raised.value)
    explained = str(ml.explain(path))
    assert "GPU3" in explained
    assert "4 of 6 NVLinks are active" in explained
    assert "links 3, 5 are inactive" in explained


def test_the_system_tree_of_nccl_is_read() -> None:
    path, _ = case("case_18_")
    cluster = ml.topology.read(path)
    assert cluster.summary == "1 node, 2 × GPU, NVLink domains of 2"
    assert [nic.gbits for nic in cluster.node(0).nics] == [400.0, 400.0]
    assert cluster.node(0).gbs[0, 1] == pytest.approx(370.8)
    assert "pcie-speed-hidden" in cluster.health().codes
    assert "0.2 GB/s" in str(cluster.health())


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_decode_context_groups_of_vllm_are_read() -> None:
    path, right = case("case_31_")
    mesh = DeviceMesh.read(path.read_text())
    assert lists(mesh, "dcp") == right["dcp"]
    assert lists(mesh, "tp") == right["tp"]


def test_expert_tensor_parallelism_of_torchtitan_is_read() -> None:
    path, right = case("case_32_")
    mesh = DeviceMesh.read(path.read_text(), world_size=16, experts=True)
    for axis in ("ep", "etp", "efsdp"):
        assert lists(mesh, axis) == right[axis], axis


def test_a_toml_file_of_torchtitan_is_read() -> None:
    path, right = case("case_33_")
    assert DeviceMesh.read(path.read_text(), world_size=32) == DeviceMesh(right["axes"])


def test_a_yaml_file_of_megatron_is_read() -> None:
    path, right = case("case_34_")
    assert DeviceMesh.read(path.read_text(), world_size=32, experts=False) == DeviceMesh(right["axes"])
    assert DeviceMesh.read(path.read_text(), world_size=32, experts=True) == DeviceMesh(right["experts"])


def test_a_hybrid_mesh_of_jax_is_read() -> None:
    path, right = case("case_35_")
    mesh = DeviceMesh.read(path.read_text())
    assert list(mesh.shape) == right["shape"]
    first, second = mesh.axis_names
    assert lists(mesh, first)[:2] == right["axis0"]
    assert lists(mesh, second)[0] == right["axis1_first"]


def test_a_flattened_slice_of_torch_is_read() -> None:
    path, right = case("case_36_")
    assert lists(DeviceMesh.read(path.read_text()), "dp_cp") == right["dp_cp"]
