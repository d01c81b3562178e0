// Draws the machine, with the colours of groups and the load of the links. `p` is one picture: its pen, scene, layout,
// view, loads, colours, the shift of the layout in the window, and the size of the window.

import { GROUPS, VIRIDIS, heatOf, inkOn, mixed, rgbOf } from "./colors.js";
import { entry, groupName, hostsOfUnit, nameOfDevice, railShares, unitLoad } from "./data.js";
import { clamp } from "./layout.js";
import { failedBox } from "./pick.js";
import { count, rangeOf, rateText, sizeText, threeDigits } from "./text.js";

const FONT_PX = 12; // the smallest text, 9 pt

// -- primitives ----------------------------------------------------------------------------------------------------------

export const isSeen = (p, x, y, w, h, margin = 4) =>
  x + w + p.x > -margin && x + p.x < p.width + margin && y + h + p.y > -margin && y + p.y < p.height + margin;

export function roundBox(pen, x, y, w, h, fill, edge, radius = 0, line = 1) {
  if (fill) pen.fillStyle = fill;
  if (edge) {
    pen.strokeStyle = edge;
    pen.lineWidth = line;
  }
  if (Math.min(w, h) < 3 * radius || !radius) {
    // faster than a path
    if (fill) pen.fillRect(x, y, w, h);
    if (edge) pen.strokeRect(x, y, w, h);
    return;
  }
  pen.beginPath();
  pen.roundRect(x, y, w, h, radius);
  if (fill) pen.fill();
  if (edge) pen.stroke();
}

function hatch(pen, trace, [x, y, w, h], color) {
  pen.save();
  pen.beginPath();
  trace();
  pen.clip();
  pen.strokeStyle = color;
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (let k = -h; k < w; k += 5) {
    pen.moveTo(x + k, y + h);
    pen.lineTo(x + k + h, y);
  }
  pen.stroke();
  pen.restore();
}

export function polyline(pen, points, color, width) {
  pen.strokeStyle = color;
  pen.lineWidth = width;
  pen.beginPath();
  for (let k = 0; k < points.length; k += 2) {
    if (k) pen.lineTo(points[k], points[k + 1]);
    else pen.moveTo(points[0], points[1]);
  }
  pen.stroke();
}

const fontOf = (p, bold) => `${bold ? 600 : 400} ${FONT_PX}px ${p.colors.font}`;

export function widthOf(p, text, bold) {
  const key = `${bold ? "b" : "n"}${text}`;
  if (!p.widths.has(key)) {
    if (p.widths.size > 20000) p.widths.clear();
    p.pen.font = fontOf(p, bold);
    p.widths.set(key, p.pen.measureText(text).width);
  }
  return p.widths.get(key);
}

// Writes the first of the texts that fits, centred on y. Returns whether one fits.
export function write(p, texts, x, y, color, { room = Infinity, align = "left", bold = false, turned = false } = {}) {
  const text = texts.find((one) => one && widthOf(p, one, bold) <= room);
  if (!text) return false;
  const { pen } = p;
  pen.font = fontOf(p, bold);
  pen.fillStyle = color;
  pen.textAlign = turned ? "center" : align;
  pen.textBaseline = "middle";
  if (turned) {
    pen.save();
    pen.translate(x, y);
    pen.rotate(-Math.PI / 2);
    pen.fillText(text, 0, 0.5);
    pen.restore();
  } else {
    pen.fillText(text, x, y + 0.5);
  }
  return true;
}

// Writes into the part of a space of the layout that is inside the window.
function writeLabel(p, label, texts, color, bold = false) {
  const left = Math.max(label.x, 6 - p.x);
  const right = Math.min(label.x + label.width, p.width - 4 - p.x);
  return write(p, texts, label.align === "left" ? left : right, label.y + label.height / 2, color, {
    room: right - left,
    align: label.align,
    bold,
  });
}

// -- loads ---------------------------------------------------------------------------------------------------------------

const shareOf = (p, name, k) => (p.shows.loads ? (p.loads?.by[name]?.share[k] ?? 0) : 0);
const isLimit = (p, name) => p.shows.loads && p.shows.conflict && p.loads?.conflict === name && name !== "";
const linkColor = (p, name, share) =>
  share >= 0.999 && isLimit(p, name) ? p.colors.conflict : heatOf(p.colors, share);
const linkWidth = (share, most) => 1 + (most - 1) * Math.sqrt(Math.min(share, 1));
const hatchInk = (p) => p.colors.faint("conflict", 0.6);
const upName = (p) => (p.loads?.by.unit ? "unit" : "leaf");

// -- the machine, from the outside in ------------------------------------------------------------------------------------

export function paintBase(p) {
  const { pen, scene, drawn } = p;
  pen.setTransform(p.dpr, 0, 0, p.dpr, 0, 0);
  pen.fillStyle = p.colors.bg;
  pen.fillRect(0, 0, p.width, p.height);
  pen.translate(p.x, p.y);
  pen.lineJoin = "round";
  p.rails = railShares(scene, p.shows.loads ? p.loads : null);
  paintCore(p);
  paintPods(p);
  const units = [];
  for (let u = 0; u < scene.pod_of.length; u++) if (isSeen(p, ...entry(drawn.unit, u))) units.push(u);
  const boxes = units.flatMap((u) => seenBoxes(p, u));
  paintUnits(p, units);
  paintRails(p, units);
  paintBoxes(p, boxes);
  paintDrops(p, boxes);
  paintBars(p, boxes);
  paintNics(p, boxes);
  paintCells(p, boxes);
  paintLabels(p);
  paintFailed(p);
}

// A cross at each failed part, over an empty box if there is room, and the share of each part with a lower rate.
function paintFailed(p) {
  for (const mark of p.view.failed ?? []) {
    const box = failedBox(p, mark);
    if (!box || !isSeen(p, ...box)) continue;
    if (mark.share) paintShare(p, mark, box);
    else paintCross(p, mark, box);
  }
}

function paintShare(p, mark, [x, y, w, h]) {
  const { pen, drawn, colors } = p;
  if (!drawn.detail) return paintCross(p, mark, [x, y, w, h]);
  const text = `${Number((100 * mark.share).toPrecision(2))} %`;
  const wide = widthOf(p, text, true) + 8;
  const left = x + w / 2 - wide / 2;
  roundBox(pen, left, y + h / 2 - 8, wide, 16, colors.bg, colors.conflict, 3, 1.5);
  write(p, [text], left + 4, y + h / 2, colors.conflict, { bold: true });
}

function paintCross(p, mark, [x, y, w, h]) {
  const { pen, drawn, colors } = p;
  const isLine = ["link", "cable", "uplink"].includes(mark.kind);
  const isRoomy = drawn.detail >= 2 && !isLine;
  const inset = mark.kind === "device" ? Math.min(4, h * 0.1) : 0;
  if (isRoomy) {
    pen.setLineDash([4, 3]);
    roundBox(pen, x + 0.5, y + inset, w - 1, h - 2 * inset, colors.bg, colors.conflict, 3, 1.5);
    pen.setLineDash([]);
  }
  if (isRoomy && w >= widthOf(p, "failed", true) + 8 && h >= 15) {
    write(p, ["failed"], x + w / 2, y + h / 2, colors.conflict, { align: "center", bold: true });
    return;
  }
  const r = clamp(Math.min(w, h) / 2 - 2, 4, mark.kind === "node" ? 9 : 6);
  const cx = x + w / 2;
  const cy = y + h / 2;
  pen.lineCap = "round";
  for (const [color, line] of [
    [colors.bg, 5],
    [colors.conflict, 2.5],
  ]) {
    polyline(pen, [cx - r, cy - r, cx + r, cy + r], color, line);
    polyline(pen, [cx + r, cy - r, cx - r, cy + r], color, line);
  }
  pen.lineCap = "butt";
}

function seenBoxes(p, u) {
  const found = [];
  const { boxes } = p.scene.of;
  for (let b = boxes[u]; b < boxes[u + 1]; b++) {
    if (isSeen(p, ...entry(p.drawn.box, b), 30)) found.push(b);
  }
  return found;
}

function funnelOutline(pen, funnel) {
  const [x, top, bottom, neck, base] = funnel;
  const slim = Math.max(neck, 3) / 2;
  const points = [
    [-slim, top],
    [slim, top],
    [slim, top + 6],
    [base / 2, bottom],
    [-base / 2, bottom],
    [-slim, top + 6],
  ];
  points.forEach(([dx, y], k) => (k ? pen.lineTo(x + dx, y) : pen.moveTo(x + dx, y)));
  pen.closePath();
}

function paintCore(p) {
  const { pen, drawn, colors } = p;
  if (!drawn.core.length) return;
  for (const array of [drawn.coreRiser, drawn.core]) {
    for (let k = 0; k < array.length; k += 4) roundBox(pen, ...array.subarray(k, k + 4), colors.cell, colors.line2, 3);
  }
  for (let pod = 0; pod < drawn.funnel.length / 5; pod++) {
    const share = shareOf(p, "pod", pod);
    const color = share ? linkColor(p, "pod", share) : colors.cell;
    paintFunnel(p, pod, color, share ? color : colors.line2, share >= 0.999 && isLimit(p, "pod"));
  }
  for (const label of drawn.labels) if (label.kind === "exit") paintExit(p, label);
}

export function paintFunnel(p, pod, fill, edge, isHatched) {
  const { pen } = p;
  const funnel = entry(p.drawn.funnel, pod, 5);
  pen.beginPath();
  funnelOutline(pen, funnel);
  pen.fillStyle = fill;
  pen.fill();
  pen.strokeStyle = edge;
  pen.lineWidth = 1;
  pen.stroke();
  const [x, top, bottom, , base] = funnel;
  if (isHatched) hatch(pen, () => funnelOutline(pen, funnel), [x - base / 2, top, base, bottom - top], hatchInk(p));
}

// The number of groups on a link, with a mark if it limits them.
function writeGroups(p, label, text, limits) {
  const texts = limits ? [`${p.loads.mark} ${text}`, text] : [text];
  writeLabel(p, label, texts, limits ? p.colors.conflict : p.colors.ink2, limits);
}

export function paintExit(p, label) {
  const share = shareOf(p, "pod", label.index);
  if (!share || !p.shows.counts) return;
  const limits = share >= 0.999 && isLimit(p, "pod");
  const text = `×${count(p.loads.by.pod.groups[label.index])}`;
  writeGroups(p, label, text, limits);
}

function paintPods(p) {
  const { pen, scene, drawn, colors } = p;
  if (drawn.pod.length > 4) {
    for (let k = 0; k < drawn.pod.length; k += 4) {
      roundBox(pen, ...drawn.pod.subarray(k, k + 4), colors.panel, colors.line2, 6);
    }
  }
  for (let k = 0; k < drawn.spine.length; k += 4) {
    roundBox(pen, ...drawn.spine.subarray(k, k + 4), colors.cell, colors.line2, 2);
  }
  const most = drawn.detail ? 4 : 2.5;
  for (let u = 0; u < drawn.uplink.length / 6; u++) {
    const share = p.shows.loads ? unitLoad(scene, p.loads, u).share : 0;
    polyline(pen, entry(drawn.uplink, u, 6), linkColor(p, upName(p), share), linkWidth(share, most));
  }
}

function paintUnits(p, units) {
  const { pen, scene, drawn, colors } = p;
  const { unit, leaf } = drawn;
  const rails = scene.rails;
  for (const u of units) {
    // Outlines of very many units would hide them.
    if (scene.network !== "none" && unit[2] >= 30) {
      roundBox(pen, ...entry(unit, u), null, drawn.detail ? colors.line2 : colors.line, 4);
    }
    if (scene.network === "unknown") {
      const [x, y, w, h] = entry(leaf, u);
      pen.setLineDash([4, 3]);
      roundBox(pen, x, y, w, h, null, colors.line2, 3);
      pen.setLineDash([]);
      if (w >= 14) {
        write(p, ["network not described", "not described", "unknown"], x + w / 2, y + h / 2, colors.ink2, {
          room: h - 8,
          turned: true,
        });
      }
      continue;
    }
    for (let k = u * rails; k < (u + 1) * rails; k++) {
      const share = shareOf(p, "leaf", k);
      const color = share ? linkColor(p, "leaf", share) : p.rails[k] ? colors.faint("load", 0.3) : colors.cell;
      paintLeaf(p, k, color, share >= 0.999 && isLimit(p, "leaf"));
    }
  }
}

export function paintLeaf(p, k, color, isHatched, isLit = false) {
  const { pen, drawn, scene } = p;
  const [x, y, w, h] = entry(drawn.leaf, k);
  roundBox(pen, x, y, w, h, color, w > 4 && !isLit ? p.colors.line2 : null, 2);
  if (isHatched) hatch(pen, () => pen.rect(x, y, w, h), [x, y, w, h], hatchInk(p));
  if (h < 12 || w < 18) return;
  const texts = scene.rails > 1 ? [`leaf ${k % scene.rails}`, `L${k % scene.rails}`] : ["leaf"];
  write(p, texts, x + w / 2, y + h / 2, inkOn(color), { room: w - 4, align: "center" });
}

function paintRails(p, units) {
  const { pen, scene, drawn } = p;
  const { rails } = scene;
  const rows = drawn.size.unitRows;
  if (!(drawn.detail >= 2 || (scene.is_rack && drawn.detail === 1))) return;
  for (const u of units) {
    for (let line = u * rows * rails; line < (u + 1) * rows * rails; line++) {
      const share = p.rails[u * rails + (line % rails)];
      polyline(pen, entry(drawn.rail, line, 6), linkColor(p, "nic", share), linkWidth(share, 3));
    }
  }
}

function paintBoxes(p, boxes) {
  const { pen, scene, drawn, colors } = p;
  const { detail } = drawn;
  const isFine = detail >= 2;
  if (!detail && !scene.is_rack) return;
  const quiet = detail === 1 && !scene.is_rack;
  const radius = isFine ? 5 : 2;
  for (const b of boxes) {
    const [x, y, w, h] = entry(drawn.box, b);
    const joined = scene.is_joined[b] && p.shows.nvlink;
    const edge = joined ? (quiet ? colors.faint("nvlink", 0.6) : colors.nvlink) : quiet ? colors.line : colors.line2;
    roundBox(pen, x - 2, y, w + 4, h + 3, isFine ? colors.panel : null, edge, radius, isFine && joined ? 1.5 : 1);
    if (isFine && !scene.is_rack) paintRailsInside(p, b);
  }
}

// Rails again, over the background of a host.
function paintRailsInside(p, b) {
  const { pen, scene, drawn } = p;
  const { rails } = scene;
  const u = scene.unit_of[b];
  const [x, y, w, h] = entry(drawn.box, b);
  const first = (u * drawn.size.unitRows + drawn.boxRow[b]) * rails;
  for (let r = 0; r < rails; r++) {
    const level = drawn.rail[(first + r) * 6 + 1];
    const share = p.rails[u * rails + r];
    if (level < y + h + 2) {
      polyline(pen, [x - 1, level, x + w + 1, level], linkColor(p, "nic", share), linkWidth(share, 3));
    }
  }
}

function eachNic(scene, boxes, visit) {
  for (const b of boxes) {
    for (let h = scene.of.hosts[b]; h < scene.of.hosts[b + 1]; h++) {
      const kind = scene.kindOf(h);
      for (let j = 0; j < kind.nics; j++) visit(scene.first_nic[h] + j, h, kind, j);
    }
  }
}

function paintDrops(p, boxes) {
  const { pen, scene, drawn } = p;
  if (!drawn.drop.length) return;
  eachNic(scene, boxes, (n) => {
    const points = entry(drawn.drop, n, 6);
    if (Number.isNaN(points[0])) return;
    const share = shareOf(p, "nic", n);
    const color = linkColor(p, "nic", share);
    polyline(pen, points, color, linkWidth(share, 2.5));
    if (!scene.is_rack) return;
    pen.fillStyle = color;
    pen.beginPath();
    pen.arc(points[4], points[5], 2, 0, 7);
    pen.fill();
  });
}

function hostIsBusy(p, h, set) {
  const { scene } = p;
  const kind = scene.kindOf(h);
  const bytes = p.shows.loads ? p.loads?.by.device?.bytes : null;
  if (!bytes) return false;
  for (let l = 0; l < kind.devices; l++) {
    if ((set < 0 || kind.set_of[l] === set) && bytes[scene.first_device[h] + l] > 0) return true;
  }
  return false;
}

// NVLink: a bar per domain, a line from it to every device, and the switches of a rack.
function paintBars(p, boxes) {
  const { pen, scene, drawn, colors } = p;
  const { detail } = drawn;
  const rack = scene.is_rack;
  if (rack) {
    for (const b of boxes) {
      const [x, y, w, h] = entry(drawn.tray, b);
      for (let k = 0; k < 9; k++) {
        roundBox(pen, x, y + 2 + (k * (h - 4)) / 9, w, Math.max((h - 4) / 9 - 1, 0.6), colors.faint("nvlink", 0.45));
      }
      const wide = widthOf(p, "NVSwitch trays", false) + 16;
      if (detail >= 2 && h > 24 && wide < w) {
        roundBox(pen, x + (w - wide) / 2, y + h / 2 - 9, wide, 18, colors.panel, null, 3);
        write(p, ["NVSwitch trays"], x + w / 2, y + h / 2, colors.ink, { align: "center" });
      }
    }
  }
  const isShown = new Set(boxes);
  for (let k = 0; k < drawn.barHost.length; k++) {
    const h = drawn.barHost[k];
    const b = scene.box_of[h];
    const set = drawn.barSet[k];
    if (!isShown.has(b)) continue;
    const [x, y, w, tall] = entry(drawn.bar, k);
    const kind = scene.kindOf(h);
    let busy = false;
    for (let g = rack ? scene.of.hosts[b] : h; g < (rack ? scene.of.hosts[b + 1] : h + 1) && !busy; g++) {
      busy = hostIsBusy(p, g, set);
    }
    const fill = colors.faint("nvlink", busy ? 0.25 : 0.7);
    roundBox(pen, x, y, w, tall, fill, null, 3);
    if (detail >= 2) {
      const word = kind.has_switch ? "NVSwitch" : kind.link_name;
      const rate = kind.nvlink_gbs === null ? "" : ` · ${rateText(kind.nvlink_gbs)} ${kind.rate_of}`;
      const texts = detail >= 3 ? [word + rate, word] : [word];
      if (w >= FONT_PX) write(p, texts, x + w / 2, y + tall / 2, inkOn(fill), { room: tall - 8, turned: true });
    }
    if (rack || detail < 2) continue;
    for (let l = 0; l < kind.devices; l++) {
      if (kind.set_of[l] !== set) continue;
      const d = scene.first_device[h] + l;
      const level = drawn.device[d * 4 + 1] + drawn.device[d * 4 + 3] / 2;
      const own = p.shows.loads && p.loads?.by.device?.bytes[d] > 0;
      polyline(
        pen,
        [x + w, level, drawn.device[d * 4] + 1, level],
        colors.faint("nvlink", own ? 0.2 : 0.7),
        own ? 4 : 1.5,
      );
    }
  }
}

function paintNics(p, boxes) {
  const { pen, scene, drawn, colors, loads } = p;
  if (!drawn.nic.length) return;
  if (!scene.is_rack) {
    for (const b of boxes) {
      const kind = scene.kindOf(b); // boxes are hosts
      for (const [own, j] of kind.near) {
        const d = (scene.first_device[b] + own) * 4;
        const n = scene.first_nic[b] + j;
        const share = shareOf(p, "nic", n);
        const x = drawn.device[d] + drawn.device[d + 2];
        const y = drawn.device[d + 1] + drawn.device[d + 3] / 2;
        const left = drawn.nic[n * 4];
        const middle = drawn.nic[n * 4 + 1] + drawn.nic[n * 4 + 3] / 2;
        const turn = (x + left) / 2;
        polyline(pen, [x - 1, y, turn, y, turn, middle, left, middle], linkColor(p, "nic", share), share ? 2 : 1);
      }
    }
  }
  eachNic(scene, boxes, (n, h, kind) => {
    const share = shareOf(p, "nic", n);
    const groups = loads?.by.nic?.groups[n] ?? 0;
    const color = share ? linkColor(p, "nic", share) : colors.cell;
    paintNic(p, n, color, share ? null : colors.line2, share >= 0.999 && groups > 1 && isLimit(p, "nic"), groups);
    if (drawn.detail < 3 || !share || scene.is_rack || kind.nic_space !== 1 || !p.shows.counts) return;
    const [x, y, w] = entry(drawn.nic, n);
    const text = sizeText(loads.by.nic.bytes[n]);
    if (widthOf(p, text, false) <= w + 8) write(p, [text], x + w, y - 8, colors.ink2, { align: "right" });
  });
}

export function paintNic(p, n, color, edge, isHatched, groups, bold = false) {
  const { pen, drawn, scene } = p;
  const [x, y, w, h] = entry(drawn.nic, n);
  roundBox(pen, x, y, w, h, color, edge, 2);
  if (isHatched) hatch(pen, () => pen.rect(x, y, w, h), [x, y, w, h], p.colors.faint("conflict", 0.45));
  if (scene.is_rack || h < 13 || w < 18) return;
  const text = groups > 1 && p.shows.counts ? `×${groups}` : "NIC";
  if (widthOf(p, text, bold || groups > 1) > w - 2) return;
  if (isHatched) {
    // a plain ground for text
    const wide = Math.min(widthOf(p, text, true) + 6, w);
    roundBox(pen, x + (w - wide) / 2, y + 1, wide, h - 2, color, null, 2);
  }
  write(p, [text], x + w / 2, y + h / 2, inkOn(color), { room: w - 2, align: "center", bold: bold || groups > 1 });
}

// -- devices -------------------------------------------------------------------------------------------------------------

// The painted part of a device, with a seam to its neighbours.
/** @returns {Box} */
export function cellBox(p, d) {
  const { drawn, scene } = p;
  const [x, y, w, h] = entry(drawn.device, d);
  if (drawn.detail >= 2) {
    const pad = Math.min(4, drawn.cellHeight * 0.1);
    return scene.is_rack ? [x + 2, y + pad, w - 4, h - 2 * pad] : [x, y + pad, w, h - 2 * pad];
  }
  if (drawn.cellHeight <= 4) return [x, y, w, h];
  const seam = drawn.detail ? 1 : 0.5;
  return [x, y + seam / 2, w - (drawn.detail ? 1 : 0), h - seam];
}

// The number of the colour of every device, -1 for none, and the colours. Computed once per change.
function cellColors(p) {
  const { view, scene, colors, color } = p;
  const n = scene.devices;
  const shade = new Int16Array(n);
  const values = p.values[color];
  if (values && view.world) {
    const [low, high] = rangeOf(values);
    const last = VIRIDIS.length - 1;
    for (let d = 0; d < n; d++) {
      const value = view.rank[d] < 0 ? NaN : values[view.rank[d]];
      shade[d] = Number.isFinite(value) ? Math.round(high > low ? ((value - low) / (high - low)) * last : last) : -1;
    }
    return { shade, palette: VIRIDIS };
  }
  const idle = GROUPS * 2;
  const palette = [...colors.resting, ...colors.pale, colors.cell, ...colors.groups];
  const hasSelection = p.selected.some((one) => one);
  for (let d = 0; d < n; d++) {
    const g = view.group[d];
    if (g < 0) shade[d] = -1;
    else if (color === "load" || !p.shows.groups || (color === "sharing" && !p.sharing?.has(g))) shade[d] = idle;
    else shade[d] = (g % GROUPS) + (hasSelection ? (p.selected[view.rank[d]] ? idle + 1 : GROUPS) : 0);
  }
  return { shade, palette };
}

// The devices in view.
function seenDevices(p, boxes) {
  const { scene, drawn } = p;
  const { device } = drawn;
  const list = [];
  const left = -p.x - 4;
  const right = p.width - p.x + 4;
  const top = -p.y - 4;
  const bottom = p.height - p.y + 4;
  for (const b of boxes) {
    for (let h = scene.of.hosts[b]; h < scene.of.hosts[b + 1]; h++) {
      const first = scene.first_device[h];
      const last = first + scene.kindOf(h).devices;
      for (let d = first, k = first * 4; d < last; d++, k += 4) {
        if (
          device[k] + device[k + 2] > left &&
          device[k] < right &&
          device[k + 1] + device[k + 3] > top &&
          device[k + 1] < bottom
        ) {
          list.push(d);
        }
      }
    }
  }
  return list;
}

function paintCells(p, boxes) {
  const { pen, drawn, colors, view } = p;
  const { shade, palette } = (p.cells ??= cellColors(p));
  const { detail, cellWidth, cellHeight } = drawn;
  const radius = Math.min(3, cellWidth / 4);
  if (!detail) return paintSheet(p, boxes);
  const list = seenDevices(p, boxes);
  // One colour after the other, because each change of the colour costs as much as many cells.
  const byShade = Array.from({ length: palette.length + 1 }, () => []);
  for (const d of list) byShade[shade[d] < 0 ? palette.length : shade[d]].push(d);
  byShade.forEach((devices, k) => {
    if (!devices.length) return;
    const inset = k === palette.length ? 0.5 : 0; // of an outline
    pen.beginPath();
    for (const d of devices) {
      const [x, y, w, h] = cellBox(p, d);
      pen.roundRect(x + inset, y + inset, Math.max(w - 2 * inset, 0.5), Math.max(h - 2 * inset, 0.5), radius);
    }
    pen.fillStyle = palette[k] ?? colors.bg;
    pen.strokeStyle = colors.line2;
    pen.lineWidth = 1;
    if (inset) pen.stroke();
    else pen.fill();
  });
  for (const d of list) if (p.selected[view.rank[d]]) roundBox(pen, ...cellBox(p, d), null, colors.ink, radius, 2);
  if (cellWidth < 22 || cellHeight < 13) return;
  for (const d of list) nameDevice(p, d, cellBox(p, d), shade[d] < 0 ? colors.ink2 : inkOn(palette[shade[d]]));
}

// One pixel per device, host by host. Scaled up, it paints a row of hosts at once, which is ten times as fast as filling
// a rectangle per device.
function makeSheet(p) {
  const { scene, colors } = p;
  const { shade, palette } = p.cells;
  const { is_rack: rack, across: columns } = p.drawn.shape;
  const rows = rack ? 1 : p.drawn.shape.rows;
  const wrap = Math.floor(8192 / columns);
  const hosts = scene.box_of.length; // canvases have a largest width
  const wide = Math.min(hosts, wrap) * columns;
  const image = new ImageData(wide, Math.ceil(hosts / wrap) * rows);
  const pixels = new Uint32Array(image.data.buffer); // ABGR, because all machines with a browser are little-endian
  const abgr = (hex) => rgbOf(hex).reduceRight((all, part) => (all << 8) | part, 0xff) >>> 0;
  const inks = palette.map(abgr);
  const idle = abgr(mixed(colors.line, colors.bg, 0.5));
  const at = (h) => [(h % wrap) * columns, Math.floor(h / wrap) * rows];
  for (let h = 0; h < hosts; h++) {
    const kind = scene.kindOf(h);
    const [x, y] = at(h);
    for (let l = 0; l < kind.devices; l++) {
      const slot = kind.slot_of[l];
      const d = scene.first_device[h] + l;
      const column = rack ? slot : Math.floor(slot / kind.rows);
      const row = rack ? 0 : slot % kind.rows;
      pixels[(y + row) * wide + x + column] = shade[d] < 0 ? idle : inks[shade[d]];
    }
  }
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return { canvas, at, columns, rows };
}

// Cells of a few pixels: runs of neighbouring hosts.
function paintSheet(p, boxes) {
  const { pen, scene, drawn, colors } = p;
  const { canvas, at, columns, rows } = (p.cells.sheet ??= makeSheet(p));
  const { is_rack: rack } = drawn.shape;
  const hosts = boxes.flatMap((b) =>
    Array.from({ length: scene.of.hosts[b + 1] - scene.of.hosts[b] }, (_, k) => scene.of.hosts[b] + k),
  );
  const { cellWidth, cellHeight } = drawn;
  const gap = rack ? 0 : drawn.size.gap;
  const step = columns * cellWidth + gap;
  const snapped = (v) => Math.round(v * p.dpr) / p.dpr;
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = colors.bg;
  for (let k = 0; k < hosts.length;) {
    const h = hosts[k];
    const [sx, sy] = at(h);
    const x = drawn.host[h * 4];
    const y = drawn.host[h * 4 + 1];
    let n = 1;
    const isNext = (g) =>
      drawn.host[g * 4 + 1] === y && Math.abs(drawn.host[g * 4] - x - n * step) < 0.5 / p.dpr && at(g)[1] === sy;
    while (!rack && hosts[k + n] === h + n && isNext(h + n)) n++;
    const left = snapped(x);
    const top = snapped(y);
    pen.drawImage(canvas, sx, sy, n * columns, rows, left, top, n * step, rows * cellHeight);
    if (gap) for (let j = 1; j <= n; j++) pen.fillRect(left + j * step - gap, top, gap, rows * cellHeight);
    if (cellHeight > 4) {
      for (let row = 1; row < rows; row++) pen.fillRect(left, top + row * cellHeight - 0.5, n * step, 0.5);
    }
    k += n;
  }
}

// How the names of all devices are written, so that they can be compared: the longest form for which every one has room.
function formOfNames(p, w) {
  const { view, scene, drawn } = p;
  const key = `${w.toFixed(1)} ${view.axis} ${view.n_groups} ${view.world} ${p.color}`;
  if (drawn.form?.key === key) return drawn.form;
  const name = scene.kinds.flatMap((kind) => kind.names ?? []).reduce((a, b) => (b.length > a.length ? b : a), "");
  const rank = `rank ${count(Math.max(view.world - 1, 0))}`;
  const has = (text, bold) => widthOf(p, text, bold) <= w - 12;
  drawn.form = {
    key,
    hasDevice: view.is_placed && has(`${name} · ${rank}`, true),
    hasWord: has(rank, true),
    hasGroup: has(groupName(view, Math.max(view.n_groups - 1, 0)), false),
  };
  return drawn.form;
}

// The rank in bold, and the group below it if there is room.
export function nameDevice(p, d, [x, y, w, h], color) {
  if (w < 22 || h < 13) return;
  const { view, scene } = p;
  const rank = view.rank[d];
  const g = view.group[d];
  const name = nameOfDevice(scene, d);
  const form = formOfNames(p, w);
  const number = rank < 0 ? name.split(" ").pop() : count(rank);
  const value = p.values[p.color]?.[rank];
  const isMeasured = value !== undefined && Number.isFinite(value);
  const isRoomy = h >= 34 && w >= 44 && (form.hasGroup || isMeasured);
  const long = rank < 0 ? name : form.hasDevice && isRoomy ? `${name} · rank ${number}` : `rank ${number}`;
  const first = form.hasWord ? [long, number] : [number];
  if (isRoomy) {
    const second = isMeasured ? threeDigits(value) : g >= 0 ? groupName(view, g) : "no rank";
    write(p, first, x + 7, y + h / 2 - 8, color, { room: w - 12, bold: true });
    write(p, [second], x + 7, y + h / 2 + 8, color, { room: w - 12 });
  } else {
    write(p, [number], x + w / 2, y + h / 2, color, { room: w - 2, align: "center", bold: true });
  }
}

// -- names ---------------------------------------------------------------------------------------------------------------

export const podName = (scene, k) => (scene.pod_word ? `${scene.pod_word} ${scene.pod_id[k]}` : scene.top_word);
export const unitName = (scene, k) =>
  scene.unit_word
    ? scene.unit_id.length > 1
      ? `${scene.unit_word} ${scene.unit_id[k]}`
      : `${scene.unit_word} switches`
    : "";
export const boxName = (scene, b) => (scene.is_rack ? `rack ${b}` : scene.names[scene.of.hosts[b]]);
export const taperText = (scene) =>
  scene.taper > 1 ? ` · 1:${Number(scene.taper.toPrecision(6))} oversubscribed` : "";

function paintLabels(p) {
  const { scene, drawn, colors } = p;
  const taper = taperText(scene);
  for (const label of drawn.labels) {
    const k = label.index;
    if (!isSeen(p, label.x, label.y, label.width, label.height)) continue;
    if (label.kind === "core") {
      writeLabel(
        p,
        label,
        [`${scene.top_word} · ${scene.pod_id.length} ${scene.pod_word}s${taper}`, scene.top_word],
        colors.ink2,
      );
    } else if (label.kind === "pod") {
      const name = podName(scene, k);
      const hosts = scene.of.units;
      let n = 0;
      for (let u = hosts[k]; u < hosts[k + 1]; u++) n += hostsOfUnit(scene, u);
      const sizes = `${name} · ${count(n)} hosts · ${count(scene.perPod[k])} GPUs`;
      writeLabel(p, label, [scene.pod_word ? "" : sizes + taper, sizes, name], colors.ink, true);
    } else if (label.kind === "unit") {
      writeLabel(p, label, unitTexts(scene, k), colors.ink2);
    } else if (label.kind === "box") {
      const bold = drawn.detail >= 3;
      const name = boxName(scene, k);
      const domain = `${scene.kindOf(scene.of.hosts[k]).link_name} domain`;
      const more = scene.is_joined[k] ? `${name} · ${domain}${scene.is_rack ? ` of ${scene.perBox[k]}` : ""}` : "";
      writeLabel(p, label, [more, name], bold ? colors.ink : colors.ink2, bold);
    } else if (label.kind === "up") {
      paintUp(p, label);
    }
  }
}

export function paintUp(p, label) {
  const up = unitLoad(p.scene, p.loads, label.index);
  if (!up.share || !p.shows.loads || !p.shows.counts) return;
  const limits = up.share >= 0.999 && isLimit(p, upName(p));
  const text = `↑ ×${count(up.groups)}`;
  writeGroups(p, label, text, limits);
}

function unitTexts(scene, k) {
  const first = scene.of.hosts[scene.of.boxes[k]];
  const last = scene.of.hosts[scene.of.boxes[k + 1]] - 1;
  const hosts = first === last ? scene.names[first] : `${scene.names[first]} – ${scene.names[last]}`;
  if (scene.network === "unknown") return [`${hosts} · network not described`, hosts, "network not described"];
  const rails = scene.rails > 1 ? ` · ${scene.rails} rails` : "";
  const name = unitName(scene, k);
  return [`${name} · ${hosts}${rails}`, `${name} · ${hosts}`, `${name}${rails}`, name];
}
