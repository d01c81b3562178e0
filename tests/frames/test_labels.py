"""Labels of rows, for titles and tables."""

from __future__ import annotations

import pandas as pd

from meshlab.frames._labels import LABELLED, axis_label, axis_labels, pair_label
from meshlab.frames._schema import is_plain, numbered_rows


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
