"""One entry point takes a text or a file of any kind, and says what it took it for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError
from meshlab.nccl_tests._log import Log

CASES = Path(os.environ.get("MESHLAB_CASES", ""))
LOG = """# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
# Using devices
#  Rank  0 Group  0 Pid   1000 on     node00 device  0 [0x53] NVIDIA H100
#  Rank  1 Group  0 Pid   1000 on     node00 device  1 [0x64] NVIDIA H100
# Out of bounds values : 0 OK"""


@pytest.mark.parametrize(
    ("text", "kind", "type_"),
    [
        ("dp=2, tp=4", "mesh", ml.DeviceMesh),
        ("vllm serve m -tp 8", "layout of vllm", ml.DeviceMesh),
        ("[parallelism]\ntensor_parallel_degree = 4\n", "layout of torchtitan", ml.DeviceMesh),
        ("GPU0  X  NV18\nGPU1  NV18  X", "description of hardware", ml.Cluster),
        ("SwitchName=s1 Nodes=n[1-4]", "description of hardware", ml.Cluster),
        (LOG, "nccl-tests log", Log),
        (
            "node1:10:10 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "NCCL log",
            ml.diagnosis.Explanation,
        ),
    ],
)
def test_a_text_is_read_as_what_it_is(text: str, kind: str, type_: type, tmp_path: Path) -> None:
    path = tmp_path / "pasted"
    path.write_text(text)
    for source in (text, text.encode(), path, str(path)):
        reading = ml.read(source, world_size=8 if kind == "layout of torchtitan" else None)
        assert (reading.kind, type(reading.value)) == (kind, type_)
    assert kind in str(reading)
    assert f"<b>{kind}</b>" in reading._repr_html_()


def test_what_meshlab_saved_is_read(tmp_path: Path) -> None:
    with ml.launch(2, backend="threads") as engines:
        run = ml.bench(engines, sizes="1K", sampling="quick")
        run.wait()
    run.save(tmp_path / "run")
    assert ml.read(tmp_path / "run").kind == "saved run"
    assert len(ml.read(next((tmp_path / "run").glob("results.*"))).value) == 1
    tuning = ml.example("tuning").save(tmp_path / "tuning.json")
    assert ml.read(tuning).value.axis == "tp"


@pytest.mark.parametrize("text", ["", "hello", "\0\1\2", "\x80\x04\x95", "<html></html>"])
def test_anything_else_is_refused_with_what_could_be_passed(text: str) -> None:
    with pytest.raises(ParseError):
        ml.read(text)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="this folder has no saved run; pass one of its files"):
        ml.read(tmp_path)


@pytest.mark.skipif(not (CASES / "public").is_dir(), reason="MESHLAB_CASES is not set to a folder of real texts")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("case_01", "nccl-tests log"),
        ("case_02", "nccl-tests log"),
        ("case_04", "description of hardware"),
        ("case_07", "nccl-tests log"),
        ("case_12", "description of hardware"),
        ("case_18", "description of hardware"),
        ("case_31", "layout of vllm"),
        ("case_32", "layout of torchtitan"),
        ("case_33", "layout of torchtitan"),
        ("case_34", "layout of megatron-flags"),
        ("case_35", "layout of jax"),
        ("case_36", "layout of torch"),
        ("case_37", "nccl-tests log"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_real_files_are_recognised(name: str, kind: str) -> None:
    (path,) = (CASES / "public").glob(f"{name}*")
    world_size = {"case_32": 16, "case_33": 32, "case_34": 32}.get(name)
    assert ml.read(path, world_size=world_size).kind == kind
