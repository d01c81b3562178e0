import numpy as np
from matplotlib.colors import to_rgb

from meshlab.plots._style import PALETTE, PREVIOUS, WRONG, group_colors, luminance, rank_colors, text_colors


def contrast(a, b):
    high, low = sorted((float(luminance(a)), float(luminance(b))), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_eight_groups_have_eight_colours_and_the_ninth_repeats_the_first():
    colors = group_colors(17)
    assert len({tuple(color) for color in colors}) == 8
    assert np.array_equal(colors[8:16], colors[:8])
    assert colors.shape == (17, 3)


def test_black_is_not_a_group_colour():
    assert luminance(group_colors(8)).min() > 0.1


def test_neighbours_in_the_palette_are_distinguishable_in_black_and_white():
    lightness = luminance(group_colors(9))
    assert np.abs(np.diff(lightness)).min() > 0.02


def test_text_on_every_group_colour_is_readable():
    for color, ink in zip(group_colors(8), text_colors(group_colors(8)), strict=True):
        assert contrast(color, to_rgb(ink)) >= 4.5


def test_red_and_grey_are_visible_on_white_and_on_black():
    for color in (WRONG, PREVIOUS):
        assert contrast(to_rgb(color), (1, 1, 1)) >= 3
        assert contrast(to_rgb(color), (0, 0, 0)) >= 3


def test_red_is_reserved_for_wrong_results():
    assert WRONG not in PALETTE


def test_a_rank_without_a_group_is_transparent():
    rgba = rank_colors(np.array([[0, -1], [8, 3]]))
    assert rgba[..., 3].tolist() == [[1, 0], [1, 1]]
    assert np.array_equal(rgba[0, 0], rgba[1, 0])
