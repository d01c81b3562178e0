"""The rates of a real GPU, and a real step of a small dense model next to its prediction. One GPU and torch suffice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import meshlab as ml

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def rates() -> Iterator[ml.prediction.ComputeRates]:
    with ml.launch(1, backend="threads") as engines:
        yield ml.benchmark.compute_rates(engines, seconds=0.05)


def test_rates_are_below_the_peak_and_grow_with_the_matrices(rates: ml.prediction.ComputeRates) -> None:
    small, large = rates.products("bfloat16", [512, 16384], [1024, 8192], [4096, 8192])
    print(rates, "products", small, large, "launch", rates.launch_us, "memory", rates.memory_tbs)
    for key, kernel in rates.kernels.items():
        for shape, rate in zip(2**kernel.shape, kernel.rate, strict=True):
            print(*key, *(round(x) for x in shape), f"{rate:.0f}")
    assert 0 < small < large < 2500
    assert 0.5 < rates.memory_tbs < 10
    assert 1 < rates.launch_us < 100


def layer_step(job: Any) -> float:
    """Return the seconds of forward and backward of a model in eager PyTorch, the optimizer included."""
    head, h = job.head_size, job.hidden

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(h) for _ in range(2)])
            sizes = [(h, 3 * h), (h, h), (h, 2 * job.ffn_hidden), (job.ffn_hidden, h)]
            self.products = torch.nn.ModuleList([torch.nn.Linear(*size, bias=False) for size in sizes])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            qkv, out, up, down = self.products
            b, s, _ = x.shape
            q, k, v = (t.view(b, s, -1, head).transpose(1, 2) for t in qkv(self.norms[0](x)).chunk(3, dim=-1))
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(attended.transpose(1, 2).reshape(b, s, h))
            gate, value = up(self.norms[1](x)).chunk(2, dim=-1)
            return x + down(torch.nn.functional.silu(gate) * value)

    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            embedding = torch.nn.Embedding(job.vocabulary, h)
            layers = torch.nn.Sequential(*(Layer() for _ in range(job.layers)))
            output = torch.nn.Linear(h, job.vocabulary, bias=False)
    finally:
        torch.set_default_dtype(torch.float32)
    parameters = [*embedding.parameters(), *layers.parameters(), *output.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    tokens = torch.randint(job.vocabulary, (job.micro_batch, job.sequence), device="cuda")

    def step() -> None:
        for _ in range(job.global_batch // job.micro_batch):
            logits = output(layers(embedding(tokens))).float()
            torch.nn.functional.cross_entropy(logits.view(-1, job.vocabulary), tokens.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[1]


@pytest.mark.parametrize(("micro_batch", "hidden"), [(1, 1024), (1, 4096), (4, 4096)])
def test_a_real_step_is_within_its_range(rates: ml.prediction.ComputeRates, micro_batch: int, hidden: int) -> None:
    job = ml.Job(
        layers=4, hidden=hidden, heads=hidden // 128, ffn_hidden=int(3.5 * hidden), sequence=4096, vocabulary=32_000,
        micro_batch=micro_batch, global_batch=8, zero=0, software="eager", gradient_dtype="bfloat16",
    )  # fmt: skip
    seconds = layer_step(job)
    for source in (None, rates):
        step = ml.prediction.step_time(job, "dp=1", ml.preset("dgx-h200", nodes=1), rates=source)
        print(f"mb {micro_batch} h {hidden}: measured {seconds:.4f} s, predicted {step.expected_s:.4f}, {step.verdict}")
    assert step.low_s < seconds < step.high_s
