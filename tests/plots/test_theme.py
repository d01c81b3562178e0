"""The colours of the machine's picture: distinguishable with four kinds of sight, readable, and different by theme."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from meshlab.plots._theme import DARK, LIGHT, N_GROUPS, Theme, luminance, mix, theme_pairs

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
_SIGHT = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def _distances(colors: list[str]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the distances (ΔE, CIE76) between all colours, for normal, protan, deutan and tritan sight."""
    rgb = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in colors])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    tables = {}
    for sight, matrix in _SIGHT.items():
        xyz = np.clip(linear @ matrix.T, 0, 1) @ to_xyz.T / np.array([0.95047, 1.0, 1.08883])
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
        tables[sight] = np.linalg.norm(lab[:, None] - lab, axis=-1)
    return tables


THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def contrast(one: str, other: str) -> float:
    rgb = [[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in (one, other)]
    low, high = sorted(float(value) for value in luminance(rgb))
    return (high + 0.05) / (low + 0.05)


@THEMES
@pytest.mark.parametrize("is_resting", [True, False])
def test_groups_conflict_and_idle_cells_differ_for_four_kinds_of_sight(theme: Theme, is_resting: bool) -> None:
    groups = [theme.resting(k) for k in range(N_GROUPS)] if is_resting else list(theme.groups)
    for sight, table in _distances([*groups, theme.conflict, theme.cell]).items():
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


def test_two_colours_are_mixed_by_a_share_of_the_second_one() -> None:
    assert mix("#000000", "#ffffff", 0.5) == "#808080"
    assert mix("#000000", "#ffffff", 0.0) == "#000000"
