"""Data sheet values of GPU products, for sources that omit them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshlab.base._errors import TopologyError
from meshlab.topology.model._hardware import Device


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU product."""

    name: str  # short name, such as ``"H100 80GB"``
    compute_capability: tuple[int, int] | None  # major and minor version, None for GPUs of AMD
    memory_gib: int  # nominal memory in GiB
    sm_count: int  # number of streaming multiprocessors, or of AMD's compute units
    nvlinks: int  # number of NVLinks, 0 if the product has none
    pcie_generation: int  # highest supported PCIe generation
    pci_id: str = ""  # PCI device ID under vendor 0x10de, empty if unknown
    xgmi_gbs: float | None = None  # GB/s of one XGMI link in one direction (ROCm/rccl src/graph/topo.h), None without
    xgmi_per_pair: int = 0  # number of XGMI links between any two GPUs of a board, 0 if it differs or is unknown

    def device(self, number: int, *, numa: str | None = None, cpus: str | None = None) -> Device:
        """Return a device of this product with the given index in its host."""
        return Device(
            id=number,
            name=self.name,
            backend="rocm" if self.compute_capability is None else "cuda",
            memory_bytes=self.memory_gib * 2**30,
            sm_count=self.sm_count,
            compute_capability=self.compute_capability,
            nvlink_count=self.nvlinks,
            pcie_generation_max=self.pcie_generation,
            pcie_width_max=16,
            xgmi_gbs=self.xgmi_gbs,
            numa=numa,
            cpus=cpus,
        )


# All PCI IDs are those of the PCI ID repository (pci.ids). Of the other values, the SM counts of A100, H100 and
# RTX 3090 were compared with published specifications. The rest is not confirmed. A GPU of AMD is what its tools list:
# MI250 and MI250X are two of them per module.
PRODUCTS = (
    Product("V100 SXM2 16GB", (7, 0), 16, 80, 6, 3, "0x1db1"),
    Product("V100 SXM2 32GB", (7, 0), 32, 80, 6, 3, "0x1db5"),
    Product("A100 40GB", (8, 0), 40, 108, 12, 4, "0x20b0"),
    Product("A100 80GB", (8, 0), 80, 108, 12, 4, "0x20b2"),
    Product("A100 PCIe 80GB", (8, 0), 80, 108, 12, 4, "0x20b5"),
    Product("A10G", (8, 6), 24, 80, 0, 4, "0x2237"),
    Product("RTX 3090", (8, 6), 24, 82, 4, 4, "0x2204"),
    Product("L4", (8, 9), 24, 58, 0, 4, "0x27b8"),
    Product("L40S", (8, 9), 48, 142, 0, 4, "0x26b9"),
    Product("H100 80GB", (9, 0), 80, 132, 18, 5, "0x2330"),
    Product("H100 PCIe 80GB", (9, 0), 80, 114, 12, 5, "0x2331"),
    Product("H200", (9, 0), 141, 132, 18, 5, "0x2335"),
    Product("GH200 96GB", (9, 0), 96, 132, 18, 5, "0x2342"),
    Product("B200", (10, 0), 180, 148, 18, 5, "0x2901"),
    Product("GB200", (10, 0), 186, 152, 18, 5, "0x2941"),
    Product("B300", (10, 3), 288, 148, 18, 6),
    Product("GB300", (10, 3), 288, 152, 18, 6),
    Product("GB10", (12, 1), 128, 48, 0, 5),
    Product("RTX PRO 6000", (12, 0), 96, 188, 0, 5),
    Product("RTX 5090", (12, 0), 32, 170, 0, 5),
    Product("RTX 4090", (8, 9), 24, 128, 0, 4),
    Product("MI100", None, 32, 120, 0, 4, xgmi_gbs=24.0),
    Product("MI210", None, 64, 104, 0, 4, xgmi_gbs=36.0),
    Product("MI250", None, 64, 104, 0, 4, xgmi_gbs=36.0),
    Product("MI250X", None, 64, 110, 0, 4, xgmi_gbs=36.0),
    Product("MI300X", None, 192, 304, 0, 5, xgmi_gbs=48.0, xgmi_per_pair=1),
    Product("MI300A", None, 128, 228, 0, 5, xgmi_gbs=48.0),
    Product("MI325X", None, 256, 304, 0, 5, xgmi_gbs=48.0, xgmi_per_pair=1),
    Product("MI350X", None, 288, 256, 0, 5, xgmi_gbs=48.0, xgmi_per_pair=1),
    Product("MI355X", None, 288, 256, 0, 5, xgmi_gbs=48.0, xgmi_per_pair=1),
)
"""The products that readers and presets recognise."""

_BY_PCI = {product.pci_id: product for product in PRODUCTS if product.pci_id}


def find_product(name: str) -> Product:
    """Return the first product whose name starts with `name`, such as ``H100`` in any case."""
    for product in PRODUCTS:
        if product.name.lower().startswith(name.lower().strip()):
            return product
    raise TopologyError(
        f"unknown GPU product {name!r}", hint=f"choose one of {', '.join(product.name for product in PRODUCTS)}"
    )


_MODEL = re.compile(r"\b(?!HBM|SXM)(?:[A-Z]{1,3}\d{1,4}[A-Z]*|\d{4})\b")


_BRIDGED = re.compile(r"\bNVL\b|PCI|RTX|Quadro|TITAN|GeForce|\bA(?:30|40|4500|5000|6000)\b", re.IGNORECASE)


def is_bridged(name: str) -> bool:
    """Return whether NVLink bridges connect the cards of a product, so that a card without any is normal.

    Examples
    --------
    >>> is_bridged("NVIDIA H100 NVL"), is_bridged("NVIDIA H100 80GB HBM3")
    (True, False)
    """
    return _BRIDGED.search(name) is not None


def models_in(name: str) -> set[str]:
    """Return the models in the name of a GPU, such as H100. Memory and form factor are not models."""
    return set(_MODEL.findall(name))


_SERIES = re.compile(r"\bRTX (?:PRO )?\d{4}D?(?: Ada| Ti| SUPER| D\b)*|\b\d{4}\b", re.IGNORECASE)
_CARD = re.compile(r"\bNVL\b|\bPCIe\b|-PCIE-", re.IGNORECASE)


def gpu_model(name: str) -> str:
    """Return the model of a GPU with its form factor and without its memory. An unknown name is returned unchanged.

    Examples
    --------
    >>> gpu_model("NVIDIA A100-SXM4-40GB"), gpu_model("NVIDIA A100 80GB PCIe"), gpu_model("NVIDIA GeForce RTX 4090")
    ('A100', 'A100 PCIe', 'RTX 4090')
    """
    if series := _SERIES.search(name):
        return series[0] if " " in series[0] else f"RTX {series[0]}"
    if not (models := _MODEL.findall(name)):
        return name
    card = _CARD.search(name)
    return models[0] if card is None else f"{models[0]} {'NVL' if card[0].upper() == 'NVL' else 'PCIe'}"


def amd_product(name: str) -> Product | None:
    """Return the product of AMD in the name of a GPU, such as ``AMD Instinct MI300X VF``, or None if it is not listed.

    Examples
    --------
    >>> product = amd_product("AMD Instinct MI300X VF")
    >>> product.name if product else None
    'MI300X'
    """
    models = models_in(name)
    return next(
        (product for product in PRODUCTS if product.compute_capability is None and product.name in models), None
    )


def capability_of(name: str) -> tuple[int, int] | None:
    """Return the compute capability of a model, or None if it is unknown or ambiguous."""
    models = models_in(name)
    capabilities = {product.compute_capability for product in PRODUCTS if models & models_in(product.name)}
    return capabilities.pop() if len(capabilities) == 1 else None


def product_of_pci(vendor: str | None, device: str | None) -> Product | None:
    """Return the product with a PCI ID, or None if it is unknown."""
    return _BY_PCI.get(device) if vendor == "0x10de" and device else None


# Peak of dense matrix products in bfloat16 (float16 on V100). From Ampere on, data sheets also have twice the value,
# for sparse matrices. The first match is used.
_TFLOPS = (
    # NVIDIA's pages and data sheets, as cited in torchtitan/tools/utils.py of PyTorch.
    (r"GB200", 2500.0),
    (r"B200", 2250.0),
    (r"H100.*PCIe", 756.0),
    (r"H100.*NVL", 835.0),
    (r"H100|H200", 989.0),  # also GH200
    (r"A100\b", 312.0),
    (r"L40S", 362.0),
    # NVIDIA's data sheet, as cited in lightning/fabric/utilities/throughput.py.
    (r"V100S", 130.0),
    (r"V100.*PCIe", 112.0),
    (r"V100", 125.0),
    # Not confirmed with a data sheet. torchtitan cites Tom's Hardware for H20. Public tables agree on L4, but not on
    # A10G (70 or 125) and RTX 3090 (71 or 142). A800 and H800 are assumed to equal A100 and H100.
    (r"H20\b", 148.0),
    (r"H800", 989.0),
    (r"A800", 312.0),
    (r"L4\b", 121.0),
    (r"A10G", 70.0),
    (r"RTX 3090", 71.0),
)


def peak_tflops(name: str) -> float:
    """Return the peak of dense 16-bit matrix products of a GPU in TFLOP/s, or NaN if its name is unknown."""
    return next((peak for pattern, peak in _TFLOPS if re.search(pattern, name, re.IGNORECASE)), float("nan"))
