from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.base._errors import BenchError, CommunicatorError, MeshError, ParseError
from meshlab.comm._catalog import CATALOG
from meshlab.comm._elements import pre_mul_sum
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling

MESH = DeviceMesh("dp=2, tp=4")


def test_a_plan_is_the_product_of_its_choices() -> None:
    plan = Plan(["all_reduce", "all_gather"], ["dp", "tp"], sizes="1K:4K", dtype=["float32", "int64"], op="sum, max")
    steps = plan.steps(MESH)
    # all_reduce has two operations. all_gather does not reduce and appears once.
    assert len(steps) == 2 * 3 * 2 * (2 + 1)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert {step.op for step in steps if step.collective == "all_gather"} == {None}
    assert {step.n_ranks for step in steps if step.axis == "tp"} == {4}
    assert {step.root for step in steps} == {None}


def test_sizes_are_innermost_so_that_curves_grow() -> None:
    steps = Plan("all_reduce", ["dp", "tp"], sizes="1K:4K").steps(MESH)
    assert [(step.axis, step.size_bytes) for step in steps] == [
        (axis, size) for axis in ("dp", "tp") for size in (1024, 2048, 4096)
    ]


def test_sizes_that_round_to_the_same_count_become_one_step() -> None:
    steps = Plan("all_gather", "tp", sizes="1, 2, 4, 8, 16, 32").steps(MESH)
    assert [(step.count, step.size_bytes) for step in steps] == [(1, 16), (2, 32)]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=5), st.sampled_from(["float32", "float64"]))
def test_the_size_of_a_step_follows_from_its_count(sizes: list[int], dtype: str) -> None:
    itemsize = 4 if dtype == "float32" else 8
    for step in Plan(["all_reduce", "reduce_scatter"], "tp", sizes=sizes, dtype=dtype).steps(MESH):
        n = 4 if step.collective == "reduce_scatter" else 1
        assert step.size_bytes == step.count * itemsize * n
        assert CATALOG[step.collective].size_bytes(step.count, itemsize, 4) == step.size_bytes


def test_a_plan_reads_names_with_commas_and_pastes_back() -> None:
    plan = Plan("all_reduce, broadcast", "dp,tp", sizes="1K", root=1)
    assert plan.collective == ("all_reduce", "broadcast")
    assert eval(repr(plan), {"Plan": Plan, "Sampling": Sampling}) == plan
    assert str(plan).startswith("all_reduce, broadcast along dp, tp, 1")


def test_collectives_that_cannot_work_in_place_are_measured_once() -> None:
    steps = Plan(["all_reduce", "send_recv"], "tp", sizes="1K", in_place=[False, True]).steps(MESH)
    assert [(step.collective, step.in_place) for step in steps] == [
        ("all_reduce", False),
        ("all_reduce", True),
        ("send_recv", False),
    ]


def test_an_operation_with_a_scalar_keeps_it() -> None:
    plan = Plan("all_reduce", "tp", sizes="1K", op=["sum", pre_mul_sum(0.5)])
    assert plan == Plan("all_reduce", "tp", sizes="1K", op="sum, pre_mul_sum(0.5)")
    assert [step.op for step in plan.steps(MESH)] == ["sum", "pre_mul_sum(0.5)"]
    assert Plan("all_reduce", "tp", op=pre_mul_sum(2)).op == ("pre_mul_sum(2)",)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"collective": "all_reduced"},
            CommunicatorError,
            r"unknown collective 'all_reduced' \(did you mean 'all_reduce'\?\); choose one of all_reduce",
        ),
        ({"dtype": "float33"}, CommunicatorError, "unknown dtype 'float33'"),
        ({"op": "xor"}, CommunicatorError, "unknown reduce operation 'xor'"),
        ({"mode": "fast"}, BenchError, "unknown mode 'fast'; choose one of isolated, pipelined, graph"),
        ({"sizes": "12Q"}, ParseError, "'12Q' is not a size"),
        ({"axis": "ep"}, MeshError, "unknown axis or group 'ep'; choose one of the axes dp, tp"),
        ({"axis": ()}, BenchError, "the plan has no axis"),
        ({"collective": ""}, BenchError, "the plan has no collective"),
        ({"collective": "barrier", "in_place": True}, BenchError, "barrier cannot work in place"),
        ({"collective": "barrier", "grouping": "pairs"}, BenchError, "pairs of ranks support send and send_recv, not"),
        (
            {"collective": "all_reduce", "axis": "tp", "concurrent": {"dp": "barrier"}},
            BenchError,
            "barrier moves no data, so it cannot run next to a concurrent axis; measure it in a separate run",
        ),
        ({"collective": "send"}, BenchError, "send is one side of a message; measure send_recv"),
        ({"collective": "recv"}, BenchError, "recv is one side of a message; measure send_recv"),
        (
            {"collective": "all_to_all", "in_place": True},
            BenchError,
            "all_to_all cannot work in place; measure it out of place, without in_place=True",
        ),
        ({"op": "pre_mul_sum"}, CommunicatorError, r"needs a scalar; pass op=pre_mul_sum\(0.5\)"),
        (
            {"collective": "broadcast", "root": 4},
            BenchError,
            "root=4 is outside the groups of tp; choose a rank from 0 to 3",
        ),
    ],
)
def test_an_invalid_plan_is_rejected(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    given: dict[str, object] = {"collective": "all_reduce", "axis": "tp", **arguments}
    with pytest.raises(error, match=message):
        Plan(**given).steps(MESH)  # type: ignore[arg-type]


def a_step_of_mine(comm: object) -> None:
    """A user-defined function."""


def test_a_function_has_its_name_and_no_size() -> None:
    plan = Plan([a_step_of_mine, "all_reduce"], "tp", sizes="1K, 4K", mode="isolated, pipelined")
    own = [step for step in plan.steps(MESH) if step.collective == "a_step_of_mine"]
    assert [(step.mode, step.size_bytes, step.dtype, step.op) for step in own] == [
        ("isolated", None, None, None),
        ("pipelined", None, None, None),
    ]
    assert len(plan.steps(MESH)) == 2 + 4
    assert plan.functions == {"a_step_of_mine": a_step_of_mine}
    assert plan == Plan(
        ["a_step_of_mine", "all_reduce"], "tp", "1K, 4K", mode="isolated, pipelined", functions={"a_step_of_mine": None}
    )
    assert str(Plan(a_step_of_mine, "tp")) == "a_step_of_mine along tp, pipelined"


def test_bucket_lists_are_sizes() -> None:
    assert Plan("all_reduce", "tp", sizes="1M, 25M, 25M, 40M").sizes == (1 << 20, 25 << 20, 40 << 20)


def test_a_shuffled_order_is_different_for_every_launch_and_reproducible() -> None:
    plan = Plan("all_reduce", "tp", shuffle=True, seed=7)
    first, second = plan.order(50, 0), plan.order(50, 1)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != list(range(50))
    assert first != second
    assert plan.order(50, 0) == first
    assert Plan("all_reduce", "tp", shuffle=True, seed=8).order(50, 0) != first


def all_reduce(comm: object) -> None:
    """A function with the name of a collective."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grouping": "some"}, "unknown grouping 'some'; choose one of together, alone, pairs"),
        ({"grouping": "pairs"}, "pairs of ranks support send and send_recv, not all_reduce; choose one of them"),
        ({"collective": "send"}, "or send with grouping='pairs'"),
        ({"launches": 0}, "launches must be at least 1, not 0"),
        ({"concurrent": {"dp": "all_reduced"}}, "unknown collective 'all_reduced'"),
        (
            {"concurrent": {"dp": "all_reduce"}, "grouping": "alone"},
            "cannot run next to a concurrent axis; measure them in a separate run",
        ),
        (
            {"collective": all_reduce},
            "function 'all_reduce' has the name of a collective, so its rows would be ambiguous",
        ),
        (
            {"collective": [lambda comm: 1, lambda comm: 2]},
            "two functions have the name '<lambda>', so their rows would be ambiguous",
        ),
        ({"collective": [3]}, "must be the name of a collective or a function that takes a communicator, not 3"),
    ],
)
def test_choices_that_exclude_each_other_are_rejected(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"collective": "all_reduce", "axis": "tp", **arguments}
    with pytest.raises((BenchError, CommunicatorError), match=message):
        Plan(**given).steps(MESH)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_batches": 0},
        {"min_batches": 9, "max_batches": 8},
        {"precision": 0.0},
        {"max_s": -1.0},
        {"warmup_batches": -1},
        {"precision": None},
        {"max_s": "1"},
    ],
)
def test_invalid_sampling_is_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(BenchError):
        Sampling(**arguments)


def test_an_axis_cannot_run_next_to_itself() -> None:
    mesh = DeviceMesh("dp=2, tp=2")
    with pytest.raises(
        BenchError, match=r"broadcast along tp cannot run next to tp itself, .* choose another axis: dp"
    ):
        Plan("all_reduce", "tp", concurrent={"tp": "broadcast"}).steps(mesh)
    both = Plan("all_reduce", ["dp", "tp"], sizes="1K", concurrent={"dp": "broadcast"}).steps(mesh)
    loads = [(step.axis, step.concurrent_axis) for step in both]
    assert loads == [("dp", None), ("tp", None), ("dp", None), ("tp", "dp")]


def test_named_samplings_are_increasingly_precise() -> None:
    samplings = [Plan("all_reduce", "tp", sampling=name).sampling for name in ("quick", "default", "thorough")]
    assert samplings[1] == Sampling() == Plan("all_reduce", "tp").sampling
    for less, more in itertools.pairwise(samplings):
        assert less.precision > more.precision
        assert less.min_batches < more.min_batches
        assert less.max_s < more.max_s
    with pytest.raises(BenchError, match=r"unknown sampling 'fast'.*choose quick, default, thorough, or pass a Samp"):
        Plan("all_reduce", "tp", sampling="fast")


def test_options_of_a_call_are_axes_of_the_plan() -> None:
    plan = Plan(
        ["all_reduce", "send_recv"],
        "tp",
        sizes="1K, 2K",
        buffers="plain, symmetric",
        algorithm=[None, "ring", "tree,ring"],
        min_ctas=[None, 8],
        max_ctas=[4, 16],
        alignment_bytes=4,
        n_aggregated=2,
    )
    steps = plan.steps(MESH)
    reduces = [step for step in steps if step.collective == "all_reduce"]
    # A minimum of 8 and a maximum of 4 exclude each other.
    assert len(reduces) == 2 * 2 * 3 * 3
    assert len(set(reduces)) == len(reduces)
    assert {(step.min_ctas, step.max_ctas) for step in reduces} == {(None, 4), (None, 16), (8, 16)}
    assert {step.algorithm for step in reduces} == {None, "ring", "tree,ring"}
    # Messages have no configuration, and are measured once for each kind of buffers.
    messages = [step for step in steps if step.collective == "send_recv"]
    assert [(step.buffers, step.size_bytes, step.algorithm, step.max_ctas) for step in messages] == [
        (kind, size, None, None) for kind in ("plain", "symmetric") for size in (1024, 2048)
    ]
    assert {(step.alignment_bytes, step.n_aggregated) for step in steps} == {(4, 2)}
    assert eval(repr(plan), {"Plan": Plan, "Sampling": Sampling}) == plan


def test_only_options_that_are_not_the_default_are_named() -> None:
    (step,) = Plan("all_reduce", "tp", sizes="1K").steps(MESH)
    assert str(step).endswith("along tp, pipelined")
    options = {"buffers": "symmetric", "protocol": "ll128", "max_ctas": 1, "alignment_bytes": 4, "n_aggregated": 8}
    plan = Plan("all_reduce", "tp", sizes="1K", **options)
    text = "symmetric buffers, LL128, at most 1 CTA, 4 B off alignment, 8 calls together"
    assert str(plan.steps(MESH)[0]).endswith(f"pipelined, {text}")
    assert str(plan).endswith(text)
    assert "plain buffers and symmetric buffers" in str(Plan("all_reduce", "tp", buffers="plain, symmetric"))


def test_functions_have_no_options() -> None:
    def own(comm: object) -> None:
        return None

    steps = Plan([own, "all_reduce"], "tp", sizes="1K", buffers="plain, symmetric", n_aggregated=2).steps(MESH)
    (step,) = [step for step in steps if step.collective == "own"]
    assert (step.buffers, step.alignment_bytes, step.n_aggregated) == (None, None, None)


def test_concurrent_collectives_have_the_same_options() -> None:
    steps = Plan("all_reduce", "tp", sizes="1K", concurrent={"dp": "all_gather"}, buffers="registered").steps(MESH)
    parts = [part for step in steps for part in step.parts]
    assert {part.buffers for part in parts} == {"registered"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffers": "window"}, "unknown buffers 'window'; choose one of plain, registered, symmetric"),
        ({"buffers": []}, "the plan has no buffers; pass at least one"),
        ({"protocol": "ll64"}, "unknown protocol 'll64'"),
        ({"cta_policy": "0"}, "unknown cta_policy '0'"),
        ({"max_ctas": 0}, "max_ctas must be a positive integer, not 0"),
        ({"min_ctas": 9, "max_ctas": [4, 8]}, "min_ctas=9 is larger than every max_ctas of the plan"),
        ({"n_aggregated": 0}, "n_aggregated must be at least 1, not 0"),
        ({"alignment_bytes": 2}, "alignment_bytes must be a multiple of the 4 bytes of a float32, not 2"),
        ({"alignment_bytes": -4}, "alignment_bytes must be a multiple of the 4 bytes of a float32, not -4"),
        ({"collective": "send_recv", "algorithm": "ring"}, "algorithm cannot be chosen for send_recv, which NCCL runs"),
        ({"collective": len, "buffers": "symmetric"}, "buffers cannot be chosen for functions, which allocate"),
    ],
)
def test_impossible_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises((BenchError, CommunicatorError), match=message):
        Plan(**{"collective": "all_reduce", "axis": "tp", **options})  # type: ignore[arg-type]


def test_a_barrier_is_one_step_without_a_size() -> None:
    plan = Plan("barrier, all_reduce", "tp", sizes="1K, 4K", dtype="float32, int8", in_place=[False, True])
    steps = [step for step in plan.steps("dp=2, tp=2") if step.collective == "barrier"]
    assert [(one.size_bytes, one.count, one.dtype, one.in_place, one.buffer_bytes) for one in steps] == [
        (None, None, None, None, 0)
    ]
    assert str(Plan("barrier", "tp", mode="isolated")) == "barrier along tp, isolated"
    estimate = Plan("barrier", "tp").estimate("tp=2")
    assert 0 < estimate.seconds < 60
    assert estimate.memory_bytes == 0
