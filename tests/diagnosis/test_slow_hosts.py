"""Tables of pairs of hosts, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._pair_table import read_host_pairs
from meshlab.diagnosis.rules._slow_hosts import slow_node, slow_node_undecided
from tests.examples import examples

TABLE = """\
all_reduce_perf, busbw in GB/s
node4,node9     49.36
node2,node1     88.36
node8,node7     49.28  # another rack
node1,node4     49.30
node3,node9     86.81
"""


def test_the_host_whose_partners_are_fast_with_others_is_slow() -> None:
    (finding,) = slow_node(Paste(TABLE))
    assert (finding.severity, finding.subject, finding.lines) == ("warning", "node4", (2, 5))
    (open_case,) = slow_node_undecided(Paste(TABLE))
    assert (open_case.severity, open_case.subject) == ("info", "node8 or node7")


@pytest.mark.parametrize("between", [" ", ", ", " <-> ", " - ", " -> ", " | ", " and "])
def test_other_separators_are_read(between: str) -> None:
    rows = "\n".join(f"gpu-{a}{between}gpu-{b}: {value} GB/s" for a, b, value in [(1, 2, 90.1), (2, 3, 89), (1, 3, 40)])
    pairs = [(pair.a, pair.b, pair.value) for pair in read_host_pairs(Paste("bandwidth\n" + rows))]
    assert pairs == [("gpu-1", "gpu-2", 90.1), ("gpu-2", "gpu-3", 89.0), ("gpu-1", "gpu-3", 40.0)]


def test_a_slow_path_between_fast_hosts_blames_neither() -> None:
    text = Paste("busbw\nn1,n2 90\nn2,n3 91\nn1,n3 40\nn3,n4 90\n")
    assert not list(slow_node(text))
    (finding,) = slow_node_undecided(text)
    assert finding.subject == "n1 with n3"


@pytest.mark.parametrize(
    "text",
    [
        "busbw\nn1,n2 90\nn2,n3 88\nn1,n3 86\n",
        "epoch1 step2 0.5\nepoch1 step3 0.1\nepoch1 step4 0.6\n",
        "n1,n2 90\nn2,n3 20\n",
    ],
)
def test_equal_pairs_and_other_tables_give_nothing(text: str) -> None:
    assert not list(slow_node(Paste(text)))
    assert not list(slow_node_undecided(Paste(text)))


@settings(max_examples=examples(50), deadline=None)
@given(n=st.integers(4, 9), slow=st.data())
def test_in_a_full_table_the_slow_host_is_named(n: int, slow: st.DataObject) -> None:
    bad = slow.draw(st.integers(0, n - 1))
    rows = [
        f"node{a},node{b} {45 if bad in (a, b) else slow.draw(st.floats(85, 95)):.2f}"
        for a in range(n)
        for b in range(a + 1, n)
    ]
    text = Paste("busbw in GB/s\n" + "\n".join(rows))
    assert [finding.subject for finding in slow_node(text)] == [f"node{bad}"]
    assert not list(slow_node_undecided(text))
