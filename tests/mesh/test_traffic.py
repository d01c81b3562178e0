"""Traffic: patterns, matrices and their sums, against plain loops over ranks."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.mesh._traffic import as_traffic, traffic_from_document, traffic_to_document
from tests.examples import examples

ROUTING = ml.Traffic.routing([[6, 1, 1, 0], [2, 2, 2, 2]])
TRAFFICS = (
    ml.Traffic.even(),
    ml.Traffic.zipf(1.2),
    ml.Traffic.zipf(0.5, seed=7).transpose(),
    ml.Traffic.spread(0.25),
    ml.Traffic.matrix([[0, 96], [16, 0]]),
    ml.Traffic.matrix([[0, 96], [16, 0]]).named("moe").pattern(),
    ml.Traffic.routing([[3, 1], [2, 2]], token_bytes=7),
    ROUTING,
)
tables = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 1 << 40), min_size=n, max_size=n), min_size=n, max_size=n)
)


def spread_of_nccl_tests(i: int, j: int, n: int, total_bytes: int, factor: float) -> int:
    """Return the bytes of AlltoAllvGetPeerBytesDistanceWeighted of nccl-tests 2.19."""
    if n == 1:
        return total_bytes & ~15
    distance = (j - i + n) % n
    sum_distances = n * (n - 1) // 2
    uniform = float(total_bytes) / float(n)
    dist = float(distance) * float(total_bytes) / float(sum_distances)
    return int((1.0 - factor) * uniform + factor * dist) & ~15


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(1, 9), st.integers(0, 1 << 40), st.floats(0, 1))
def test_spread_is_the_rule_of_nccl_tests_byte_for_byte(n: int, size: int, factor: float) -> None:
    expected = [[spread_of_nccl_tests(i, j, n, size, factor) for j in range(n)] for i in range(n)]
    assert ml.Traffic.spread(factor).of(n, size).array.tolist() == expected


@settings(deadline=None, max_examples=examples(100))
@given(tables)
def test_the_sums_of_a_matrix_are_those_of_loops_over_its_ranks(table: list[list[int]]) -> None:
    traffic, n = ml.Traffic.matrix(table), len(table)
    aligned = [[value // 16 * 16 for value in row] for row in table]
    assert traffic.array.tolist() == aligned
    sent = [sum(row) for row in aligned]
    received = [sum(row[rank] for row in aligned) for rank in range(n)]
    assert traffic.sent_bytes.tolist() == sent
    assert traffic.received_bytes.tolist() == received
    assert traffic.self_bytes.tolist() == [aligned[rank][rank] for rank in range(n)]
    assert traffic.total_bytes == sum(sent)
    assert traffic.size_bytes == max(sent + received)
    assert traffic.imbalance == pytest.approx(max(sent + received) * n / sum(sent) if sum(sent) else 1)
    busiest = traffic.busiest
    assert (sent if busiest.direction == "sends" else received)[busiest.rank] == busiest.n_bytes == traffic.size_bytes
    sender, receiver = traffic.largest_pair
    assert aligned[sender][receiver] == max(
        (aligned[a][b] for a in range(n) for b in range(n) if a != b), default=aligned[0][0]
    )
    assert traffic.frame()["received_bytes"].tolist() == received


@settings(deadline=None, max_examples=examples(50))
@given(tables, st.integers(1, 4))
def test_transposing_exchanges_the_directions(table: list[list[int]], per_node: int) -> None:
    traffic = ml.Traffic.matrix(table)
    transposed = traffic.transpose()
    assert transposed.array.tolist() == traffic.array.T.tolist()
    assert transposed.transpose() == traffic
    assert transposed.imbalance == traffic.imbalance
    nodes = [rank // per_node for rank in range(len(table))]
    by_node = traffic.per_node(per_node)
    assert by_node == traffic.per_node([f"host{node}" for node in nodes])
    assert by_node.total_bytes == traffic.total_bytes
    assert by_node.array[0, -1] == sum(
        int(traffic.array[a, b]) for a, x in enumerate(nodes) for b, y in enumerate(nodes) if (x, y) == (0, nodes[-1])
    )


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(1, 64), st.integers(1, 1 << 34), st.floats(0, 3), st.integers(0, 99))
def test_patterns_send_the_size_on_average(n: int, size: int, exponent: float, seed: int) -> None:
    for pattern in (ml.Traffic.even(), ml.Traffic.zipf(exponent, seed=seed), ml.Traffic.spread(min(exponent, 1))):
        for direction in (pattern, pattern.transpose()):
            mean = direction.of(n, size).mean_bytes
            assert size - 16 * n <= mean <= size
    rows = ml.Traffic.zipf(exponent, seed=seed).of(n, size).sent_bytes
    assert (rows == rows[0]).all()


def test_nodes_in_any_order_are_summed() -> None:
    traffic = ml.Traffic.matrix(np.arange(16).reshape(4, 4), alignment_bytes=1)
    assert traffic.per_node(["a", "b", "a", "b"]).array.tolist() == [[0 + 2 + 8 + 10, 1 + 3 + 9 + 11], [16 + 20, 40]]


def test_the_tokens_of_a_router_are_divided_between_the_replicas_of_an_expert() -> None:
    counts = [[7, 0, 0, 1], [7, 0, 3, 1], [7, 2, 0, 1]]
    traffic = ml.Traffic.routing(counts, [[0, 1, 2], 0, 1, 2], token_bytes=1)
    assert traffic.sent_bytes.tolist() == [sum(row) for row in counts]
    assert traffic.received_bytes.tolist() == [7 + 2, 7 + 3, 7 + 3]  # the remainders of the ranks do not meet
    assert ml.Traffic.routing(counts).of(3, "1K").size_bytes > 1024
    assert ROUTING.imbalance == 11 / 8
    halves = ml.Traffic.routing([[0.5, 1.5], [1.0, 1.0]])
    assert halves.of(2, 64).array.tolist() == [[16, 48], [32, 32]]


def test_a_pattern_of_a_matrix_is_scaled_to_the_size() -> None:
    traffic = ml.Traffic.matrix([[0, 96], [32, 0]])
    assert traffic.of(2, "1M") is traffic
    assert traffic.pattern().of(2, 1024).array.tolist() == [[0, 1536], [512, 0]]
    assert traffic.pattern().pattern() == traffic.pattern() != traffic
    assert ml.Traffic.matrix([[0, 0], [0, 0]]).pattern().of(2, 64).total_bytes == 0
    assert ml.Traffic.matrix([[0, 0], [0, 0]]).imbalance == 1


@pytest.mark.parametrize("traffic", TRAFFICS, ids=str)
def test_traffics_are_values(traffic: ml.Traffic) -> None:
    document = traffic_to_document(traffic)
    evaluated = eval(repr(traffic), {"Traffic": ml.Traffic})
    for clone in (pickle.loads(pickle.dumps(traffic)), traffic_from_document(document), evaluated, as_traffic(traffic)):
        assert clone == traffic
        assert hash(clone) == hash(traffic)
    assert sum(traffic == other for other in TRAFFICS) == 1
    assert not traffic.of(2, 64).array.flags.writeable
    with pytest.raises(AttributeError):
        traffic.name = "other"  # type: ignore[misc]


def test_files_of_nccl_tests_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "router_3.txt"
    path.write_text("100  200.9\t150\n50 1e2 75\n\n300 150 200")
    traffic = ml.Traffic.matrix(path)
    assert traffic.array.tolist() == [[96, 192, 144], [48, 96, 64], [288, 144, 192]]
    assert str(traffic) == "router_3"
    assert as_traffic(traffic.write(tmp_path / "router_3.txt")) == as_traffic(str(path)) == traffic


def test_texts_name_patterns() -> None:
    assert as_traffic("zipf:1.2") == ml.Traffic.zipf(1.2)
    assert as_traffic(" zipf:1.2:3") == ml.Traffic.zipf(1.2, seed=3)
    assert as_traffic("even") == ml.Traffic.even()
    assert as_traffic("spread") == ml.Traffic.spread(1.0)
    assert as_traffic("spread:0.5") == ml.Traffic.spread(0.5)
    assert as_traffic(np.eye(2) * 16) == ml.Traffic.matrix([[16, 0], [0, 16]])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ml.Traffic(np.eye(2)), "a traffic cannot be made from array"),  # type: ignore[arg-type]
        (lambda: ml.Traffic("moe"), "cannot be made from 'moe' alone"),
        (lambda: ml.Traffic.matrix([[1, 2]]), "must be square, but has 1 rows and 2 columns"),
        (lambda: ml.Traffic.matrix([[0, 16], [-2, 0]]), "has -2 in row 1, column 0, but must not be negative"),
        (lambda: ml.Traffic.matrix([[0.0, float("nan")], [0.0, 0.0]]), "has nan in row 0, column 1"),
        (lambda: ml.Traffic.matrix([[1e30]]), "is larger than the largest one"),
        (lambda: ml.Traffic.matrix([[1, 2], [3]]), "must be a table of numbers"),
        (lambda: ml.Traffic.matrix("1 2\n3"), "row 2 of the matrix has 1 columns, but the first row has 2"),
        (lambda: ml.Traffic.matrix("trafic.txt"), "no file 'trafic.txt' exists"),
        (lambda: ml.Traffic.matrix([[16]], alignment_bytes=0), "alignment_bytes must be an integer from 1"),
        (lambda: ml.Traffic.zipf(-1), "exponent of a Zipf traffic must be from 0 to 100, not -1"),
        (lambda: ml.Traffic.zipf(1, seed=-1), "seed of a Zipf traffic must be an integer of at least 0, not -1"),
        (lambda: ml.Traffic.spread(2), "factor of a spread traffic must be from 0 to 1, not 2"),
        (lambda: ml.Traffic.even().of(10**6, "1M"), "1,000,000 ranks is larger than the largest one"),
        (lambda: ml.Traffic.even().of(4), "is a pattern without a size"),
        (lambda: ml.Traffic.even().array, "is a pattern, which has no bytes yet"),
        (lambda: ml.Traffic.matrix([[0, 16], [16, 0]]).of(4), "is for 2 ranks, but the group has 4"),
        (lambda: ml.Traffic.routing([[1, 1]], [0]), "the placement has 1 experts, but the counts have 2"),
        (lambda: ml.Traffic.routing([[1, 1]], [0, 1]), "expert 1 is on 1, but must be on ranks from 0 to 0"),
        (lambda: ml.Traffic.routing([[1, 1]], token_bytes=0), "token_bytes must be an integer of at least 1"),
        (lambda: ml.Traffic.even().of(4, 64).per_node([0, 1]), "nodes has 2 entries, but the traffic has 4 ranks"),
        (lambda: ml.Traffic.even().named("a\nb"), "name of a traffic must be a line"),
        (lambda: as_traffic("zipf"), "unknown traffic 'zipf'"),
        (lambda: as_traffic("zipf:x"), "unknown traffic 'zipf:x'"),
        (lambda: as_traffic(3), "traffic must be a Traffic, a matrix, or text"),  # type: ignore[arg-type]
        (lambda: traffic_from_document({"name": "a", "kind": "zipf"}), "invalid traffic"),
        (lambda: traffic_from_document({"name": "a", "kind": "bytes", "rows": [[1, 2]]}), "invalid traffic"),
    ],
)
def test_errors_are_one_sentence(call: object, text: str) -> None:
    with pytest.raises(ml.MeshlabError) as error:
        call()  # type: ignore[operator]
    assert text in str(error.value)


@pytest.mark.full
def test_a_thousand_ranks_take_less_than_a_quarter_of_a_second() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        traffic = ml.Traffic.zipf(1.2).of(1024, "64M")
        assert traffic.imbalance > 100
        assert traffic.per_node(8).n_ranks == 128
        times.append(time.perf_counter() - start)
    assert min(times) < 0.25
