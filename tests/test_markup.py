from __future__ import annotations

from meshlab.markup import bar, card, escape, table


def test_everything_from_outside_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    for text in (escape(evil), table([evil], [[evil]]), card(evil, evil), bar(0.5, evil)):
        assert "<script>" not in text


def test_long_tables_are_capped_and_say_so() -> None:
    text = table(["n"], [[i] for i in range(1000)], most=10)
    assert text.count("<tr>") == 11
    assert "and 990 more rows" in text


def test_numbers_are_aligned_to_the_right() -> None:
    assert 'class="ml-n"' in table(["n"], [[1], [2]])
    assert 'class="ml-n"' not in table(["n"], [["a"], [2]])


def test_a_bar_says_its_value_in_words() -> None:
    assert 'aria-valuenow="50"' in bar(0.5, "half")
    assert 'aria-valuenow="100"' in bar(7, "too much")
