// The place of every box and line of a scene, in CSS pixels. meshlab/topology/placement/_layout.py and _route.py compute
// the same for figures, and a test compares them to half a pixel. Nothing here touches the document.
//
// fit(scene, width, height, dpr) chooses the arrangement, layout(scene, fit, zoom) places everything, route(scene, layout,
// devices, climbs) returns the lines of one group, and lookAt(scene, fit, place, width, height) the zoom for a place.
// Boxes are Float64Arrays with x, y, width, height of one box after the other; lines have two or three points.
//
// Zooms and widths change while Python cannot be called: in a frame of 16 ms, during a cell, in a saved page. All that depends
// on neither comes from Python as scene.layout: counts, arrangements, lengths, and the rows of rails.

import { entry } from "./data.js";

const MARGIN = 20; // free pixels of the figure, both sides together
const STEPS = 14; // of a bisection

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const ceilDiv = (a, b) => Math.ceil(a / b);

// A share of a size, between the least and the largest length of this name.
function lengthOf(rules, name, size) {
  const [share, low, high] = rules.lengths[name];
  return clamp(size * share, low, high);
}

function measure(rules, cw, ch, pods, units, boxes) {
  const { shape } = rules;
  const rack = shape.is_rack;
  const length = (name, size) => lengthOf(rules, name, size);
  const room = rack ? cw * 2.2 : cw;
  const s = {};
  s.detail = rules.details.filter((least) => cw >= least).length;
  if (!rack && shape.across > 1) s.detail = Math.min(s.detail, 1);
  const detail = s.detail;
  if (rack) s.gap = length("rack_gap", cw);
  else if (detail === 0) s.gap = cw >= 5 ? 1 : 0;
  else s.gap = length(detail >= 2 ? "near_gap" : "gap", cw);
  s.nvlink = 0;
  if (detail >= 2) s.nvlink = (detail >= 3 ? 22 : rack ? 10 : length("bar", cw)) * (rack ? 1 : shape.lanes);
  else if (rack && detail === 1) s.nvlink = 6;
  s.switches = s.nicWidth = s.railHeight = 0;
  if (rack) {
    s.switches = detail >= 2 ? ch * 2.2 : Math.max(ch * 1.6, 4);
    s.nicWidth = detail >= 2 && shape.nics ? shape.nics * length("rack_nic", cw) + 4 : 0;
    if (shape.rails) s.railHeight = detail >= 1 ? (detail >= 2 ? 20 : length("rack_rail", ch)) * shape.rails + 8 : 8;
  }
  s.boxWidth = rack ? s.nvlink + shape.across * cw + s.nicWidth : shape.across * cw;
  s.head = detail >= 2 ? 20 : detail === 1 && s.boxWidth >= 24 ? 16 : 0;
  s.boxHeight = s.head + shape.rows * ch + s.switches;
  const hasStrip = shape.rails > 0 || shape.network === "unknown";
  s.strip = hasStrip ? length(shape.boxes >= 8 ? "long_strip" : "strip", room) : 0;
  s.unitPad = length("unit_pad", room);
  const inner = boxes * (s.boxWidth + s.gap) - (rack ? 0 : s.gap);
  s.unitWidth = s.unitPad * 2 + inner + (hasStrip ? s.strip + (detail >= 2 ? 14 : 2) : 0);
  const isFine = shape.units > 64;
  s.unitHead = s.unitWidth >= 44 && shape.network !== "none" ? 17 : isFine ? 1 : 3;
  s.unitRows = ceilDiv(shape.boxes, boxes);
  s.rowGap = detail >= 2 ? 14 : detail === 1 ? 6 : 3;
  s.unitHeight = s.unitHead + s.unitRows * (s.boxHeight + s.railHeight) + (s.unitRows - 1) * s.rowGap + s.unitPad;
  const hasSpine = shape.all_units > 1;
  const rows = ceilDiv(shape.units, units);
  // The uplinks of a few units have a lane each. Those of very many units share one.
  s.gutter = isFine ? Math.max(room, 4) : Math.max(8, 3 + rows * length("lane", room));
  if (!hasSpine) s.gutter = 0;
  s.unitGap = length(isFine ? "fine_unit_gap" : "unit_gap", room);
  s.podHead = hasSpine ? (room < 3 ? 27 : length("pod_head", room)) : 0;
  s.podPad = shape.pods > 1 ? 6 : 2;
  s.podWidth = s.podPad * 2 + units * (s.unitWidth + s.gutter);
  s.podHeight = s.podHead + s.podPad + rows * (s.unitHeight + s.unitGap);
  s.core = shape.pods > 1 ? length("core", room) : 0;
  s.podGap = shape.pods > 1 ? length("pod_gap", room) : 0;
  s.podRows = ceilDiv(shape.pods, pods);
  s.left = s.podRows > 1 ? 20 : 0;
  s.width = s.left + pods * (s.podWidth + s.podGap) - s.podGap;
  s.height = s.podRows * (s.core + s.podHeight + s.podGap) - s.podGap;
  s.step = s.boxHeight + s.railHeight + s.rowGap;
  return s;
}

const snap = (value, dpr) => (value < 10 ? Math.max(1, Math.floor(value * dpr)) / dpr : value);

function bisect(low, high, fits) {
  for (let k = 0; k < STEPS; k++) {
    const middle = (low + high) / 2;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

function widest(rules, width, arrangement, dpr) {
  const fits = (cw) => measure(rules, cw, 4, ...arrangement).width <= width - MARGIN;
  return fits(1 / dpr) ? snap(bisect(1 / dpr, rules.largest[0], fits), dpr) : 1 / dpr;
}

function tallest(rules, height, cw, arrangement, dpr) {
  const fits = (ch) => measure(rules, cw, ch, ...arrangement).height <= height - MARGIN;
  const ch = snap(bisect(1 / dpr, Math.min(rules.largest[1], cw * 3.4 + 2), fits), dpr);
  const most = rules.shape.is_rack ? ch * 4.2 : ch < 10 ? ch * 2.4 : ch * 4.4;
  return [snap(Math.min(cw, most), dpr), ch];
}

export function fit(scene, width, height, dpr = 1) {
  const rules = scene.layout;
  let best = -Infinity;
  let chosen = null;
  for (const [pods, units, boxes, worth] of rules.arrangements) {
    const arrangement = [pods, units, boxes];
    const across = widest(rules, width, arrangement, dpr);
    const most = across * 3.4 + 2;
    if ((Math.min(across * 1.8, most) * 3 + Math.sqrt(across * most)) * worth <= best) continue;
    const [cw, ch] = tallest(rules, height, across, arrangement, dpr);
    const size = measure(rules, cw, ch, ...arrangement);
    let score = (Math.min(cw * 1.8, ch) * 3 + Math.sqrt(cw * ch)) * worth;
    score -= 1000 * (Math.max(size.width / (width - 8), 1) - 1 + Math.max(size.height / height, 1) - 1);
    if (score > best + 1e-9) [best, chosen] = [score, { cellWidth: cw, cellHeight: ch, pods, units, boxes, dpr }];
  }
  return chosen;
}

// ---------------------------------------------------------------------------------------------------------------- places

function put(array, index, x, y, width, height) {
  array[index * 4] = x;
  array[index * 4 + 1] = y;
  array[index * 4 + 2] = width;
  array[index * 4 + 3] = height;
}

// Width and height of a cell. Far away cells are slim, near ones are wide.
function cellOf(shape, chosen, zoom) {
  const dpr = chosen.dpr;
  let cw = chosen.cellWidth * zoom;
  if (cw < 10) cw = Math.max(1, Math.floor(cw * dpr + 0.5)) / dpr;
  const roomy = shape.is_rack ? cw * 0.42 + 8 : 4 * Math.sqrt(cw);
  const ch = Math.max(chosen.cellHeight, Math.min(chosen.cellHeight * zoom, Math.max(roomy, chosen.cellHeight)));
  return [cw, ch < 10 ? Math.floor(ch * dpr + 0.5) / dpr : Math.floor(ch + 0.5)];
}

export function layout(scene, chosen, zoom = 1) {
  const rules = scene.layout;
  const [cw, ch] = cellOf(rules.shape, chosen, zoom);
  const size = measure(rules, cw, ch, chosen.pods, chosen.units, chosen.boxes);
  const drawn = {
    width: size.width,
    height: size.height,
    cellWidth: cw,
    cellHeight: ch,
    detail: size.detail,
    boxesAcross: chosen.boxes,
    size,
    shape: rules.shape,
  };
  placePods(rules, drawn, chosen);
  placeUnits(scene, drawn, chosen);
  placeHosts(scene, drawn);
  placeBars(scene, drawn);
  const levels = railLevels(scene, drawn);
  placeLeaves(drawn, levels);
  placeRails(scene, drawn, levels);
  placeDrops(scene, drawn);
  placeUplinks(scene, drawn, chosen);
  drawn.labels = labelsOf(drawn);
  return drawn;
}

function placePods(rules, drawn, chosen) {
  const { shape, size } = drawn;
  const step = size.core + size.podHeight + size.podGap;
  const hasSpine = shape.all_units > 1;
  const pod = (drawn.pod = new Float64Array(shape.pods * 4));
  const spine = (drawn.spine = new Float64Array(hasSpine ? shape.pods * 4 : 0));
  const thick = lengthOf(rules, "spine", size.podHead);
  for (let p = 0; p < shape.pods; p++) {
    const x = size.left + (p % chosen.pods) * (size.podWidth + size.podGap);
    const y = Math.floor(p / chosen.pods) * step + size.core;
    put(pod, p, x, y, size.podWidth, size.podHeight);
    if (hasSpine) put(spine, p, x + size.podPad, y + size.podHead - 6 - thick, size.podWidth - size.podPad * 2, thick);
  }
  drawn.core = drawn.coreRiser = drawn.funnel = new Float64Array(0);
  if (shape.pods === 1) return;
  const core = (drawn.core = new Float64Array(size.podRows * 4));
  const shift = size.podRows > 1 ? size.left - 4 : 0;
  for (let row = 0; row < size.podRows; row++) {
    put(core, row, size.left - shift, row * step + 16, size.width - size.left + shift, 10);
  }
  if (size.podRows > 1) drawn.coreRiser = Float64Array.of(4, core[1], 10, core[core.length - 3] + 10 - core[1]);
  const base = lengthOf(rules, "exit", size.podWidth);
  const funnel = (drawn.funnel = new Float64Array(shape.pods * 5));
  for (let p = 0; p < shape.pods; p++) {
    const row = Math.floor(p / chosen.pods);
    funnel.set(
      [pod[p * 4] + size.podWidth / 2, core[row * 4 + 1] + 10, pod[p * 4 + 1], base / shape.taper, base],
      p * 5,
    );
  }
}

// Places the children of each parent in rows. `parent` is sorted.
function inRows(parent, across, origin, step, extent) {
  const box = new Float64Array(parent.length * 4);
  const rows = new Int32Array(parent.length);
  for (let k = 0, first = 0; k < parent.length; k++) {
    if (k && parent[k] !== parent[k - 1]) first = k;
    const column = (k - first) % across;
    const row = (rows[k] = Math.floor((k - first) / across));
    const [x, y] = origin(parent[k]);
    put(box, k, x + column * step[0], y + row * step[1], extent[0], extent[1]);
  }
  return [box, rows];
}

function placeUnits(scene, drawn, chosen) {
  const { size, pod } = drawn;
  const inPod = (p) => [pod[p * 4] + size.podPad, pod[p * 4 + 1] + size.podHead];
  const unitStep = [size.unitWidth + size.gutter, size.unitHeight + size.unitGap];
  [drawn.unit, drawn.unitRow] = inRows(scene.pod_of, chosen.units, inPod, unitStep, [size.unitWidth, size.unitHeight]);
  const unit = drawn.unit;
  const inUnit = (u) => [unit[u * 4] + size.unitPad, unit[u * 4 + 1] + size.unitHead];
  const boxStep = [size.boxWidth + size.gap, size.step];
  [drawn.box, drawn.boxRow] = inRows(scene.unit_of, chosen.boxes, inUnit, boxStep, [size.boxWidth, size.boxHeight]);
}

const traysOf = (scene, b) => scene.of.hosts[b + 1] - scene.of.hosts[b];
const middleTray = (trays) => Math.ceil(trays * 0.55); // trays above the switches of a rack, such as 10 of 18

function placeHosts(scene, drawn) {
  const { shape, size, cellWidth: cw, cellHeight: ch } = drawn;
  const length = (name, value) => lengthOf(scene.layout, name, value);
  const rack = shape.is_rack;
  const hosts = scene.box_of.length;
  const host = (drawn.host = new Float64Array(hosts * 4));
  const device = (drawn.device = new Float64Array(scene.devices * 4));
  const nic = (drawn.nic = new Float64Array(size.detail >= 2 ? scene.nics * 4 : 0));
  const wide = length(size.detail >= 3 ? "near_nic" : "nic", cw);
  const margin = length("nic_margin", cw) + 2;
  const pad = length("device_pad", cw);
  const aside = size.nvlink + pad;
  const withNics = Math.min(Math.max(cw * 0.5, 22), cw - aside - wide - margin - 4);
  const slim = Math.max(shape.nics ? withNics : cw - aside - pad, 12); // width of a device
  for (let h = 0, tray = 0; h < hosts; h++) {
    const b = scene.box_of[h];
    const kind = scene.kinds[scene.kind_of[h]];
    tray = h && b === scene.box_of[h - 1] ? tray + 1 : 0;
    let x = drawn.box[b * 4];
    let y = drawn.box[b * 4 + 1];
    if (rack) {
      x += size.nvlink;
      y += size.head + tray * ch + (tray >= middleTray(traysOf(scene, b)) ? size.switches : 0);
      put(host, h, x, y, size.boxWidth - size.nvlink, ch);
    } else {
      put(host, h, x, y, size.boxWidth, size.head + kind.rows * ch);
    }
    for (let l = 0; l < kind.devices; l++) {
      const d = scene.first_device[h] + l;
      const slot = kind.slot_of[l];
      if (rack) put(device, d, x + slot * cw, y, cw, ch);
      else if (size.detail >= 2) put(device, d, x + aside, y + size.head + slot * ch, slim, ch);
      else put(device, d, x + Math.floor(slot / kind.rows) * cw, y + size.head + (slot % kind.rows) * ch, cw, ch);
    }
    if (size.detail < 2 || !kind.nics) continue;
    const each = (size.nicWidth - 4) / shape.nics;
    const side = Math.min(length("rack_port", ch), each - 2);
    const tall = clamp(ch * 0.42, 3, Math.min(26, kind.nic_space * ch * (kind.nic_space < 1 ? 0.8 : 1)));
    for (let j = 0; j < kind.nics; j++) {
      const n = scene.first_nic[h] + j;
      if (rack) put(nic, n, x + shape.across * cw + 4 + j * each, y + (ch - side) / 2, side, side);
      else put(nic, n, x + cw - wide - margin, y + size.head + kind.nic_row[j] * ch - tall / 2, wide, tall);
    }
  }
  if (!rack) drawn.box = host.slice();
}

function placeBars(scene, drawn) {
  const { shape, size, box, host, cellWidth: cw, cellHeight: ch } = drawn;
  const bars = [];
  const hosts = [];
  const sets = [];
  drawn.tray = new Float64Array(shape.is_rack ? box.length : 0);
  if (shape.is_rack) {
    scene.unit_of.forEach((_, b) => {
      const x = box[b * 4];
      const y = box[b * 4 + 1] + size.head;
      put(drawn.tray, b, x + size.nvlink, y + middleTray(traysOf(scene, b)) * ch, shape.across * cw, size.switches);
      if (!size.nvlink) return;
      bars.push(x + 2, y + 2, size.nvlink - 6, size.boxHeight - size.head - 4);
      hosts.push(scene.of.hosts[b]);
      sets.push(-1);
    });
  } else if (size.nvlink) {
    const wide = size.nvlink / shape.lanes;
    scene.kinds.forEach((kind, k) =>
      kind.sets.forEach(([lane, first, last, number]) =>
        scene.kind_of.forEach((own, h) => {
          if (own !== k) return;
          bars.push(
            host[h * 4] + 2 + lane * wide,
            host[h * 4 + 1] + size.head + first * ch + 2,
            wide - 4,
            (last - first + 1) * ch - 4,
          );
          hosts.push(h);
          sets.push(number);
        }),
      ),
    );
  }
  drawn.bar = Float64Array.from(bars);
  drawn.barHost = Int32Array.from(hosts);
  drawn.barSet = Int32Array.from(sets);
}

// The y of every rail and of its leaf switch, from the top of a row of boxes.
function railLevels(scene, drawn) {
  const { shape, size, cellHeight: ch } = drawn;
  const rails = Array.from({ length: shape.rails }, (_, r) => r);
  if (shape.is_rack) {
    const space = size.railHeight - 8;
    const below = rails.map((r) => size.boxHeight + 6 + (r + 0.5) * (space / Math.max(shape.rails, 1)));
    if (space > 0) return { rail: below, leaf: below };
    return {
      rail: below,
      leaf: rails.map((r) => size.head + ((r + 0.5) * (size.boxHeight - size.head)) / Math.max(shape.rails, 1)),
    };
  }
  const row = scene.layout.rail_rows;
  // With boxes of NICs, rails run between the rows of devices, so that they cross no text.
  return {
    rail: row.map((y) => size.head + (size.detail >= 2 ? Math.ceil(y) : y) * ch),
    leaf: row.map((y) => size.head + y * ch),
  };
}

function placeLeaves(drawn, levels) {
  const { shape, size, unit, cellHeight: ch } = drawn;
  const units = unit.length / 4;
  const rails = shape.rails;
  const inner = size.unitRows * size.step - size.rowGap - size.head;
  let room = rails ? (shape.rows * ch) / rails : 0;
  let middle = levels.leaf;
  if (size.unitRows > 1 && !shape.is_rack) {
    room = inner / rails;
    middle = middle.map((_, r) => size.head + (r + 0.5) * room);
  } else if (shape.is_rack) {
    room = (size.railHeight - 8) / rails || (size.boxHeight - size.head) / rails;
    middle = middle.map((y) => y + (size.unitRows - 1) * size.step);
  }
  const tall = Math.max(Math.min(room * (room < 24 ? 0.88 : 0.72), rails > 1 ? 28 : 60), 1.5);
  const isUnknown = shape.network === "unknown";
  drawn.leaf = new Float64Array(isUnknown ? units * 4 : units * rails * 4);
  for (let u = 0; u < units; u++) {
    const x = unit[u * 4] + size.unitWidth - size.strip - size.unitPad * 0.5;
    const top = unit[u * 4 + 1] + size.unitHead;
    if (isUnknown) {
      put(drawn.leaf, u, x, top + size.head, size.strip, inner);
    } else {
      for (let r = 0; r < rails; r++) put(drawn.leaf, u * rails + r, x, top + middle[r] - tall / 2, size.strip, tall);
    }
  }
}

function placeRails(scene, drawn, levels) {
  const { shape, size, unit, leaf } = drawn;
  const units = unit.length / 4;
  const rails = shape.rails;
  const rail = (drawn.rail = new Float64Array(units * size.unitRows * rails * 6));
  let k = 0;
  for (let u = 0; u < units; u++) {
    for (let row = 0; row < size.unitRows; row++) {
      for (let r = 0; r < rails; r++) {
        const f = (u * rails + r) * 4;
        const y = unit[u * 4 + 1] + size.unitHead + row * size.step + levels.rail[r];
        const end = clamp(y, leaf[f + 1], leaf[f + 1] + leaf[f + 3]);
        const x1 = leaf[f] + (end === y ? 0 : Math.min(8, size.strip / 2));
        rail.set([unit[u * 4] + size.unitPad, y, x1, y, x1, end], 6 * k++);
      }
    }
  }
}

const railIndex = (scene, drawn, u, row, r) => (u * drawn.size.unitRows + row) * scene.rails + r;

function placeDrops(scene, drawn) {
  const { shape, size, box, host, nic, rail } = drawn;
  drawn.drop = new Float64Array(0);
  if (!shape.rails || !(shape.is_rack || size.detail >= 2)) return;
  const drop = (drawn.drop = new Float64Array(scene.nics * 6).fill(NaN));
  for (let h = 0; h < scene.box_of.length; h++) {
    const kind = scene.kinds[scene.kind_of[h]];
    const b = scene.box_of[h];
    const perRail = new Int32Array(shape.rails);
    for (let j = 0; j < kind.nics; j++) if (kind.nic_rail[j] >= 0) perRail[kind.nic_rail[j]]++;
    const isShared = perRail.some((n) => n > 1);
    for (let j = 0; j < kind.nics; j++) {
      const r = kind.nic_rail[j];
      const n = scene.first_nic[h] + j;
      if (r < 0) continue;
      const y = rail[railIndex(scene, drawn, scene.unit_of[b], drawn.boxRow[b], r) * 6 + 1];
      let points;
      if (size.detail >= 2) {
        const [left, top, width, height] = entry(nic, n);
        const x = left + width / 2;
        const bottom = top + height;
        const middle = top + height / 2;
        const right = left + width;
        if (shape.is_rack) {
          points = [x, bottom, x, y, x, y];
        } else if (isShared) {
          points = [right, middle, right + 3, middle, right + 3, y];
        } // a common line at the right
        else if (y > bottom) {
          points = [x, bottom, x, y, x, y];
        } else {
          points = [x, middle, x, middle, x, middle];
        }
      } else {
        const right = box[b * 4] + size.boxWidth;
        const middle = host[h * 4 + 1] + host[h * 4 + 3] / 2;
        const x = right + 3 + (j * Math.max(size.gap - 6, 0)) / Math.max(kind.nics - 1, 1);
        points = [right, middle, x, middle, x, y];
      }
      drop.set(points, n * 6);
    }
  }
}

function placeUplinks(scene, drawn, chosen) {
  const { shape, size, unit, pod, leaf } = drawn;
  const units = unit.length / 4;
  const hasSpine = shape.all_units > 1;
  const rails = shape.rails;
  const rows = ceilDiv(shape.units, chosen.units);
  drawn.uplink = new Float64Array(hasSpine ? units * 6 : 0);
  drawn.riser = new Float64Array(rails ? units * 4 : 0);
  for (let u = 0; u < units; u++) {
    const x0 = unit[u * 4] + size.unitWidth - size.unitPad * 0.5;
    const y0 = unit[u * 4 + 1] + size.unitHead + size.boxHeight * 0.5;
    if (hasSpine) {
      const lane = (rows - 1 - drawn.unitRow[u] + 0.5) / rows;
      const x = unit[u * 4] + size.unitWidth + Math.min(4, size.gutter * 0.4) + Math.max(size.gutter - 6, 0) * lane;
      drawn.uplink.set([x0, y0, x, y0, x, pod[scene.pod_of[u] * 4 + 1] + size.podHead - 6], u * 6);
    }
    if (!rails) continue;
    const first = leaf[u * rails * 4 + 1] + leaf[3] / 2;
    const last = leaf[(u * rails + rails - 1) * 4 + 1] + leaf[3] / 2;
    const ends = hasSpine ? [first, last, y0] : [first, last];
    drawn.riser.set([x0 - 1, Math.min(...ends), x0 - 1, Math.max(...ends)], u * 4);
  }
}

// Free spaces for one line of text each. They do not overlap.
function labelsOf(drawn) {
  const { shape, size, box, unit, pod, spine, core, funnel } = drawn;
  const found = [];
  const add = (kind, index, x, y, width, height, align = "left") =>
    found.push({ kind, index, x, y, width, height, align });
  if (core.length) add("core", 0, core[0] + 4, core[1] - 16, core[2] - 8, 15);
  for (let p = 0; p < funnel.length / 5; p++) {
    const x = funnel[p * 5] + funnel[p * 5 + 4] / 2 + 6;
    const right = pod[p * 4] + pod[p * 4 + 2] - 4;
    add("exit", p, x, funnel[p * 5 + 2] - 17, right - x, 15);
  }
  for (let p = 0; p < spine.length / 4; p++) {
    // The route through the exit of a pod crosses the right half.
    const room = funnel.length ? pod[p * 4 + 2] / 2 - 10 : pod[p * 4 + 2] - 12;
    add("pod", p, pod[p * 4] + 6, pod[p * 4 + 1] + 1, room, spine[p * 4 + 1] - pod[p * 4 + 1] - 2);
  }
  if (size.unitHead >= 17) {
    const up = shape.all_units > 1 && size.unitWidth >= 200 ? 56 : 0;
    for (let u = 0; u < unit.length / 4; u++) {
      const [x, y, width] = entry(unit, u);
      add("unit", u, x + 5, y + 1, width - 10 - up, 15);
      if (up) add("up", u, x + width - up - 3, y + 1, up, 15, "right");
    }
  }
  if (size.head >= 16) {
    for (let b = 0; b < box.length / 4; b++) {
      add("box", b, box[b * 4] + 4, box[b * 4 + 1] + 1, box[b * 4 + 2] - 8, size.head - 2);
    }
  }
  return found;
}

// ---------------------------------------------------------------------------------------------------------------- places by name

// The array of the layout and the index for "pod:2", "leaf:35", "rack:0", "node:1125", "nic:7", "device:9" or a host's name;
// null if it is unknown.
export function locate(scene, place) {
  const named = scene.names.indexOf(place);
  if (named >= 0) return ["host", named];
  const [word, number] = place.split(":");
  const index = Number(number);
  const ids = { pod: ["pod", scene.pod_id], leaf: ["unit", scene.unit_id], node: ["host", scene.host] }[word];
  if (ids) return ids[1].indexOf(index) >= 0 ? [ids[0], ids[1].indexOf(index)] : null;
  if (word === "rack") return index < scene.unit_of.length ? ["box", index] : null;
  return word === "nic" || word === "device" ? [word, index] : null;
}

// The zoom at which a place fills the figure, and the point of the layout at the figure's upper left.
export function lookAt(scene, chosen, place, width, height) {
  if (place === "all") {
    const full = layout(scene, chosen);
    return [1, (full.width - width) / 2, Math.min(0, (full.height - height) / 2)];
  }
  let [name, index] = locate(scene, place);
  if (name === "nic" || name === "device") {
    index = (name === "nic" ? scene.hostOfNic : scene.hostOf)[index];
    name = "host";
  }
  if (name === "host") [name, index] = ["box", scene.box_of[index]];
  const rules = scene.layout;
  const extent = (zoom) => {
    const [cw, ch] = cellOf(rules.shape, chosen, zoom);
    const size = measure(rules, cw, ch, chosen.pods, chosen.units, chosen.boxes);
    // By their names and not by a text, which the build cannot shorten in the same way.
    if (name === "box") return [size.boxWidth, size.boxHeight];
    return name === "unit" ? [size.unitWidth, size.unitHeight] : [size.podWidth, size.podHeight];
  };
  const share = name === "box" && !scene.is_rack ? 0.3 : 0.97;
  const most = Math.max(1, rules.largest[0] / chosen.cellWidth);
  const tallestFit = Math.max(height * 0.97, extent(1)[1]);
  const zoom = bisect(1, most, (z) => {
    const [wide, tall] = extent(z);
    return wide <= width * share && tall <= tallestFit;
  });
  const [x, y, w, h] = entry(layout(scene, chosen, zoom)[name], index);
  return [zoom, x + w / 2 - width / 2, h < height ? y + h / 2 - height / 2 : y - 10];
}

// ---------------------------------------------------------------------------------------------------------------- one group

// The lines of a group, and the indices of the NICs, leaf switches and pods that they touch. A stretch has a kind (nvlink,
// host, nic, rail, up, spine or core) and its points as [x, y] pairs.
export function route(scene, drawn, devices, climbs = false) {
  const found = [];
  const add = (kind, ...points) => found.push({ kind, points });
  const { device, shape } = drawn;
  const hosts = devices.map((d) => scene.hostOf[d]);
  const boxes = [...new Set(hosts.map((h) => scene.box_of[h]))].sort((a, b) => a - b);
  routeInside(scene, drawn, devices, hosts, boxes, add);
  const islands = boxes.every((b) => scene.is_joined[b]) ? boxes.length : new Set(hosts).size;
  if (islands < 2) return { stretches: found, nics: [], leaves: [], pods: [] };
  const starts = new Map();
  const nics = new Set();
  const leafSet = new Set();
  const firstBox = (u) => scene.unit_of.indexOf(u);
  devices.forEach((d, k) => {
    const h = hosts[k];
    const kind = scene.kinds[scene.kind_of[h]];
    const b = scene.box_of[h];
    const u = scene.unit_of[b];
    const x = device[d * 4];
    const width = device[d * 4 + 2];
    const y = device[d * 4 + 1] + device[d * 4 + 3] / 2;
    if (scene.network === "unknown") leafSet.add(u);
    for (const [own, j] of kind.near) {
      if (own !== d - scene.first_device[h]) continue;
      const n = scene.first_nic[h] + j;
      const r = kind.nic_rail[j];
      if (drawn.nic.length && !shape.is_rack) {
        const left = drawn.nic[n * 4];
        const middle = drawn.nic[n * 4 + 1] + drawn.nic[n * 4 + 3] / 2;
        const turn = (x + width + left) / 2;
        add("nic", [x + width, y], [turn, y], [turn, middle], [left, middle]);
      }
      const isNew = !nics.has(n);
      nics.add(n);
      if (r < 0 || !shape.rails) continue;
      leafSet.add(u * shape.rails + r);
      const line = railIndex(scene, drawn, u, Math.floor((b - firstBox(u)) / drawn.boxesAcross), r);
      const level = drawn.rail[line * 6 + 1];
      let start = x + width / 2;
      if (drawn.drop.length) {
        const p = entry(drawn.drop, n, 6);
        if (isNew) add("nic", [p[0], p[1]], [p[2], p[3]], [p[4], p[5]]);
        start = p[4];
      } else if (y !== level) {
        add("nic", [start, y], [start, level]);
      }
      starts.set(line, Math.min(start, starts.get(line) ?? start));
    }
  });
  for (const line of [...starts.keys()].sort((a, b) => a - b)) {
    const p = entry(drawn.rail, line, 6);
    add("rail", [starts.get(line), p[1]], [p[2], p[3]], [p[4], p[5]]);
  }
  const leaves = [...leafSet].sort((a, b) => a - b);
  const units = [...new Set(boxes.map((b) => scene.unit_of[b]))];
  const pods = [...new Set(units.map((u) => scene.pod_of[u]))];
  if (units.length > 1 || climbs) {
    for (const u of units) {
      const y = drawn.riser.length
        ? leaves
            .filter((f) => Math.floor(f / shape.rails) === u)
            .map((f) => drawn.leaf[f * 4 + 1] + drawn.leaf[f * 4 + 3] / 2)
        : [];
      if (units.length > 1) {
        const p = entry(drawn.uplink, u, 6);
        y.push(p[1]);
        add("up", [p[0], p[1]], [p[2], p[3]], [p[4], p[5]]);
      }
      if (y.length > 1) {
        const x = drawn.riser.length ? drawn.riser[u * 4] : 0;
        add("up", [x, Math.min(...y)], [x, Math.max(...y)]);
      }
    }
  }
  if (units.length > 1) routeAbove(scene, drawn, units, pods, add);
  return { stretches: found, nics: [...nics].sort((a, b) => a - b), leaves, pods };
}

function comb(drawn, kind, x, devices, add) {
  const y = devices.map((d) => drawn.device[d * 4 + 1] + drawn.device[d * 4 + 3] / 2);
  add(kind, [x, Math.min(...y)], [x, Math.max(...y)]);
  devices.forEach((d, k) => add(kind, [x, y[k]], [drawn.device[d * 4], y[k]]));
}

function routeInside(scene, drawn, devices, hosts, boxes, add) {
  const rack = drawn.shape.is_rack;
  if (drawn.detail < 2 && !(rack && drawn.detail === 1)) return;
  for (const b of boxes) {
    const members = devices.filter((_, k) => scene.box_of[hosts[k]] === b);
    if (members.length < 2) continue;
    if (rack) {
      const x = drawn.bar[b * 4] + drawn.bar[b * 4 + 2] / 2;
      const left = drawn.host[scene.hostOf[members[0]] * 4];
      const y = [...new Set(members.map((d) => drawn.device[d * 4 + 1] + drawn.device[d * 4 + 3] / 2))];
      add("nvlink", [x, Math.min(...y)], [x, Math.max(...y)]);
      for (const level of y) add("nvlink", [x, level], [left, level]);
      continue;
    }
    const h = scene.hostOf[members[0]];
    const setOf = scene.kinds[scene.kind_of[h]].set_of;
    const own = (d) => setOf[d - scene.first_device[h]];
    const sets = [...new Set(members.map(own))];
    for (const part of sets) {
      const mine = members.filter((d) => own(d) === part);
      let bar = -1;
      for (let k = 0; k < drawn.barHost.length && bar < 0; k++) {
        if (drawn.barHost[k] === h && drawn.barSet[k] === part) bar = k;
      }
      if (mine.length > 1 && bar >= 0) {
        comb(drawn, "nvlink", drawn.bar[bar * 4] + drawn.bar[bar * 4 + 2] / 2, mine, add);
      }
    }
    if (sets.length > 1 || sets[0] < 0) comb(drawn, "host", drawn.device[members[0] * 4] - 5, members, add);
  }
}

function routeAbove(scene, drawn, units, pods, add) {
  const rows = new Map();
  for (const p of pods) {
    const x = units.filter((u) => scene.pod_of[u] === p).map((u) => drawn.uplink[u * 6 + 4]);
    const level = drawn.spine[p * 4 + 1] + drawn.spine[p * 4 + 3] / 2;
    if (pods.length > 1) x.push(drawn.funnel[p * 5]);
    add("spine", [Math.min(...x), level], [Math.max(...x), level]);
    if (pods.length < 2) continue;
    const top = drawn.funnel[p * 5 + 1] - 5;
    const center = drawn.funnel[p * 5];
    add("core", [center, level], [center, top]);
    rows.set(top, [...(rows.get(top) ?? []), center]);
  }
  if (rows.size > 1) {
    const x = drawn.coreRiser[0] + drawn.coreRiser[2] / 2;
    const levels = [...rows.keys()];
    add("core", [x, Math.min(...levels)], [x, Math.max(...levels)]);
    for (const centers of rows.values()) centers.push(x);
  }
  for (const [level, centers] of rows) add("core", [Math.min(...centers), level], [Math.max(...centers), level]);
}
