from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._axes import (
    MAX_RANKS,
    Axis,
    as_integer,
    axis_pairs,
    check_rank,
    fill_axes,
    format_axes,
    format_ranks,
    nearest_axes,
    parse_axes,
)
from tests.examples import examples


@pytest.mark.parametrize(
    "text",
    ["dp=2, tp=4", "dp=2 tp=4", "dp=2,tp=4", "  dp = 2 ,\n tp =4 ", "dp=2,,tp=4,", "dp=+2 tp=04"],
)
def test_axes_may_be_separated_by_commas_or_spaces(text: str) -> None:
    assert parse_axes(text) == (("dp", 2), ("tp", 4))


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("dp=2, tp", 6),
        ("dp=2, =4", 6),
        ("dp=, tp=4", 0),
        ("dp=2=3", 4),
        ("dp=2, tp=x", 9),
        ("dp=2; tp=4", 3),
        ("tp=4.0", 3),
    ],
)
def test_a_parse_error_shows_the_position(text: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_axes(text)
    assert caught.value.column == column
    assert f"\n  {text}\n  {' ' * column}^" in str(caught.value)


@pytest.mark.parametrize("text", ["", "   ", ",", "\n"])
def test_an_empty_text_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ParseError, match="empty; write axes and sizes, such as 'dp=2, tp=4'"):
        parse_axes(text)


def test_only_ascii_digits_are_sizes() -> None:
    with pytest.raises(ParseError, match="size of axis 'tp' must be an integer, not '٤'"):
        parse_axes("tp=٤")


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 99)), min_size=1, max_size=8))
@settings(deadline=None, max_examples=examples(50))
def test_formatted_axes_parse_to_the_same_axes(pairs: list[tuple[str, int]]) -> None:
    axes = [Axis(name, size) for name, size in pairs]
    assert [Axis(*pair) for pair in parse_axes(format_axes(axes))] == axes


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "letters, digits"),
        ("2d", "letters, digits"),
        ("t-p", "letters, digits"),
        ("tp ", "letters, digits"),
        ("é", "letters, digits"),
        (3, "letters, digits"),
        (None, "letters, digits"),
        ("world", "axis name 'world' is reserved for the group of all ranks"),
        ("rank", "axis name 'rank' is reserved for the global rank"),
        ("<script>" * 100, "…"),
    ],
)
def test_invalid_names_are_rejected_in_one_short_line(name: object, why: str) -> None:
    with pytest.raises(MeshError, match=why) as caught:
        Axis(name, 2)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (0, "size of axis 'tp' must be at least 1, not 0"),
        (-2, "must be at least 1, not -2"),
        (True, "must be an integer, not True"),
        (2.0, "must be an integer, not 2.0"),
        ("4", "must be an integer, not '4'"),
        (None, "must be an integer, not None"),
        (np.array([1, 2]), r"must be an integer, not array\(\[1, 2\]\)"),
        (MAX_RANKS + 1, "must be at most 16,777,216, not 16777217"),
        pytest.param(10**5000, "a number of 16,610 bits", id="huge"),
        pytest.param(-(10**5000), "a number of 16,610 bits", id="huge and negative"),
    ],
)
def test_invalid_sizes_are_rejected(size: object, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        Axis("tp", size)  # type: ignore[arg-type]


def test_a_product_that_is_too_large_is_rejected_early() -> None:
    with pytest.raises(MeshError, match=r"a=16777216 × b=16777216 is .* ranks, but a mesh has at most"):
        fill_axes([("a", MAX_RANKS), ("b", MAX_RANKS)], None)


def test_too_many_axes_are_rejected() -> None:
    with pytest.raises(MeshError, match="33 axes, but a mesh has at most 32"):
        fill_axes([(f"a{index}", 1) for index in range(33)], None)


def test_one_size_of_minus_one_is_filled_from_the_world_size() -> None:
    assert format_axes(fill_axes([("dp", -1), ("tp", 8)], 64)) == "dp=8, tp=8"
    with pytest.raises(
        MeshError, match=r"dp=-1 is filled from the number of ranks, which is unknown; pass world_size=$"
    ):
        fill_axes([("dp", -1)], None)
    with pytest.raises(MeshError, match="dp and pp are -1, but only one axis can be"):
        fill_axes([("dp", -1), ("pp", -1)], 8)


def test_a_repeated_name_is_rejected() -> None:
    with pytest.raises(MeshError, match="axis 'tp' appears 2 times; give each axis a unique name"):
        fill_axes([("tp", 2), ("tp", 2)], None)


@pytest.mark.parametrize("second", ["tp_0", "tp_17", "tp_group"])
def test_an_axis_cannot_have_the_name_of_a_group_of_another_axis(second: str) -> None:
    with pytest.raises(MeshError, match=f"{second}.*could be a group of axis 'tp'; rename it"):
        fill_axes([("tp", 2), (second, 2)], None)
    assert fill_axes([(second, 2)], None)


@pytest.mark.parametrize("world_size", [0, -1, 1.5, "8", True, MAX_RANKS + 1])
def test_invalid_world_sizes_are_rejected(world_size: object) -> None:
    with pytest.raises(MeshError, match="world_size must be an integer from 1 to 16,777,216, not"):
        fill_axes([("tp", 1)], world_size)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [-1, 8, 1.0, "3", None, True, pytest.param(10**5000, id="huge")])
def test_invalid_ranks_are_rejected(rank: object) -> None:
    with pytest.raises(MeshError, match=r"rank must be an integer, not|rank .* does not exist; use a rank from 0 to 7"):
        check_rank(rank, 8)


def test_the_error_names_the_wrong_size_the_nearest_sizes_and_the_idle_ranks() -> None:
    with pytest.raises(MeshError) as caught:
        fill_axes([("dp", 2), ("tp", 3)], 8)
    assert str(caught.value) == (
        "dp=2 × tp=3 is 6 ranks, but 8 were given; tp=3 does not divide 8; "
        "nearest: dp=2, tp=4 · dp=4, tp=2 · dp=1, tp=8 · or world_size=6, which leaves ranks 6 and 7 idle"
    )


def test_the_error_suggests_an_additional_axis_for_the_remaining_factor() -> None:
    with pytest.raises(MeshError, match=r"or an additional axis dp=2$"):
        fill_axes([("pp", 1), ("tp", 4)], 8)
    with pytest.raises(MeshError, match=r"an additional axis dp=2 with world_size=8, which leaves ranks 8 and 9 idle$"):
        fill_axes([("tp", 4)], 10)


def test_the_error_for_too_few_ranks_suggests_no_idle_ranks() -> None:
    with pytest.raises(MeshError, match=r"is 8 ranks, but 1 was given; tp=8 does not divide 1; nearest: dp=1, tp=1$"):
        fill_axes([("dp", 1), ("tp", 8)], 1)


def test_a_size_of_minus_one_that_cannot_be_filled_is_explained() -> None:
    with pytest.raises(
        MeshError, match=r"12 ranks cannot be divided by tp=8, so dp=-1 has no size; .*leaves ranks 8 to 11"
    ):
        fill_axes([("dp", -1), ("tp", 8)], 12)
    with pytest.raises(MeshError, match=r"cannot be divided by pp=2 × tp=8 = 16, so"):
        fill_axes([("pp", 2), ("dp", -1), ("tp", 8)], 24)


@given(
    st.lists(st.one_of(st.just(-1), st.integers(1, 40)), min_size=1, max_size=5),
    st.integers(1, 5000),
)
@settings(deadline=None, max_examples=examples(80))
def test_the_product_of_nearest_sizes_is_the_world_size(sizes: list[int], world_size: int) -> None:
    names = [f"a{index}x" for index in range(len(sizes))]
    options = nearest_axes(names, sizes, world_size)
    assert options
    for option in options:
        assert [name for name, _ in option] == names
        assert math.prod(size for _, size in option) == world_size


@given(st.lists(st.integers(1, 6), min_size=2, max_size=3), st.integers(1, 64))
@settings(deadline=None, max_examples=examples(60))
def test_the_nearest_sizes_are_the_nearest_of_all(sizes: list[int], world_size: int) -> None:
    def cost(option: list[int]) -> float:
        return sum(abs(math.log(new / old)) for new, old in zip(option, sizes, strict=True))

    def factorisations(rest: int, count: int) -> list[list[int]]:
        if count == 1:
            return [[rest]]
        return [
            [d, *more] for d in range(1, rest + 1) if rest % d == 0 for more in factorisations(rest // d, count - 1)
        ]

    best = min(cost(option) for option in factorisations(world_size, len(sizes)))
    nearest = nearest_axes([f"a{index}x" for index in range(len(sizes))], sizes, world_size, most=1)[0]
    assert cost([size for _, size in nearest]) == pytest.approx(best)


def test_many_axes_of_a_large_world_take_bounded_time() -> None:
    sizes = [2] * 20
    options = nearest_axes([f"a{index}x" for index in range(20)], sizes, 720720 * 16)
    assert all(math.prod(size for _, size in option) == 720720 * 16 for option in options)


def test_many_ranks_are_abbreviated() -> None:
    assert format_ranks([0, 2, 4]) == "ranks 0, 2, 4"
    assert format_ranks(list(range(0, 40, 2))) == "20 ranks (0, 2, 4, 6, 8, 10, 12, 14, …)"


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-1, 99)), max_size=8))
@settings(deadline=None, max_examples=examples(50))
def test_all_forms_of_axes_are_the_same_pairs(pairs: list[tuple[str, int]]) -> None:
    names, sizes = [name for name, _ in pairs], [size for _, size in pairs]
    assert (
        axis_pairs(pairs) == axis_pairs(sizes, names) == axis_pairs(np.array(sizes, dtype=int), names) == tuple(pairs)
    )
    if len(dict(pairs)) == len(pairs):
        assert axis_pairs(dict(pairs)) == tuple(pairs)


@pytest.mark.parametrize(
    ("sizes", "names", "why"),
    [
        ((2, 4), ("dp",), r"sizes \(2, 4\) and names \('dp',\) have different lengths; pass one name per size"),
        ((2,), ("dp", "tp"), r"sizes \(2,\) and names \('dp', 'tp'\) have different lengths"),
        ("dp=2", ("dp",), r"axes must be one size per name, such as \(2, 4\), \('dp', 'tp'\), not 'dp=2', \('dp',\)"),
        ({"dp": 2}, ("dp",), "axes must be one size per name"),
        (2.5, ("dp",), "axes must be one size per name"),
        ((2, 4), 3, "axes must be one size per name"),
    ],
)
def test_sizes_that_do_not_match_the_names_are_rejected(sizes: object, names: object, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        axis_pairs(sizes, names)


def test_a_single_name_and_a_single_size_need_no_tuple() -> None:
    assert axis_pairs(4, "tp") == axis_pairs((4,), "tp") == axis_pairs(4, ["tp"]) == (("tp", 4),)


def test_integers_of_any_type_are_ints_and_nothing_else_is() -> None:
    for value in (3, np.int8(3), np.uint64(3), np.array(3)):
        assert as_integer(value) == 3
        assert type(as_integer(value)) is int
    for value in (True, np.True_, 3.0, "3", None, [3], np.array([3])):
        assert as_integer(value) is None
