"""The machine of a run: readings of its GPUs, settings that differ between ranks, and redaction."""

from __future__ import annotations

import base64
import gzip
import json
import platform
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.benchmark._executor import device_lines, device_rows, differing_settings
from meshlab.benchmark.on_ranks._environment import read_settings
from meshlab.frames._schema import DEVICES, devices_frame
from meshlab.plans._sampling import Sampling
from meshlab.runs._redact import Redactor
from meshlab.topology.readers import _nvml as nvml

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.02, min_batches=6)


class Driver:
    """A stub of pynvml with one warm GPU. It has no NVLink counters beyond link 1."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_NVLINK_MAX_LINKS = 1, 2, 18

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=1 << 37, used=1 << 30),
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetPowerUsage": lambda handle: 412_300,
            "nvmlDeviceGetClockInfo": lambda handle, clock: 1980 if clock == 1 else 3201,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x1 | 0x4 | 0x40,
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 7 if kind == 0 else 0,
            "nvmlDeviceGetNvLinkErrorCounter": self._nvlink_errors,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    @staticmethod
    def _nvlink_errors(handle: int, link: int, counter: int) -> int:
        if link > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 1 + counter


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_start", lambda: (Driver(), ""))
    monkeypatch.setattr(nvml, "read_devices", lambda driver: ([], [], []))


@pytest.mark.usefixtures("driver")
def test_a_sample_has_the_reasons_for_low_clocks_and_counts_errors() -> None:
    (reading,) = nvml.sample()
    assert reading["throttle"] == "power cap, hardware thermal slowdown"
    assert (reading["ecc_corrected"], reading["ecc_uncorrected"], reading["nvlink_errors"]) == (
        7,
        0,
        2 * (1 + 2 + 3 + 4),
    )
    (row,) = device_rows("before", "node1", [reading])
    assert device_lines([row], with_host=False) == {
        "GPU 0": "1980 MHz · 61 °C · 412 W · throttled by power cap, hardware thermal slowdown · "
        "7 ECC errors corrected · 20 NVLink errors since the driver was loaded"
    }


@pytest.mark.usefixtures("driver")
def test_a_run_records_and_saves_readings_of_its_gpus(thread_engines: ml.Engines, tmp_path: Path) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    run.wait(120)
    devices = run.devices
    assert devices["when"].tolist() == ["before", "after"]
    assert {name: str(dtype) for name, dtype in devices.dtypes.items()} == {c.name: c.dtype for c in DEVICES}
    assert devices["temperature_c"].tolist() == [61.0, 61.0]
    assert devices["utilisation_percent"].isna().all()  # not reported by the driver
    assert "1980 MHz" in run.environment["GPUs before"]["GPU 0"]
    assert "1980 MHz" in run.environment["GPUs after"]["GPU 0"]
    again = ml.Run.load(run.save(tmp_path / "run"))
    assert again.devices.equals(devices)
    assert "GPUs after" in ml.Report(run).markdown()


def test_without_gpus_the_frame_is_empty(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    run.wait(120)
    assert len(run.devices) == 0
    assert devices_frame([]).dtypes.equals(run.devices.dtypes)
    assert "1 host" in run.environment["Host"]["machine"] or run.environment["Host"]["machine"]


def test_settings_that_differ_between_ranks_are_reported() -> None:
    same = [{"NCCL_ALGO": "Ring"}] * 3
    assert differing_settings(same) == {}
    assert differing_settings([*same, {"NCCL_ALGO": "Tree"}]) == {"NCCL_ALGO": "Ring on ranks 0, 1, 2; Tree on rank 3"}
    assert differing_settings([*same, {}]) == {"NCCL_ALGO": "Ring on ranks 0, 1, 2; not set on rank 3"}


def test_only_listed_variables_are_recorded() -> None:
    assert read_settings({"NCCL_ALGO": "Ring", "SECRET": "1"}) == {"NCCL_ALGO": "Ring"}


@pytest.mark.usefixtures("patient_rounds")
def test_redaction_replaces_hosts_uuids_addresses_and_users_everywhere(
    thread_engines: ml.Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.benchmark.on_ranks import _step_calls as step_calls

    host, uuid = platform.node(), "GPU-01234567-89ab-cdef-0123-456789abcdef"

    def fail(parts: Any) -> Any:
        raise OSError(f"{uuid} on {host} (10.1.2.3:4567), see /home/olga/log")

    monkeypatch.setattr(step_calls, "allocate", fail)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    with pytest.raises(BenchError, match=uuid):  # the error of the run contains names too
        run.wait(120)
    run.save(tmp_path / "run", redact=True)
    texts = "".join(path.read_text() for path in (tmp_path / "run").iterdir() if path.suffix != ".parquet")
    texts += str(ml.Run.load(tmp_path / "run").results["stop_reason"].tolist())
    # The packed results are unpacked, because their letters may be a short host name by chance.
    html = re.sub(
        r'(?<=<script type="application/gzip")[^>]*>(.*?)(?=</script>)',
        lambda packed: gzip.decompress(base64.b64decode(packed[1])).decode(),
        ml.Report(run, redact=True).html(),
        flags=re.DOTALL,
    )
    assert html.count('"collective"') > 0
    texts += ml.Report(run, redact=True).markdown() + html
    for secret in (host, uuid, "10.1.2.3", "olga"):  # a hash of hexadecimal digits never contains this name
        assert secret not in texts, secret
    assert host in json.dumps(run.environment)  # the run itself is unchanged
    loaded = ml.Run.load(tmp_path / "run")
    reason = loaded.results["stop_reason"].iloc[0]
    assert reason.startswith("rank 0: OSError: GPU-")
    assert "on host-" in reason
    assert "/home/user/log" in reason
    hashed = loaded.environment["Host"]["name"]
    assert hashed in reason  # one name, one hash
    with pytest.raises(BenchError, match="redact=True needs a run, not DataFrame, because only runs have"):
        ml.Report(run.results, redact=True)


def test_hashes_distinguish_names_and_are_different_every_time() -> None:
    redactor = Redactor(["node1.cluster.example", "node12"], ["ada"])
    text = redactor.text("node1 node12 node1.cluster.example node123 nodes ada adapter")
    first, second, full, *rest = text.split()
    assert first == full  # with and without its domain
    assert first != second
    assert all(word.startswith("host-") for word in (first, second, full))
    assert rest[:2] == ["node123", "nodes"]
    assert rest[2].startswith("user-")
    assert rest[3] == "adapter"
    assert Redactor(["node1"]).text("node1") != Redactor(["node1"]).text("node1")
    assert Redactor([]).text("node1") == "node1"
