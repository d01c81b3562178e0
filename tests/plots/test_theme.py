"""The colours of the machine's picture: distinguishable with four kinds of sight, readable, and different by theme."""

from __future__ import annotations

import numpy as np
import pytest

from meshlab.plots._theme import DARK, LIGHT, N_GROUPS, Theme, distances, luminance, theme_pairs

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def contrast(one: str, other: str) -> float:
    rgb = [[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in (one, other)]
    low, high = sorted(float(value) for value in luminance(rgb))
    return (high + 0.05) / (low + 0.05)


@THEMES
@pytest.mark.parametrize("is_resting", [True, False])
def test_groups_conflict_and_idle_cells_differ_for_four_kinds_of_sight(theme: Theme, is_resting: bool) -> None:
    groups = [theme.resting(k) for k in range(N_GROUPS)] if is_resting else list(theme.groups)
    for sight, table in distances([*groups, theme.conflict, theme.cell]).items():
        assert table[np.triu_indices(len(table), 1)].min() >= 14, sight


@THEMES
def test_text_is_readable(theme: Theme) -> None:
    for ink in (theme.ink, theme.ink2):
        assert contrast(ink, theme.background) >= 4.5
        assert contrast(ink, theme.panel) >= 4.5
    grounds = [theme.resting(k) for k in range(N_GROUPS)] + [*theme.groups, theme.accent, theme.conflict, theme.cell]
    grounds += [theme.heat(k / 8) for k in range(1, 9)] + [
        theme.faint(theme.nvlink, 0.25),
        theme.faint(theme.nvlink, 0.7),
    ]
    for ground in grounds:
        assert contrast(theme.text_on(ground), ground) >= 4.5, ground


@THEMES
def test_a_busier_link_has_more_ink(theme: Theme) -> None:
    steps = [contrast(theme.heat(k / 8), theme.background) for k in range(9)]
    assert np.all(np.diff(steps) >= 0)
    assert steps[-1] > steps[0] + 1


def test_every_colour_has_one_partner_in_the_other_theme() -> None:
    pairs = theme_pairs()
    for k in range(N_GROUPS):
        assert pairs[LIGHT.groups[k]] == pairs[DARK.groups[k]] == (LIGHT.groups[k], DARK.groups[k])
        texts = LIGHT.text_on(LIGHT.resting(k)), DARK.text_on(DARK.resting(k))
        assert pairs[texts[0]] == texts
    assert LIGHT.background not in pairs
    assert all(pairs[light] == (light, dark) and pairs[dark] == (light, dark) for light, dark in pairs.values())
