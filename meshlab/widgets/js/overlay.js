// Draws what changes with the pointer: the route of one group over a veil, the lasso, and the minimap.

import { entry } from "./data.js";
import { GROUPS, inkOn } from "./colors.js";
import { clamp, route } from "./layout.js";
import {
  cellBox,
  isSeen,
  nameDevice,
  paintExit,
  paintFunnel,
  paintLeaf,
  paintNic,
  paintUp,
  polyline,
  roundBox,
  widthOf,
  write,
} from "./paint.js";
import { outlineOf } from "./parts.js";
import { failedBox } from "./pick.js";
import { count } from "./text.js";

const VEIL = 0.62;
const MINIMAP_PX = 150;

// `devices` are the members of a group, `active` the device under the pointer, -1 for none.
export function paintGroup(p, g, devices, active) {
  const { pen, scene, drawn, colors, view } = p;
  pen.globalAlpha = VEIL;
  pen.fillStyle = colors.bg;
  pen.fillRect(0, 0, p.width, p.height);
  pen.globalAlpha = 1;
  pen.save();
  pen.translate(p.x, p.y);
  const found = view.is_placed
    ? route(scene, drawn, devices, Boolean(p.loads?.climbs[g]))
    : { stretches: [], nics: [], leaves: [], pods: [] };
  paintRoute(p, found);
  paintLitNodes(p, found);
  paintMembers(p, g, devices, active, found);
  pen.restore();
}

// The kind of stretch that is in conflict.
const conflictKind = (p) =>
  ({ nic: "nic", leaf: "up", unit: "up", pod: "core" })[p.shows.loads && p.shows.conflict ? p.loads?.conflict : ""] ??
  "";

// Hides the names of the NVLink bars that a route covers, with the colour of a bar in use seen through the veil.
function blankBars({ pen, drawn, colors }, found) {
  const starts = found.stretches.filter(({ kind }) => kind === "nvlink").map(({ points }) => points[0]);
  for (let k = 0; k < drawn.barHost.length; k++) {
    const [x, y, w, tall] = entry(drawn.bar, k);
    if (starts.some(([a, b]) => a >= x && a <= x + w && b >= y && b <= y + tall)) {
      roundBox(pen, x, y, w, tall, colors.faint("nvlink", 1 - (1 - 0.25) * (1 - VEIL)), null, 3);
    }
  }
}

function paintRoute(p, found) {
  const { pen, drawn, colors } = p;
  const limit = conflictKind(p);
  const thick = drawn.detail === 0 ? Math.max(1.5, drawn.cellHeight * 0.24) : drawn.detail >= 3 ? 5 : 3;
  // Uplinks of neighbouring units are close together, and must not merge.
  let slim = thick;
  const lanes = [...new Set(drawn.uplink.filter((_, k) => k % 6 === 4))].sort((a, b) => a - b);
  for (let k = 1; k < lanes.length; k++) slim = Math.min(slim, Math.max(1, 0.6 * (lanes[k] - lanes[k - 1])));
  if (drawn.detail >= 3) blankBars(p, found);
  pen.lineJoin = "round";
  for (const halo of [true, false]) {
    for (const { kind, points } of found.stretches) {
      const width = kind === "up" ? slim : thick;
      const color = halo ? colors.bg : kind === limit ? colors.conflict : colors.accent;
      polyline(pen, points.flat(), color, width + (halo && width === thick ? 2.5 : 0));
    }
  }
}

function paintLitNodes(p, found) {
  const { pen, scene, drawn, colors, loads } = p;
  const limit = conflictKind(p);
  const name = p.loads?.conflict ?? "";
  const isHot = (array, k) => limit !== "" && name === array && (loads.by[array]?.share[k] ?? 0) >= 0.999;
  for (const k of found.leaves) {
    if (scene.network === "known") {
      paintLeaf(p, k, isHot("leaf", k) ? colors.conflict : colors.accent, isHot("leaf", k), true);
    } else {
      pen.setLineDash([4, 3]);
      roundBox(pen, ...entry(drawn.leaf, k), null, colors.accent, 3, 2);
      pen.setLineDash([]);
    }
  }
  if (drawn.nic.length) {
    for (const n of found.nics) {
      const groups = loads?.by.nic?.groups[n] ?? 0;
      const hot = isHot("nic", n) && groups > 1;
      paintNic(p, n, hot ? colors.conflict : colors.accent, colors.bg, hot, groups, true);
    }
  }
  const pods = new Set(found.pods);
  const units = new Set(found.leaves.map((k) => (scene.rails ? Math.floor(k / scene.rails) : k)));
  for (const label of drawn.labels) {
    if (label.kind === "exit" && pods.has(label.index) && limit === "core") {
      paintFunnel(p, label.index, colors.conflict, colors.conflict, isHot("pod", label.index));
      paintExit(p, label);
    } else if (label.kind === "up" && units.has(label.index) && limit === "up") {
      paintUp(p, label);
    }
  }
}

function paintMembers(p, g, devices, active, found) {
  const { pen, drawn, colors, scene, loads } = p;
  const fill = g < 0 ? colors.ink2 : colors.groups[g % GROUPS];
  const { detail } = drawn;
  /** @returns {Box} */
  const grown = (d) => {
    const [x, y, w, h] = cellBox(p, d);
    const dx = Math.max(3 - w, 0) * (detail ? 0 : 1);
    const dy = Math.max(3 - h, 0) * (detail ? 0 : 1);
    return [x - dx / 2, y - dy / 2, w + dx, h + dy];
  };
  const radius = detail ? 3 : 0;
  const seen = devices.filter((d) => isSeen(p, ...entry(drawn.device, d)));
  for (const d of seen) {
    roundBox(pen, ...grown(d), fill, detail ? colors.bg : null, radius);
    nameDevice(p, d, grown(d), inkOn(fill));
  }
  if (active < 0) return;
  const [x, y, w, h] = grown(active);
  paintOutline(p, [x, y, w, h], radius, radius); // outside, so that the colour stays visible
  // Far away there are no NICs to mark, so the shared NIC is marked next to the device.
  const shared = found.nics.map((n) => loads?.by.nic?.groups[n] ?? 0).reduce((a, b) => Math.max(a, b), 0);
  if (detail >= 2 || conflictKind(p) !== "nic" || shared < 2 || scene.is_rack) return;
  const text = `${p.loads.mark} ×${count(shared)}`;
  const wide = widthOf(p, text, true) + 10;
  const left = x + w + 6 + wide + p.x > p.width ? x - wide - 6 : x + w + 6;
  roundBox(pen, left, y + h / 2 - 9, wide, 18, colors.bg, colors.conflict, 3);
  write(p, [text], left + 5, y + h / 2, colors.conflict, { bold: true });
}

function paintOutline({ pen, colors }, [x, y, w, h], outer, inner) {
  roundBox(pen, x - 3.5, y - 3.5, w + 7, h + 7, null, colors.bg, outer, 2);
  roundBox(pen, x - 1.5, y - 1.5, w + 3, h + 3, null, colors.ink, inner, 2.5);
}

// Outlines of picked parts.
export function paintOutlines(p, hits) {
  const { pen, colors } = p;
  pen.save();
  pen.translate(p.x, p.y);
  pen.lineJoin = "round";
  for (const hit of hits) {
    const box = hit.kind === "mark" ? failedBox(p, hit.mark) : null;
    const { boxes, lines } = hit.kind === "mark" ? { boxes: box ? [box] : [], lines: [] } : outlineOf(p, hit);
    for (const line of lines) {
      for (const [color, width] of [
        [colors.bg, 9],
        [colors.ink, 6],
        [colors.bg, 2],
      ]) {
        polyline(pen, line, color, width);
      }
    }
    for (const box of boxes) paintOutline(p, box, 4, 3);
  }
  pen.restore();
}

export function paintLasso(p, corners) {
  const { pen, colors } = p;
  const [[x0, y0], [x1, y1]] = corners;
  pen.globalAlpha = 0.15;
  pen.fillStyle = colors.accent;
  pen.fillRect(x0, y0, x1 - x0, y1 - y0);
  pen.globalAlpha = 1;
  pen.setLineDash([6, 4]);
  roundBox(pen, x0, y0, x1 - x0, y1 - y0, null, colors.accent, 0, 1.5);
  pen.setLineDash([]);
}

// The height of what is drawn. Without the outline of a pod, a layout ends with free space.
export function tallOf({ height, pod, unit }) {
  if (pod.length > 4) return height;
  let bottom = 0;
  for (let k = 0; k < unit.length; k += 4) bottom = Math.max(bottom, unit[k + 1] + unit[k + 3]);
  return bottom;
}

// The place of the minimap in the window, null if all of the machine is in view.
function minimapOf(p) {
  const { drawn } = p;
  if (drawn.width <= p.width + 2 && tallOf(drawn) <= p.height + 2) return null;
  const scale = Math.min(Math.min(MINIMAP_PX, p.width * 0.22) / drawn.width, 90 / drawn.height);
  const width = drawn.width * scale;
  const height = Math.max(drawn.height * scale, 14);
  return {
    x: p.width - width - 10,
    y: p.height - height - 10,
    width,
    height,
    scaleX: scale,
    scaleY: height / drawn.height,
  };
}

// All of the machine, with what has failed and the active GPU.
export function paintMinimap(p, active) {
  const map = minimapOf(p);
  const { pen, colors, drawn } = p;
  if (!map) return null;
  roundBox(pen, map.x - 4, map.y - 4, map.width + 8, map.height + 8, colors.panel, colors.line2, 4);
  pen.fillStyle = colors.line2;
  for (let k = 0; k < drawn.unit.length; k += 4) {
    const [x, y, w, h] = drawn.unit.subarray(k, k + 4);
    pen.fillRect(
      map.x + x * map.scaleX,
      map.y + y * map.scaleY,
      Math.max(w * map.scaleX - 1, 1),
      Math.max(h * map.scaleY - 1, 1),
    );
  }
  const dot = ([left, top, w, h], color, size) => {
    pen.fillStyle = color;
    const at = [map.x + (left + w / 2) * map.scaleX, map.y + (top + h / 2) * map.scaleY];
    pen.fillRect(at[0] - size / 2, at[1] - size / 2, size, size);
  };
  for (const mark of p.view.failed ?? []) {
    const box = failedBox(p, mark);
    if (box) dot(box, colors.conflict, 4);
  }
  if (active >= 0 && active < p.scene.devices) {
    dot(entry(drawn.device, active), colors.bg, 7);
    dot(entry(drawn.device, active), colors.ink, 5);
  }
  const x = clamp(-p.x * map.scaleX, 0, map.width);
  const y = clamp(-p.y * map.scaleY, 0, map.height);
  const right = clamp((p.width - p.x) * map.scaleX, 0, map.width);
  const bottom = clamp((p.height - p.y) * map.scaleY, 0, map.height);
  roundBox(pen, map.x + x, map.y + y, Math.max(right - x, 4), Math.max(bottom - y, 4), null, colors.accent, 0, 2);
  return map;
}
