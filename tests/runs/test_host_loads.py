"""The loads of the devices of a host in the conditions of a run, and the rows that views draw of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import meshlab as ml
from meshlab.frames._schema import LOADS, loads_frame
from meshlab.runs._host_loads import loads_of, pack_loads
from meshlab.widgets._readings import load_state

GPUS = [
    {"id": 0, "utilisation_percent": 87.0, "memory_used_bytes": 40 << 30, "temperature_c": 61.0, "power_w": 612.4,
     "clock_sm_mhz": 1980.0, "nvlink_tx_gbs": 210.0, "nvlink_rx_gbs": 208.0, "throttle": ""},
    {"id": 1, "utilisation_percent": 12.0, "throttle": "power cap, hardware slowdown"},
]  # fmt: skip


def packed(at_s: float = 1.5) -> dict[str, Any]:
    return pack_loads(at_s, [99.6, 3.2], GPUS, {"mlx5_0": (12.5, 0.25)})


def test_every_device_of_a_reading_is_a_row_again() -> None:
    loads = loads_of({"host": "n", "launch": 0, "step": 3, "loads": packed()})
    assert [load["device"] for load in loads] == ["core 0", "core 1", "GPU 0", "GPU 1", "mlx5_0"]
    assert all((load["host"], load["step"], load["at_s"]) == ("n", 3, 1.5) for load in loads)
    core, _, first, second, nic = loads
    assert core["use_percent"] == 100.0
    assert (first["use_percent"], first["memory_used_gib"], first["clock_mhz"]) == (87.0, 40.0, 1980.0)
    assert (first["tx_gbs"], first["rx_gbs"], first["throttle"]) == (210.0, 208.0, "")
    assert second["throttle"] == "power cap, hardware slowdown"
    assert (nic["tx_gbs"], nic["rx_gbs"]) == (12.5, 0.25)
    frame = loads_frame(loads)
    assert list(frame) == [column.name for column in LOADS]
    assert frame["power_w"].notna().sum() == 1  # unknown for the second GPU


@pytest.mark.parametrize("loads", [None, "many", {}, {"at_s": "x"}, {"at_s": 1.0, "core_percent": "1 two"}])
def test_a_damaged_reading_has_no_loads(loads: Any) -> None:
    assert loads_of({"host": "n", "loads": loads}) == []


def test_the_record_of_a_run_has_a_row_per_device_on_its_time_axis() -> None:
    plan, mesh = ml.Plan("all_reduce", ["dp", "tp"], sizes="1K, 2K"), ml.DeviceMesh("dp=2, tp=2")
    shared = {"host": "n", "launch": 0, "load": 9.0, "other_cores": 1.2, "steal_percent": 7.0}
    rows = [{**shared, "step": step, "loads": packed(1.0 + step)} for step in range(4)]
    run = ml.frames.RunData(plan, mesh, run_id="1", source="nccl", where="4 GPUs", conditions=rows)
    state = load_state(run)
    assert [row["name"] for row in state["rows"]] == ["CPU · 2 cores", "GPU 0", "GPU 1", "mlx5_0"]
    assert state["end_s"] == 4.0
    assert state["marks"] == [[0.0, "all_reduce on dp"], [2.0, "all_reduce on tp"]]
    cpu, first, second, nic = state["rows"]
    assert cpu["cells"] == [[100] * 4, [3] * 4]
    assert ["steal", "up to 7\u2009%"] in cpu["facts"]
    assert first["traffic"] == [210.0] * 4
    assert dict(first["facts"])["most NVLink"] == "210\u2009GB/s"
    assert (second["throttle"], second["throttled"]) == ("power cap, hardware slowdown", [1.0, 2.0, 3.0, 4.0])
    assert nic["unit"] == "GB/s"
    assert len(run.loads) == 4 * 5
    many = [{**shared, "step": 0, "loads": packed(k / 2)} for k in range(1, 2000)]
    thinned = load_state(ml.frames.RunData(plan, mesh, run_id="1", source="nccl", where="", conditions=many))
    assert len(thinned["rows"][0]["times"]) <= 240
    assert thinned["rows"][0]["times"][-1] == thinned["end_s"] == 999.5
    assert load_state(SimpleNamespace(condition_rows=[{"host": "n"}])) == {}  # type: ignore[arg-type]


def test_the_record_is_saved_with_the_run(thread_engines: ml.Engines, tmp_path: Any) -> None:
    run = ml.bench(thread_engines, "dp=2, tp=2", axis="tp", sizes="1K", sampling=ml.Sampling(max_s=0.02))
    run.wait(60)
    assert "core 0" in set(run.loads["device"])
    saved = ml.Run.load(run.save(tmp_path / "run"))
    assert saved.loads.equals(run.loads)
    assert load_state(saved) == load_state(run)
    assert len(run.redacted().loads) == len(run.loads)
