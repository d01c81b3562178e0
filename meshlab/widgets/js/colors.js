// The colours of the picture, resolved from CSS variables, so that they follow the theme of the page.

const GROUPS = 6;
const LOAD_STEPS = 8; // as in plots/_theme.py
const RESTING = 0.25; // of the background in the cell of a group that is not picked
const TOKENS = ["bg", "panel", "ink", "ink2", "line", "line2", "cell", "accent", "nvlink", "load", "conflict"];
// Eleven colours of viridis, from low to high.
const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];

const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const hexOf = (rgb) => `#${rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("")}`;
const mixed = (one, other, share) => hexOf(rgbOf(one).map((v, k) => v * (1 - share) + rgbOf(other)[k] * share));

// The relative luminance of WCAG 2.2.
function luminance(hex) {
  const [r, g, b] = rgbOf(hex).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Any CSS colour as hex, as the browser paints it.
function painted(css, pen) {
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = css;
  pen.fillRect(0, 0, 1, 1);
  return hexOf([...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
}

// Reads the colours. The text colour of the page decides between light and dark, because front ends announce their theme
// in many ways, but all of them set it.
function readColors(root, probe) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true }), style = getComputedStyle(probe);
  const scheme = luminance(painted(getComputedStyle(root).color, pen)) > 0.4 ? "dark" : "light";
  if (root.dataset.scheme !== scheme) root.dataset.scheme = scheme;
  const read = (name) => {
    probe.style.color = `var(--ml-${name})`;
    return painted(style.color, pen);
  };
  const colors = Object.fromEntries(TOKENS.map((name) => [name, read(name)]));
  colors.groups = Array.from({ length: GROUPS }, (_, k) => read(`g${k}`));
  colors.resting = colors.groups.map((color) => mixed(color, colors.bg, RESTING));
  colors.pale = colors.groups.map((color) => mixed(color, colors.bg, 0.75));
  colors.heat = Array.from({ length: LOAD_STEPS + 1 }, (_, k) => (k ? mixed(colors.line2, colors.load, 0.15 + (0.85 * k) / LOAD_STEPS) : colors.line2));
  colors.font = getComputedStyle(root).fontFamily;
  colors.faint = (name, share) => (colors[`${name}${share}`] ??= mixed(colors[name], colors.bg, share));
  return colors;
}

const inks = new Map();
function inkOn(hex) {
  if (!inks.has(hex)) inks.set(hex, luminance(hex) > 0.179 ? "#14171a" : "#ffffff");
  return inks.get(hex);
}

const heatOf = (colors, share) => colors.heat[share > 0 ? Math.max(1, Math.round(Math.min(share, 1) * LOAD_STEPS)) : 0];
