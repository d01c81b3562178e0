// The part of the layout that is in view: how large and where the machine is drawn. `p` is the state of the picture.

import { layout, clamp, fit, locate, lookAt } from "./layout.js";
import { tallOf } from "./overlay.js";
import { boxOfHit, hitAt } from "./pick.js";

// Keeps the machine in the window.
export function contain(p) {
  const { drawn, width, height } = p;
  const margin = p.zoom > 1.02 ? 70 : 10;
  const tall = tallOf(drawn);
  p.x = drawn.width + 20 <= width ? (width - drawn.width) / 2 : clamp(p.x, width - drawn.width - margin, margin);
  p.y = tall + 20 <= height ? Math.min((height - tall) / 2, 24) : clamp(p.y, height - tall - margin, margin);
}

// Arranges the machine for a width, and returns the height that the picture takes, at most `most`.
export function fitWidth(p, width, most) {
  p.dpr = window.devicePixelRatio || 1;
  p.width = width;
  const room = Math.min(most, Math.max(Math.round(width * 0.75), 320));
  p.chosen = fit(p.scene, width, room, p.dpr);
  p.drawn = layout(p.scene, p.chosen, p.zoom);
  const full = p.zoom === 1 ? p.drawn : layout(p.scene, p.chosen);
  p.height = Math.round(clamp(tallOf(full) + 24, 120, room));
  contain(p);
}

export const mostZoom = (p) => Math.max(1, p.scene.layout.largest[0] / p.chosen.cellWidth);

export function resetZoom(p) {
  p.zoom = 1;
  p.drawn = layout(p.scene, p.chosen);
  contain(p);
}

// Zooms so that the box under a point of the window stays there. Returns whether the zoom has changed.
export function zoomAt(p, px, py, factor) {
  const zoom = clamp(p.zoom * factor, 1, mostZoom(p));
  if (zoom === p.zoom) return false;
  const hit = hitAtPoint(p, px, py);
  const before = boxOfHit(p.drawn, hit);
  const across = (px - p.x - before[0]) / before[2];
  const down = (py - p.y - before[1]) / before[3];
  p.zoom = zoom;
  p.drawn = layout(p.scene, p.chosen, zoom);
  const after = boxOfHit(p.drawn, hit);
  p.x = px - after[0] - across * after[2];
  p.y = py - after[1] - down * after[3];
  contain(p);
  return true;
}

// Shows a place, or what is in view if the machine does not have it.
export function showPlace(p, place) {
  const isKnown = place === "all" || (typeof place === "string" && locate(p.scene, place));
  const [zoom, x, y] = isKnown ? lookAt(p.scene, p.chosen, place, p.width, p.height) : [p.zoom, -p.x, -p.y];
  [p.zoom, p.x, p.y] = [zoom, -x, -y];
  p.drawn = layout(p.scene, p.chosen, zoom);
  contain(p);
}

// What is at a point of the window.
export const hitAtPoint = (p, x, y) => hitAt(p.scene, p.drawn, x - p.x, y - p.y);

export function hitAtCenter(p) {
  const tall = tallOf(p.drawn);
  return hitAtPoint(p, p.width / 2, tall <= p.height ? tall / 2 + p.y : p.height / 2);
}
