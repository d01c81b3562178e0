// The colours of the picture, resolved from CSS variables, so that they follow the theme of the page.

import { colorReader, luminanceOf } from "./theme.js";

export const GROUPS = 6;
const LOAD_STEPS = 8; // as in plots/_theme.py
const RESTING = 0.25; // of the background in the cell of a group that is not picked
const TOKENS = ["bg", "panel", "ink", "ink2", "line", "line2", "cell", "accent", "nvlink", "load", "conflict"];
// Eleven colours of viridis, from low to high.
export const VIRIDIS = [
  "#440154",
  "#482475",
  "#414487",
  "#355f8d",
  "#2a788e",
  "#21918c",
  "#22a884",
  "#44bf70",
  "#7ad151",
  "#bddf26",
  "#fde725",
];

export const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const hexOf = (rgb) => `#${rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("")}`;
export const mixed = (one, other, share) => hexOf(rgbOf(one).map((v, k) => v * (1 - share) + rgbOf(other)[k] * share));

// Reads the colours with an element that is not shown.
export function readColors(root, probe) {
  const channels = colorReader();
  const style = getComputedStyle(probe);
  const read = (name) => {
    probe.style.color = `var(--ml-${name})`;
    return hexOf([...channels(style.color).slice(0, 3)]);
  };
  /** @type {Record<string, any>} */
  const colors = Object.fromEntries(TOKENS.map((name) => [name, read(name)]));
  colors.groups = Array.from({ length: GROUPS }, (_, k) => read(`g${k}`));
  colors.resting = colors.groups.map((color) => mixed(color, colors.bg, RESTING));
  colors.pale = colors.groups.map((color) => mixed(color, colors.bg, 0.75));
  colors.heat = Array.from({ length: LOAD_STEPS + 1 }, (_, k) =>
    k ? mixed(colors.line2, colors.load, 0.15 + (0.85 * k) / LOAD_STEPS) : colors.line2,
  );
  colors.font = getComputedStyle(root).fontFamily;
  colors.faint = (name, share) => (colors[`${name}${share}`] ??= mixed(colors[name], colors.bg, share));
  return colors;
}

const inks = new Map();
export function inkOn(hex) {
  if (!inks.has(hex)) inks.set(hex, luminanceOf(rgbOf(hex)) > 0.179 ? "#14171a" : "#ffffff");
  return inks.get(hex);
}

export const heatOf = (colors, share) =>
  colors.heat[share > 0 ? Math.max(1, Math.round(Math.min(share, 1) * LOAD_STEPS)) : 0];
