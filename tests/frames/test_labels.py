"""Labels of rows, for titles and tables."""

from __future__ import annotations

import pandas as pd

from meshlab.frames._labels import LABELLED, axis_label, axis_labels, pair_label
from meshlab.frames._schema import RESULTS, conform, differing_options, is_plain, numbered_rows, shown_options
from meshlab.frames._trials import OPTION, option_label


def test_an_axis_is_labelled_with_its_load() -> None:
    assert axis_label("tp") == "tp"
    assert axis_label("tp", "alone") == "tp, one group at a time"
    assert axis_label("tp", "pairs") == "pairs of tp"
    assert axis_label("world", "pairs") == "pairs of all ranks"
    assert axis_label("tp", "together", "dp", "reduce_scatter") == "tp, while dp runs reduce_scatter"
    assert axis_label("tp", "together", "dp") == "tp, while dp is busy"


def test_every_row_has_the_label_of_its_axis() -> None:
    rows = [("tp", "together", "dp", "broadcast"), ("tp", "alone", None, None), (None, None, None, None)]
    labels = axis_labels(pd.DataFrame(rows, columns=LABELLED)).tolist()
    assert labels == ["tp, while dp runs broadcast", "tp, one group at a time", pd.NA]


def test_a_pair_is_labelled_with_the_direction_of_its_messages() -> None:
    assert (pair_label("send", 0, 1), pair_label("send_recv", 0, 1)) == ("0→1", "0↔1")


def test_only_the_normal_load_is_plain() -> None:
    rows = [("tp", "together", None), ("tp", "alone", None), ("tp", "together", "dp"), (None, None, None)]
    frame = pd.DataFrame(rows, columns=["axis", "grouping", "concurrent_axis"])
    assert is_plain(frame).tolist() == [True, False, False, True]


def test_rows_are_numbered_by_their_values_and_a_missing_value_is_one() -> None:
    frame = pd.DataFrame({"axis": ["tp", None, "tp"], "root": [0, 0, 0]})
    numbers, keys = numbered_rows(frame, ["axis", "root"])
    assert numbers.tolist() == [0, 1, 0]
    assert keys == [("tp", 0), (None, 0)]


def test_an_option_is_described_in_a_few_words() -> None:
    default = dict.fromkeys(OPTION) | {"buffers": "plain"}
    assert option_label(default) == "default"
    assert option_label(default | {"buffers": "symmetric", "max_ctas": 4}) == "symmetric window, ≤ 4 CTAs"
    ring = {"algorithm": "ring", "protocol": "ll128", "min_ctas": 8, "max_ctas": 8}
    assert option_label(default | ring) == "ring LL128, 8 CTAs"


def test_options_that_differ_or_are_not_the_default_are_shown() -> None:
    row = {"collective": "all_reduce", "buffers": "plain"}
    assert differing_options(conform(pd.DataFrame([row, row | {"algorithm": "ring"}]), RESULTS)) == ["algorithm"]
    assert differing_options(conform(pd.DataFrame([row, row | {"buffers": None}]), RESULTS)) == []
    assert shown_options(conform(pd.DataFrame([row | {"buffers": "symmetric", "n_aggregated": 1}]), RESULTS)) == [
        "buffers"
    ]
