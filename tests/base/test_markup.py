from __future__ import annotations

from meshlab.base._markup import bar, card, escape, table


def test_every_string_of_the_caller_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    for text in (escape(evil), table([evil], [[evil]]), card(evil, evil), bar(0.5, evil)):
        assert "<script>" not in text


def test_long_tables_are_truncated_with_a_note() -> None:
    text = table(["n"], [[i] for i in range(1000)], most=10)
    assert text.count("<tr>") == 11
    assert "and 990 more rows" in text


def test_numbers_are_right_aligned() -> None:
    assert 'class="ml-n"' in table(["n"], [[1], [2]])
    assert 'class="ml-n"' not in table(["n"], [["a"], [2]])


def test_a_bar_has_an_accessible_value() -> None:
    assert 'aria-valuenow="50"' in bar(0.5, "half")
    assert 'aria-valuenow="100"' in bar(7, "too much")
