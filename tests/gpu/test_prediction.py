"""The port of NCCL's tuner against the library's own estimates on real GPUs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.prediction._constants import ALGORITHMS, PROTOCOLS, VERSIONS
from meshlab.prediction._costs import prices
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._tuner import NcclSettings
from tests.gpu.test_nccl import nccl_version, values

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZES = [1 << power for power in range(6, 29)]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def estimates(comm: Any) -> dict[str, list[float]]:
    """Return NCCL's estimates in µs by collective. Nothing runs."""
    one, other = (comm.empty(SIZES[-1] // 4, "float32") for _ in range(2))
    found: dict[str, list[float]] = {}
    for collective in COLLECTIVES:
        for size in SIZES:
            count = size // 4
            sent = count // comm.size if collective == "all_gather" else count
            received = count // comm.size if collective == "reduce_scatter" else count
            out = None if collective == "reduce" and comm.rank else other[:received]
            call = comm.prepare(collective, one[:sent], out)
            found.setdefault(collective, []).append(call.estimate_us())
    return found


@pytest.mark.usefixtures("whole_gpus")
def test_estimates_of_nccl_agree_with_the_port(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    """Both follow from the same table, so they agree to the precision of its floats."""
    found = values(gpu_engines, estimates, mesh)[0]
    library = nccl_version(gpu_engines)
    # The constants that are not newer than the library.
    version = next((name for name in VERSIONS if tuple(map(int, name.split("."))) <= library), list(VERSIONS)[-1])
    facts = gpu_engines.ranks[0].capabilities.facts
    settings = replace(NcclSettings.of_environment(os.environ), version=version)
    if facts.get("NVLS multicast") == "no":
        settings = replace(settings, nvls=False)
    links, of_group = GroupLinks.of(ml.place(mesh, ml.probe()), "tp")
    parts = []
    for collective, estimated in found.items():
        of_links = prices(links, collective, settings=settings)
        choice, believed = of_links.believe(of_group[0], SIZES)
        parts.append(
            pd.DataFrame(
                {
                    "collective": collective,
                    "size_bytes": SIZES,
                    "nccl_us": estimated,
                    "port_us": believed,
                    "algorithm": [ALGORITHMS[a] for a in of_links.algorithm[choice]],
                    "protocol": [PROTOCOLS[p] for p in of_links.protocol[choice]],
                }
            )
        )
    frame = pd.concat(parts, ignore_index=True)
    print(f"NCCL {library}, constants of {version}, {settings}")
    print(frame.round(3).to_string())
    known = frame[frame["nccl_us"] > 0]  # NCCL reports no time for what its tuner does not plan
    assert {"all_reduce", "all_gather", "reduce_scatter"} <= set(known["collective"])
    np.testing.assert_allclose(known["port_us"], known["nccl_us"], rtol=1e-3)


@pytest.mark.usefixtures("whole_gpus")
def test_a_prediction_has_the_estimates_of_the_running_library(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    names = ["all_reduce", "all_gather", "broadcast", "send_recv"]
    frame = ml.predict(mesh, ml.probe(), names, "1K:256M", axis="tp", engines=gpu_engines).frame()
    by_name = frame.groupby("collective")["nccl_estimate_us"]
    assert by_name.get_group("all_reduce").gt(0).all()
    assert not (frame["nccl_estimate_us"] <= 0).any()
