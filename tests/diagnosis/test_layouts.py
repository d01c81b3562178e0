"""Layouts that programs refuse: the number of processes, the heads of the model, the batch."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._layouts import layout_does_not_fit

BATCH = (
    "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
    "gradient_acc_step * world_size {}"
)

TEXTS = {
    "Megatron": (
        "[rank0]: RuntimeError: world_size (12) is not divisible by 8",
        "12 processes for 8, reported by rank 0",
        "12 can be divided by 1, 2, 3, 4, 6, 12.",
    ),
    "one process": (
        "RuntimeError: world_size (1) is not divisible by 2",
        "1 process for 2",
        "runs on its own",
    ),
    "vLLM below torchrun": (
        "RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (1) x pipeline_model_parallel_size "
        "(2)",
        "8 processes for tensor_model_parallel_size (1) x pipeline_model_parallel_size (2)",
        "which is 2.",
    ),
    "torchtitan": (
        "AssertionError: Invalid parallel dims: dp(1) * tp(2) * pp(3) != WORLD_SIZE(8)",
        "8 processes for dp(1) * tp(2) * pp(3)",
        "which is 6.",
    ),
    "device mesh": (
        "RuntimeError: Mesh should not be bigger than default world size 8, but found 16!",
        "8 processes for 16",
        "asks for 16.",
    ),
    "TensorRT-LLM": (
        "[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (worldConfig.cpp:9)",
        "the processes of MPI for tp * pp",
        "for which the engine was built",
    ),
    "heads": (
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        "number of attention heads 28, tensor parallel size 8",
        "28 can be divided by 1, 2, 4, 7, 14, 28.",
    ),
    "a number alone": (
        "[rank1]: AssertionError: 25 is not divisible by 4",
        "A size of the model 25, the degree of parallelism 4, reported by rank 1",
        "25 can be divided by 1, 5, 25.",
    ),
    "sequence": (
        "AssertionError: First dimension of the tensor should be divisible by tensor parallel size",
        "the sequence, tensor parallel",
        "Pad the sequences",
    ),
    "batch": (BATCH.format("64 != 4 * 8 * 4"), "batch size 64, 4 ranks", "is 128."),
    "batch of a process alone": (BATCH.format("64 != 4 * 8 * 1"), "batch size 64, 1 rank", "world size of 1"),
    "batch, wrapped": (BATCH.format("64 != 4 *\n8 * 1"), "batch size 64, 1 rank", "world size of 1"),
    "global batch": (
        "AssertionError: global batch size (10) is not divisible by micro batch size (2) times data parallel size (4)",
        "global batch size 10, data parallel 4",
        "2 × 4 = 8",
    ),
}


def findings(text: str) -> list[TextFinding]:
    return list(layout_does_not_fit(Paste(text)))


@pytest.mark.parametrize("name", TEXTS)
def test_the_numbers_are_named_with_what_fits(name: str) -> None:
    text, subject, part = TEXTS[name]
    (finding,) = findings(text)
    assert (finding.code, finding.subject, finding.severity) == ("layout-does-not-fit", subject, "error")
    assert part in f"{finding.why} {finding.do}"


@pytest.mark.parametrize(
    "text",
    [
        'raise RuntimeError(f"world_size ({world_size}) is not divisible by {total_model_size}")',
        "assert self.total_num_heads % tp_size == 0",
        "using world size: 8, data-parallel size: 2, tensor-model-parallel size: 4",
        "UserWarning: the batch of 25 is not divisible by 4, dropping the rest",
    ],
)
def test_source_code_and_notes_give_nothing(text: str) -> None:
    assert findings(text) == []
