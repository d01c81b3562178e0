from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.axes import (
    LARGEST_WORLD,
    Axis,
    check_rank,
    fill_axes,
    format_axes,
    idle_text,
    nearest_axes,
    parse_axes,
)


@pytest.mark.parametrize(
    "text",
    ["dp=2, tp=4", "dp=2 tp=4", "dp=2,tp=4", "  dp = 2 ,\n tp =4 ", "dp=2,,tp=4,", "dp=+2 tp=04"],
)
def test_axes_are_read_with_commas_or_spaces_between(text: str) -> None:
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
def test_a_text_that_cannot_be_read_is_shown_with_the_place(text: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_axes(text)
    assert caught.value.column == column
    assert f"\n  {text}\n  {' ' * column}^" in str(caught.value)


@pytest.mark.parametrize("text", ["", "   ", ",", "\n"])
def test_an_empty_text_says_what_to_write(text: str) -> None:
    with pytest.raises(ParseError, match="empty; write axes and sizes, such as 'dp=2, tp=4'"):
        parse_axes(text)


def test_digits_of_other_scripts_are_not_sizes() -> None:
    with pytest.raises(ParseError, match="whole number"):
        parse_axes("tp=٤")


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 99)), min_size=1, max_size=8))
@settings(deadline=None, max_examples=50)
def test_what_is_written_is_read_back(pairs: list[tuple[str, int]]) -> None:
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
        ("world", "always means all ranks"),
        ("rank", "always means the global number of a rank"),
        ("<script>" * 100, "…"),
    ],
)
def test_impossible_names_are_refused_in_one_short_line(name: object, why: str) -> None:
    with pytest.raises(MeshError, match=why) as caught:
        Axis(name, 2)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (0, "at least one rank"),
        (-2, "at least one rank"),
        (True, "whole number"),
        (2.0, "whole number"),
        ("4", "whole number"),
        (None, "whole number"),
        (np.array([1, 2]), "one whole number"),
        (LARGEST_WORLD + 1, "16,777,216"),
        pytest.param(10**5000, "a number of 16,610 bits", id="huge"),
        pytest.param(-(10**5000), "a number of 16,610 bits", id="huge and negative"),
    ],
)
def test_impossible_sizes_are_refused(size: object, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        Axis("tp", size)  # type: ignore[arg-type]


def test_a_product_that_is_too_large_is_refused_without_counting() -> None:
    with pytest.raises(MeshError, match=r"a=16777216 × b=16777216 is .* ranks; a mesh has at most"):
        fill_axes([("a", LARGEST_WORLD), ("b", LARGEST_WORLD)], None)


def test_too_many_axes_are_refused() -> None:
    with pytest.raises(MeshError, match="33 axes are too many"):
        fill_axes([(f"a{index}", 1) for index in range(33)], None)


def test_one_open_size_takes_the_ranks_that_are_left() -> None:
    assert format_axes(fill_axes([("dp", -1), ("tp", 8)], 64)) == "dp=8, tp=8"
    with pytest.raises(MeshError, match="world_size="):
        fill_axes([("dp", -1)], None)
    with pytest.raises(MeshError, match="only one axis can be -1, but dp and pp are"):
        fill_axes([("dp", -1), ("pp", -1)], 8)


def test_a_name_stands_once() -> None:
    with pytest.raises(MeshError, match="the axis 'tp' stands 2 times"):
        fill_axes([("tp", 2), ("tp", 2)], None)


@pytest.mark.parametrize("second", ["tp_0", "tp_17", "tp_group"])
def test_an_axis_is_not_named_like_a_group_of_another(second: str) -> None:
    with pytest.raises(MeshError, match=f"{second}.*reads like a group of the axis 'tp'"):
        fill_axes([("tp", 2), (second, 2)], None)
    assert fill_axes([(second, 2)], None)


@pytest.mark.parametrize("world_size", [0, -1, 1.5, "8", True, LARGEST_WORLD + 1])
def test_impossible_world_sizes_are_refused(world_size: object) -> None:
    with pytest.raises(MeshError, match="world_size"):
        fill_axes([("tp", 1)], world_size)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [-1, 8, 1.0, "3", None, True, pytest.param(10**5000, id="huge")])
def test_impossible_ranks_are_refused(rank: object) -> None:
    with pytest.raises(MeshError, match="rank"):
        check_rank(rank, 8)


def test_the_error_names_culprit_nearest_sizes_and_idle_ranks() -> None:
    with pytest.raises(MeshError) as caught:
        fill_axes([("dp", 2), ("tp", 3)], 8)
    assert str(caught.value) == (
        "dp=2 × tp=3 is 6 ranks, but 8 were given; tp=3 does not divide 8; "
        "nearest: dp=2, tp=4 · dp=4, tp=2 · dp=1, tp=8 · or world_size=6, which leaves ranks 6 and 7 idle"
    )


def test_the_error_offers_a_further_axis_for_the_rest() -> None:
    with pytest.raises(MeshError, match=r"or a further axis dp=2$"):
        fill_axes([("pp", 1), ("tp", 4)], 8)
    with pytest.raises(MeshError, match=r"a further axis dp=2 with world_size=8, which leaves ranks 8 and 9 idle$"):
        fill_axes([("tp", 4)], 10)


def test_the_error_for_too_few_ranks_offers_no_idle_ones() -> None:
    with pytest.raises(MeshError, match=r"is 8 ranks, but 1 was given; tp=8 does not divide 1; nearest: dp=1, tp=1$"):
        fill_axes([("dp", 1), ("tp", 8)], 1)


def test_an_open_size_that_does_not_come_out_says_why() -> None:
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
@settings(deadline=None, max_examples=80)
def test_nearest_sizes_always_fit(sizes: list[int], world_size: int) -> None:
    names = [f"a{index}x" for index in range(len(sizes))]
    options = nearest_axes(names, sizes, world_size)
    assert options
    for option in options:
        assert [name for name, _ in option] == names
        assert math.prod(size for _, size in option) == world_size


@given(st.lists(st.integers(1, 6), min_size=2, max_size=3), st.integers(1, 64))
@settings(deadline=None, max_examples=60)
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
    found = nearest_axes([f"a{index}x" for index in range(len(sizes))], sizes, world_size, most=1)[0]
    assert cost([size for _, size in found]) == pytest.approx(best)


def test_many_axes_of_a_large_world_do_not_hang() -> None:
    sizes = [2] * 20
    options = nearest_axes([f"a{index}x" for index in range(20)], sizes, 720720 * 16)
    assert all(math.prod(size for _, size in option) == 720720 * 16 for option in options)


def test_ranks_are_named_in_words() -> None:
    assert idle_text([0, 2, 4]) == "ranks 0, 2, 4"
    assert idle_text(list(range(0, 40, 2))) == "20 ranks (0, 2, 4, 6, 8, 10, 12, 14, …)"
