"""Pasted output of rocm-smi --showtopo and amd-smi topology, complete and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import ParseError, TopologyError
from meshlab.topology.readers._amd_smi import looks_like_amd_smi, read_amd_smi

Cells = Sequence[Sequence[object]]


def matrix(n: int, cell: Callable[[int, int], object], diagonal: object = "0") -> list[list[object]]:
    return [[diagonal if i == j else cell(i, j) for j in range(n)] for i in range(n)]


def rocm_table(title: str, cells: Cells) -> str:
    names = [f"GPU{k}" for k in range(len(cells))]
    rows = [f"{name:<7}" + "".join(f"{cell!s:<13}" for cell in row) for name, row in zip(names, cells, strict=True)]
    return "\n".join([f" {title} ".center(90, "="), " " * 7 + "".join(f"{name:<13}" for name in names), *rows, ""])


def rocm_text(types: Cells, weights: Cells | None = None, hops: Cells | None = None, numa: Sequence[int] = ()) -> str:
    parts = [" ROCm System Management Interface ".center(90, "=")]
    parts += [] if weights is None else [rocm_table("Weight between two GPUs", weights)]
    parts += [] if hops is None else [rocm_table("Hops between two GPUs", hops)]
    parts += [rocm_table("Link Type between two GPUs", types), " Numa Nodes ".center(90, "=")]
    for gpu, node in enumerate(numa):
        parts += [f"GPU[{gpu}]\t\t: (Topology) Numa Node: {node}", f"GPU[{gpu}]\t\t: (Topology) Numa Affinity: {node}"]
    return "\n".join([*parts, " End of ROCm SMI Log ".center(90, "="), ""])


def bus_ids(n: int) -> list[str]:
    return [f"0000:{16 * k + 5:02x}:00.0" for k in range(n)]


def amd_table(title: str, cells: Cells) -> str:
    names = bus_ids(len(cells))
    rows = [f"{name} " + "".join(f"{cell!s:<13}" for cell in row) for name, row in zip(names, cells, strict=True)]
    return "\n".join([f"{title} TABLE:", " " * 13 + " ".join(names), *map(str.rstrip, rows), ""])


# The eight GPUs of a host with four modules of two: links per pair.
COUNTS = [
    [0, 4, 1, 0, 0, 0, 2, 0],
    [4, 0, 0, 1, 0, 1, 0, 0],
    [1, 0, 0, 4, 2, 0, 0, 0],
    [0, 1, 4, 0, 0, 0, 0, 1],
    [0, 0, 2, 0, 0, 4, 1, 0],
    [0, 1, 0, 0, 4, 0, 0, 1],
    [2, 0, 0, 0, 1, 0, 0, 4],
    [0, 0, 0, 1, 0, 1, 4, 0],
]
RATES = matrix(8, lambda i, j: f"50000-{50_000 * COUNTS[i][j]}" if COUNTS[i][j] else "0-0", "N/A")
MODULES = amd_table("LINK TYPE", matrix(8, lambda i, j: "XGMI", "SELF")) + amd_table("NUMA BW", RATES)
MESH = rocm_text(
    matrix(8, lambda i, j: "XGMI"), matrix(8, lambda i, j: 15), matrix(8, lambda i, j: 1), [0, 0, 0, 0, 1, 1, 1, 1]
)
HIVES = rocm_text(matrix(8, lambda i, j: "XGMI" if i // 4 == j // 4 else "PCIE"), numa=[0, 0, 0, 0, 1, 1, 1, 1])
PRODUCT = "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X VF\n"


def words(text: str) -> list[list[str]]:
    return [list(row) for row in read_amd_smi(text).node(0).words]


# -- both tools --------------------------------------------------------------------------------------------------------


def test_a_full_mesh_without_a_product_has_links_of_unknown_number_and_rate() -> None:
    cluster = read_amd_smi(MESH)
    assert cluster.summary == "1 node, 8 × GPU, XGMI domains of 8"
    assert (cluster.source, cluster.backend_counts) == ("rocm-smi --showtopo", {"rocm": 8})
    assert cluster.node(0).words[0] == ("X", *["XGMI"] * 7)
    assert [device.numa for device in cluster.devices] == ["0"] * 4 + ["1"] * 4
    assert np.isnan(cluster.node(0).gbs[0, 1])
    assert "does not name the product" in " ".join(cluster.notes)


@pytest.mark.parametrize("cluster", [read_amd_smi(PRODUCT + MESH), read_amd_smi(MESH, device="MI300X")])
def test_the_product_shows_number_and_rate_of_the_links(cluster: ml.Cluster) -> None:
    node = cluster.node(0)
    assert node.words[0][:3] == ("X", "XGMI1", "XGMI1")
    assert (node.gbs[0, 1], node.device_nvlink_gbs) == (48, 7 * 48)
    assert "48 GB/s per XGMI link and direction, as RCCL assumes for MI300X" in " ".join(cluster.notes)
    assert "two MI300X of a board have 1" in " ".join(cluster.notes)


def test_bandwidths_show_the_number_of_links() -> None:
    cluster = read_amd_smi(MODULES)
    node = cluster.node(0)
    assert node.nvlinks.tolist() == COUNTS
    assert node.words[0] == ("X", "XGMI4", "XGMI1", "XGMI0", "XGMI0", "XGMI0", "XGMI2", "XGMI0")
    assert node.devices[3].bus_id == "0000:35:00.0"
    assert (cluster.source, cluster.summary) == ("amd-smi topology", "1 node, 8 × GPU, XGMI domains of 8")
    # The peak that the driver reports, as long as no product is named; unknown through other GPUs.
    assert node.gbs[0, [1, 2, 6]].tolist() == [200, 50, 100]
    assert np.isnan(node.gbs[0, [3, 4, 5, 7]]).all()
    assert read_amd_smi(MODULES, device="MI250X").node(0).gbs[0, [1, 2, 6]].tolist() == [144, 36, 72]
    assert cluster.health().codes == ()


def test_weights_show_which_pairs_have_no_link_of_their_own() -> None:
    weights = matrix(4, lambda i, j: 30 if i + j == 3 else 15)
    assert words(rocm_text(matrix(4, lambda i, j: "XGMI"), weights))[0] == ["X", "XGMI", "XGMI", "XGMI0"]


def test_a_virtual_machine_has_neither_weights_nor_bandwidths() -> None:
    text = amd_table("WEIGHT", matrix(4, lambda i, j: 0)) + amd_table(
        "LINK TYPE", matrix(4, lambda i, j: "XGMI", "SELF")
    )
    text += amd_table("NUMA BW", matrix(4, lambda i, j: "0-0", "N/A"))
    assert words(text)[0] == ["X", "XGMI", "XGMI", "XGMI"]
    assert words("| 0000:05:00.0    AMD Instinct MI355X | N/A |\n" + text)[0] == ["X", "XGMI1", "XGMI1", "XGMI1"]


PCIE = matrix(4, lambda i, j: "PCIE")


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (rocm_text(PCIE, hops=matrix(4, lambda i, j: 2 if i // 2 == j // 2 else 3)), ["X", "NODE", "SYS", "SYS"]),
        (rocm_text(PCIE, matrix(4, lambda i, j: 40 if i // 2 == j // 2 else 52)), ["X", "NODE", "SYS", "SYS"]),
        (rocm_text(PCIE, numa=[0, 0, 1, 1]), ["X", "NODE", "SYS", "SYS"]),
        (rocm_text(PCIE), ["X", "?", "?", "?"]),
        (rocm_text(matrix(4, lambda i, j: "XXXX" if j == 1 else "PCIE"), numa=[0, 0, 1, 1]), ["X", "?", "SYS", "SYS"]),
    ],
)
def test_pairs_over_pcie_are_inside_or_outside_a_numa_node(text: str, row: list[str]) -> None:
    assert words(text)[0] == row


def test_peer_access_is_kept_and_one_gpu_is_a_machine() -> None:
    text = amd_table("ACCESS", matrix(2, lambda i, j: "DISABLED", "ENABLED"))
    node = read_amd_smi(text + amd_table("LINK TYPE", matrix(2, lambda i, j: "PCIE", "SELF"))).node(0)
    assert node.p2p == (("X", "NS"), ("NS", "X"))
    assert read_amd_smi(rocm_text([["0"]])).n_devices == 1


def test_the_output_of_both_tools_on_one_host_is_joined() -> None:
    both = read_amd_smi(MESH + MODULES)
    assert both.n_nodes == 1
    assert both.node(0).nvlinks.tolist() == COUNTS
    assert (both.device(5).numa, both.device(5).bus_id) == ("1", "0000:55:00.0")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 9), st.floats(0, 1))
def test_a_printed_table_is_read_back(seed: int, n: int, share: float) -> None:
    random = np.random.default_rng(seed)
    drawn = random.choice(["XGMI", "PCIE", "XXXX"], size=(n, n))
    types = matrix(n, lambda i, j: str(drawn[min(i, j), max(i, j)]))
    numa = random.integers(0, 3, size=n).tolist()

    def word(i: int, j: int) -> str:
        over_pcie = "NODE" if numa[i] == numa[j] else "SYS"
        return {"XGMI": "XGMI", "PCIE": over_pcie, "XXXX": "?"}[str(types[i][j])]

    expected = matrix(n, word, "X")
    text = rocm_text(types, numa=numa)
    node = read_amd_smi(text).node(0)
    assert [list(row) for row in node.words] == expected
    assert [device.numa for device in node.devices] == list(map(str, numa))
    # A text that was cut anywhere after the header has no wrong links.
    rows = text.index("\nGPU0", text.index("Link Type")), text.index(" Numa Nodes")
    part = read_amd_smi(text[: int(rows[0] + 15 + share * (rows[1] - rows[0] - 15))]).node(0)
    read, printed = np.array(part.words), np.array(expected)
    assert ((read == printed) | (read == "?")).all()


# -- JSON and CSV ------------------------------------------------------------------------------------------------------


def rocm_json(n: int) -> str:
    pairs = {f"(Topology) Link type between DRM devices {i} and {j}": "XGMI" for j in range(n) for i in range(j)}
    cards = {f"card{k}": {"(Topology) Numa Node": str(k // 2), "(Topology) Numa Affinity": "-1"} for k in range(n)}
    return json.dumps({**cards, "system": pairs})


def test_json_and_csv_of_rocm_smi_are_read() -> None:
    cluster = read_amd_smi(rocm_json(4))
    assert cluster.node(0).words[2] == ("XGMI", "XGMI", "X", "XGMI")
    assert [device.numa for device in cluster.devices] == ["0", "0", "1", "1"]
    csv = 'name, value\n"(Topology) Link type between DRM devices 0 and 1", "PCIE"\n'
    csv += '"(Topology) Hops between DRM devices 0 and 1", "3"\n'
    assert words(csv) == [["X", "SYS"], ["SYS", "X"]]


def amd_json() -> list[dict[str, object]]:
    names = bus_ids(8)
    return [
        {
            "gpu": i,
            "bdf": names[i],
            "links": [
                {"gpu": j, "bdf": names[j], "link_type": "SELF" if i == j else "XGMI", "bandwidth": RATES[i][j]}
                for j in range(8)
            ],
        }
        for i in range(8)
    ]


def test_json_of_amd_smi_is_read_with_text_around_it() -> None:
    cluster = read_amd_smi("$ amd-smi topology --json\n" + json.dumps(amd_json(), indent=4) + "\n$ exit\n")
    assert cluster.node(0).words == read_amd_smi(MODULES).node(0).words
    assert cluster.device(1).bus_id == "0000:15:00.0"
    old = [
        {
            "gpu": i,
            "link_type": {"gpu_0": "PCIE", "gpu_1": "PCIE", f"gpu_{i}": "SELF"},
            "hops": {"gpu_0": 2, "gpu_1": 2},
        }
        for i in range(2)
    ]
    assert words(json.dumps(old)) == [["X", "NODE"], ["NODE", "X"]]


def test_json_that_was_cut_is_an_error() -> None:
    with pytest.raises(ParseError, match="line 2: the JSON of amd-smi topology is not valid JSON"):
        read_amd_smi("$ amd-smi topology --json\n" + json.dumps(amd_json(), indent=4)[:2000])


# -- damaged text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"[1,0]<stdout>: {line}\n" for line in MESH.splitlines()),
        "".join(f"> {line}\n" for line in MESH.splitlines()),
        "```\nroot@host:~# rocm-smi --showtopo\n" + MESH + "```\n",
        MESH.replace("XGMI", "\x1b[1mXGMI\x1b[0m"),
        "\n".join(" ".join(line.split()) for line in MESH.splitlines()),
        MESH.replace("GPU[", "GPU ").replace("]\t\t:", "          :"),
        # A terminal of 60 columns.
        "\n".join(line[k : k + 59] for line in MESH.splitlines() for k in range(0, len(line.rstrip()), 59)),
    ],
    ids=["launcher", "quotation", "prompt", "colours", "spaces", "old NUMA lines", "wrapped"],
)
def test_text_around_the_tables_does_not_matter(text: str) -> None:
    assert looks_like_amd_smi(text)
    node = ml.topology.read(text).node(0)
    assert node.words == read_amd_smi(MESH).node(0).words
    assert node.complete


def test_a_cut_text_is_incomplete() -> None:
    cut = MESH[: MESH.index("GPU6", MESH.index("GPU5   XGMI"))]
    node = read_amd_smi(cut).node(0)
    assert not node.complete
    assert node.words[6][7] == "?"
    assert node.words[6][0] == "XGMI"  # links are symmetric
    assert "the text is truncated: missing GPU6, GPU7 of the link types" in node.notes
    assert read_amd_smi(cut).health().codes == ("incomplete",)


def test_several_hosts_are_several_machines() -> None:
    with pytest.raises(TopologyError, match=r"the text contains 2 machines \(0: line 2, 8 GPUs, 1: line \d+, 4 GPUs\)"):
        read_amd_smi(MESH + rocm_text(PCIE))
    assert read_amd_smi(MESH + rocm_text(PCIE), machine=1).n_devices == 4
    assert read_amd_smi(MESH + MESH, machine="all").summary == "2 nodes, 16 × GPU, XGMI domains of 8"
    mixed = "".join(f"{rank}: {line}\n" for line in MESH.splitlines() for rank in (0, 1))
    assert ml.topology.read(mixed, machine=1).n_devices == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "no output of rocm-smi --showtopo or amd-smi topology found: the text begins with 'nothing'"),
        (MESH[: MESH.index("Hops") - 20], "line 2: the text has weights of AMD's GPUs, but not the types"),
        (MESH[MESH.index(" Numa Nodes") :], "line 2: the text has NUMA nodes of AMD's GPUs, but not the types"),
        (MESH[: MESH.rindex("GPU0   0")].rpartition("\n")[0] + "\n==== Link Type between two GPUs ====\n", "no rows"),
        (
            MESH.replace("GPU1   XGMI         0 ", "GPU1   XGMI         0?"),
            r"line \d+: '0\?' in the link types is not what",
        ),
        (MESH.replace("GPU1   XGMI ", "GPU1   XGMI  XGMI "), r"line \d+: the row GPU1 of the link types has 9 cells"),
        (
            MESH.replace("GPU2   XGMI         XGMI", "GPU1   XGMI         PCIE"),
            "the row GPU1 of the link types appears twice",
        ),
    ],
)
def test_an_error_names_the_line_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read_amd_smi(text)


# -- what is made of it ------------------------------------------------------------------------------------------------


def test_a_lost_link_is_found_and_named_xgmi() -> None:
    cluster = read_amd_smi(MESH, device="MI300X").without_link(0, 1)
    (finding,) = cluster.health()
    assert finding.message == "GPU0 and GPU1 have no XGMI between them, but the other pairs have XGMI1"
    assert "amd-smi xgmi" in finding.fix
    slower = read_amd_smi(MODULES).with_rate("node0/GPU0-GPU1", "50%")
    assert slower.node(0).words[0][1] == "XGMI2"
    with pytest.raises(TopologyError, match="devices 0 and 4 have no XGMI between them; choose two devices with XGMI"):
        read_amd_smi(HIVES).without_link(0, 4)


def test_a_placement_names_xgmi_and_claims_no_rate_that_is_unknown() -> None:
    placement = ml.place("dp=2, tp=4", read_amd_smi(MESH, device="MI300X"))
    assert placement.explain("tp") == "tp stays inside XGMI: XGMI1, 48.0\u2009GB/s per direction"
    assert ml.place("dp=2, tp=4", read_amd_smi(MESH)).explain("tp") == "tp stays inside XGMI: XGMI"
    modules = ml.place("dp=4, tp=2", read_amd_smi(MODULES, device="MI250X"))
    assert modules.explain("tp") == "tp stays inside XGMI: XGMI4, 144\u2009GB/s per direction"
    assert modules.explain("dp") == "dp stays inside XGMI: XGMI0, data of some pairs pass other GPUs"
    assert "leaves XGMI: its worst link is SYS" in ml.place("dp=2, tp=4", read_amd_smi(HIVES)).explain("dp")
    with pytest.raises(TopologyError, match="no cost model of RCCL"):
        ml.predict("tp=8", read_amd_smi(MESH))


def test_the_pictures_name_xgmi() -> None:
    mesh = read_amd_smi(MESH, device="MI300X")
    texts = [text.get_text() for text in mesh.node(0).plot().texts]
    assert "XGMI · XGMI1 between all · 48.0\u2009GB/s each" in texts
    assert "XGMI between all" in [text.get_text() for text in read_amd_smi(MESH).node(0).plot().texts]
    modules = read_amd_smi(MODULES)
    ax = modules.node(0).plot()
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["XGMI4", "XGMI2", "XGMI1"]
    assert any("no arc: XGMI through other GPUs" in text.get_text() for text in ax.texts)
    legend = ml.plot.links(modules).get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()][-1] == "XGMI0: XGMI through other GPUs"


def test_an_explanation_has_the_machine() -> None:
    explanation = ml.explain("GPU Topology:\n" + PRODUCT + MESH)
    assert [span.kind for span in explanation.recognised] == ["rocm-smi or amd-smi topology"]
    assert explanation.facts["hardware"] == "1 node, 8 × AMD Instinct MI300X, XGMI domains of 8"
    assert ml.explain(json.dumps(amd_json(), indent=4)).facts["hardware"].endswith("XGMI domains of 8")
    assert ml.read(MODULES).kind == "description of hardware"
