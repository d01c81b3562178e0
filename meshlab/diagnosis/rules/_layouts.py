"""Rules for degrees of parallelism that do not fit the number of processes, the model or the batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._torch_lines import last_rank_prefix

_WORLD = re.compile(
    r"world_?[ ]?size:? ?\(?(?P<world>\d{1,9})\)? is not (?P<how>divisible by|equal to) (?P<degrees>[^.\n]*\d[^.\n]*)"
    r"|(?P<product>\w+\(\d+\)(?: ?\* ?\w+\(\d+\))+) != WORLD_SIZE ?\(?(?P<of>\d+)"
    r"|Mesh should not be bigger than default world size:? (?P<default>\d+),? but found (?P<found>\d+)"
    r"|Assertion failed: mpiSize == (?P<expression>tp \* pp(?: \* cp)?)",
    re.IGNORECASE,
)
_SHARE = re.compile(
    r"(?P<what>[Tt]otal number of attention heads|num_attention_heads|num_query_groups|attention heads|hidden_size"
    r"|vocab_size|number of (?:kv |key/value )?heads) \((?P<size>\d+)\) must be (?:divisible by|a multiple of) "
    r"(?P<axis>[\w -]*?) ?\((?P<degree>\d+)\)"
    r"|^AssertionError: (?P<bare>\d+) is not divisible by (?P<by>\d+)$"
)
_BATCH = re.compile(
    r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size ?(?P<batch>\d+) != "
    r"(?P<micro>\d+) \* (?P<steps>\d+) \* (?P<world>\d+)"
    r"|global batch size \((?P<global>\d+)\) is not divisible by micro batch size \((?P<micro_size>\d+)\) times data "
    r"parallel size \((?P<data>\d+)\)"
)
_SEQUENCE = re.compile(r"First dimension of the tensor should be divisible by tensor parallel size")
_NUMBER = re.compile(r"\d+")
_MOST_DIVISORS = 12
_LARGEST = 1 << 20
_SOURCE = (
    "megatron/core/parallel_state.py, vllm/config, torchtitan/distributed/parallel_dims.py, deepspeed/runtime/config.py"
)


def _who(lines: list[PasteLine]) -> str:
    ranks = {rank for line in lines if (rank := last_rank_prefix(line, len(line.raw))) is not None}
    return f", reported by {rank_list(ranks)}" if ranks else ""


def _count(number: str, noun: str, plural: str) -> str:
    return f"{number} {noun}{plural if whole(number) != 1 else ''}"


def _divisors(number: int) -> str:
    """Return the degrees that divide a number of heads or processes, as a sentence, or nothing."""
    if not 1 < number <= _LARGEST:
        return ""
    divisors = [degree for degree in range(1, min(number, 4096) + 1) if number % degree == 0]
    return f" {number} can be divided by {', '.join(map(str, divisors[:_MOST_DIVISORS]))}."


def _joined(paste: Paste, pattern: re.Pattern[str], *literals: str) -> list[tuple[PasteLine, re.Match[str]]]:
    """Return the lines in which a pattern occurs, which a terminal may have broken over the next ones."""
    matches = []
    for line in other_lines(paste).find(*literals):
        texts = (paste.line(number).text.strip() for number in range(line.number, min(line.number + 3, len(paste) + 1)))
        if match := pattern.search(line.text) or pattern.search(" ".join(texts)):
            matches.append((line, match))
    return matches


@rule(
    "layout-does-not-fit",
    "The degrees of parallelism do not fit",
    source=_SOURCE,
    causes=("worker-exited", "rank-died"),
)
def layout_does_not_fit(paste: Paste) -> Iterator[TextFinding]:
    """Look for a program that refuses its layout: by the number of processes, the model, or the batch."""
    yield from _world_size(paste)
    yield from _model(paste)
    yield from _batch(paste)


def _world_size(paste: Paste) -> Iterator[TextFinding]:
    literals = ("world_size", "World size", "world size", "WORLD_SIZE", "mpiSize ==")
    matches = other_lines(paste).matches(_WORLD, *literals)
    if not matches:
        return
    lines = [line for line, _ in matches]
    match = matches[0][1]
    counted = match["world"] or match["of"] or match["default"]
    degrees = (match["degrees"] or match["product"] or match["found"] or match["expression"]).strip().rstrip(".;,)")
    degrees += ")" * (degrees.count("(") - degrees.count(")"))
    numbers = [whole(text) for text in _NUMBER.findall(degrees)]
    needed = numbers[0] if len(numbers) == 1 else prod(numbers) if numbers and max(numbers) <= _LARGEST else None
    if match["expression"]:
        why = f"The number of processes of MPI is not {degrees}, for which the engine was built."
        do = "Start as many processes (mpirun -n) as the product of the degrees with which the engine was built."
    else:
        world = whole(counted)
        why = f"The job has {_count(counted, 'process', 'es')}, and the layout asks for {degrees}"
        why += f", which is {needed}." if needed is not None and len(numbers) > 1 else "."
        if world == 1:
            why += " A world size of 1 often means that each process runs on its own, or that only one was started."
        do = (
            f"Choose degrees whose product divides the number of processes.{_divisors(world)}"
            if world > 1
            else "Start the program with a launcher and one process for each GPU (torchrun --nproc-per-node, srun "
            "--ntasks-per-node), and check that WORLD_SIZE reaches it."
        )
        if match["how"] == "equal to":
            do += " An inference engine that starts its own workers must not be started with torchrun as well."
    yield layout_does_not_fit.finding(
        "error",
        f"{_count(counted, 'process', 'es') if counted else 'the processes of MPI'} for {degrees}{_who(lines)}",
        why,
        do,
        lines,
    )


def _model(paste: Paste) -> Iterator[TextFinding]:
    if matches := other_lines(paste).matches(
        _SHARE, "must be divisible by", "must be a multiple of", "is not divisible by"
    ):
        lines = [line for line, _ in matches]
        match = matches[0][1]
        size, degree = whole(match["size"] or match["bare"]), whole(match["degree"] or match["by"])
        what = match["what"].removeprefix("Total ").removeprefix("total ") if match["what"] else "A size of the model"
        axis = match["axis"] or "the degree of parallelism"
        yield layout_does_not_fit.finding(
            "error",
            f"{what} {size}, {axis} {degree}{_who(lines)}",
            f"{'The ' * what.startswith('number')}{what} is {size}, which {axis} {degree} does not divide, so the "
            "ranks would get unequal parts.",
            f"Choose a degree that divides it, and use the other GPUs on another axis (pipeline or data parallel)."
            f"{_divisors(size)}",
            lines,
        )
    if lines := [line for line, _ in other_lines(paste).matches(_SEQUENCE, "First dimension of the tensor")]:
        yield layout_does_not_fit.finding(
            "error",
            f"the sequence, tensor parallel{_who(lines)}",
            "The first dimension of a tensor, with sequence parallelism the length of the sequence, is not divisible "
            "by the degree of tensor parallelism.",
            "Pad the sequences to a multiple of the degree (of twice the degree times cp with context parallelism), or "
            "turn sequence parallelism off.",
            lines,
        )


def _batch(paste: Paste) -> Iterator[TextFinding]:
    matches = _joined(paste, _BATCH, "train_batch_size is not", "global batch size (")
    if not matches:
        return
    lines = [line for line, _ in matches]
    match = matches[0][1]
    if match["batch"]:
        batch, micro, steps, world = (whole(match[name]) for name in ("batch", "micro", "steps", "world"))
        ranks, accumulated = _count(match["world"], "rank", "s"), _count(match["steps"], "step", "s")
        why = f"The batch size is {batch}, but {micro} per GPU × {accumulated} × {ranks} is {micro * steps * world}."
        if world == 1 and batch > micro * steps:
            why += " DeepSpeed sees a world size of 1, often because WORLD_SIZE is not set."
        do = (
            "Start it with a launcher that sets the world size (deepspeed, torchrun), or let all processes of the job "
            "see WORLD_SIZE and RANK. "
            if world == 1
            else ""
        ) + "Set only two of the three batch sizes in the configuration, or train_batch_size to the product."
        yield layout_does_not_fit.finding(
            "error", f"batch size {batch}, {_count(match['world'], 'rank', 's')}{_who(lines)}", why, do, lines
        )
    else:
        size, micro, data = (whole(match[name]) for name in ("global", "micro_size", "data"))
        yield layout_does_not_fit.finding(
            "error",
            f"global batch size {size}, data parallel {data}{_who(lines)}",
            f"The global batch size {size} is not divisible by {micro} × {data} = {micro * data}.",
            "Change the global or the micro batch size, or the degrees of parallelism, which give the data parallel "
            "size together with the number of processes.",
            lines,
        )


LAYOUT_RULES: tuple[Rule, ...] = (layout_does_not_fit,)
