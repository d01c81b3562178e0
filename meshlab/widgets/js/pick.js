// What is under the pointer, and its description.

import { coordinates, deviceOfRank, entry, groupName, hostsOfUnit, nameOfDevice, nicsOf, unitLoad } from "./data.js";
import { cableOf, middle, nearest, stubOf, uplinkOf } from "./parts.js";
import { boxName, podName, taperText, unitName } from "./paint.js";
import { count, joined, plural, rateText, runsText, sizeText, threeDigits, timeText } from "./text.js";

function contains(array, k, x, y, margin = 0) {
  const left = array[k * 4];
  const top = array[k * 4 + 1];
  return (
    x >= left - margin &&
    y >= top - margin &&
    x <= left + array[k * 4 + 2] + margin &&
    y <= top + array[k * 4 + 3] + margin
  );
}

function find(array, from, to, x, y, margin = 0) {
  for (let k = from; k < to; k++) if (contains(array, k, x, y, margin)) return k;
  return -1;
}

// The innermost thing at a point of the layout: its kind and index, and the pod, unit and box around it. Null outside.
export function hitAt(scene, drawn, x, y) {
  /** @type {any} */
  const hit = boxAt(scene, drawn, x, y);
  if (!["unit", "box", "host"].includes(hit?.kind) || drawn.detail < 2) return hit;
  return linkAt(scene, drawn, hit, x, y) ?? hit;
}

function boxAt(scene, drawn, x, y) {
  for (let pod = 0; pod < drawn.funnel.length / 5; pod++) {
    const [center, top, bottom, , base] = entry(drawn.funnel, pod, 5);
    if (Math.abs(x - center) < base / 2 + 4 && y > top - 4 && y < bottom) return { kind: "exit", index: pod, pod };
  }
  const pod = find(drawn.pod, 0, scene.pod_id.length, x, y);
  if (pod < 0) return null;
  const { units, boxes, hosts } = scene.of;
  const unit = find(drawn.unit, units[pod], units[pod + 1], x, y);
  if (unit < 0) {
    if (drawn.spine.length && contains(drawn.spine, pod, x, y, 3)) return { kind: "spine", index: pod, pod };
    const at = uplinkAt(drawn, units[pod], units[pod + 1], x, y);
    return at < 0 ? { kind: "pod", index: pod, pod } : { kind: "up", index: at, pod, unit: at };
  }
  const inUnit = { pod, unit };
  const rails = scene.rails;
  const leaf = scene.network === "known" ? find(drawn.leaf, unit * rails, (unit + 1) * rails, x, y, 1) : -1;
  if (leaf >= 0) return { kind: "leaf", index: leaf, ...inUnit };
  const box = find(drawn.box, boxes[unit], boxes[unit + 1], x, y);
  if (box < 0) return { kind: "unit", index: unit, ...inUnit };
  const inBox = { ...inUnit, box };
  for (let h = hosts[box]; h < hosts[box + 1]; h++) {
    if (!contains(drawn.host, h, x, y)) continue;
    const kind = scene.kindOf(h);
    if (drawn.nic.length) {
      const nic = find(drawn.nic, scene.first_nic[h], scene.first_nic[h] + kind.nics, x, y, 2);
      if (nic >= 0) return { kind: "nic", index: nic, ...inBox, host: h };
    }
    const device = find(drawn.device, scene.first_device[h], scene.first_device[h] + kind.devices, x, y);
    if (device >= 0) return { kind: "device", index: device, ...inBox, host: h };
    return { kind: "host", index: h, ...inBox, host: h };
  }
  return { kind: "box", index: box, ...inBox };
}

// The distance of a point from a line of several points.
function away(line, x, y) {
  let least = Infinity;
  for (let k = 0; k + 3 < line.length; k += 2) {
    const [x0, y0, x1, y1] = line.slice(k, k + 4);
    const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
    const t = length ? Math.min(Math.max(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length, 0), 1) : 0;
    least = Math.min(least, Math.hypot(x - x0 - t * (x1 - x0), y - y0 - t * (y1 - y0)));
  }
  return least;
}

// The link at a point between the boxes: a cable, the NVLink of a GPU, or the bar that joins GPUs.
function linkAt(scene, drawn, { kind, pod, unit, box, host }, x, y) {
  const picture = { scene, drawn };
  if (kind === "host" && !scene.is_rack) {
    const inHost = { pod, unit, box, host };
    const bar = barsOf(drawn)
      .get(host)
      ?.find((k) => contains(drawn.bar, k, x, y, 1));
    if (bar !== undefined) return { kind: "bar", index: bar, ...inHost };
    const { devices, set_of: sets } = scene.kindOf(host);
    for (let l = 0; l < devices; l++) {
      const device = scene.first_device[host] + l;
      if (sets[l] >= 0 && away(stubOf(picture, device), x, y) < 5) return { kind: "nvlink", index: device, ...inHost };
    }
  }
  if (!drawn.drop.length) return null;
  // A rail joins the cables of all hosts on its left, so of these the nearest NIC counts.
  let best = -1;
  let least = Infinity;
  for (let b = scene.of.boxes[unit]; b < scene.of.boxes[unit + 1]; b++) {
    const top = drawn.box[b * 4 + 1];
    if (y < top || y > top + drawn.size.step) continue;
    for (let h = scene.of.hosts[b]; h < scene.of.hosts[b + 1]; h++) {
      const { nics } = scene.kindOf(h);
      for (let n = scene.first_nic[h]; n < scene.first_nic[h] + nics; n++) {
        const line = cableOf(picture, n);
        if (!line) continue;
        const start = line[4];
        const isNear = away(line, x, y) < 4.5 || (x < start && Math.abs(y - line[7]) < 4.5);
        const cost = away(line.slice(0, 6), x, y) < 4.5 ? -1 : x >= start ? x - start : 1e6 + start - x;
        if (isNear && cost < least) [best, least] = [n, cost];
      }
    }
  }
  if (best < 0) return null;
  const h = scene.hostOfNic[best];
  return { kind: "cable", index: best, pod, unit, box: scene.box_of[h], host: h };
}

/** @type {WeakMap<object, Map<number, number[]>>} */
const bars = new WeakMap();

// The NVLink bars of each host.
function barsOf(drawn) {
  let found = bars.get(drawn);
  if (found) return found;
  bars.set(drawn, (found = new Map()));
  for (let k = 0; k < drawn.barHost.length; k++) {
    const own = found.get(drawn.barHost[k]);
    if (own) own.push(k);
    else found.set(drawn.barHost[k], [k]);
  }
  return found;
}

function uplinkAt(drawn, from, to, x, y) {
  for (let u = from; u < to && drawn.uplink.length; u++) {
    const [, y0, x1, , , top] = entry(drawn.uplink, u, 6);
    if (Math.abs(x - x1) < 4 && y > top && y < y0 + 4) return u;
  }
  return -1;
}

// The box of a hit in the layout, which stays under the pointer during a zoom.
export function boxOfHit(drawn, hit) {
  if (!hit) return [0, 0, drawn.width, drawn.height];
  const name = ["box", "unit", "pod"].find((one) => hit[one] !== undefined);
  return entry(drawn[name], hit[name]);
}

// The place of a hit for lookAt. `depth` is the innermost level: pod, leaf or node.
export function placeOf(scene, hit, depth) {
  if (depth === "node" && hit.box !== undefined) {
    return scene.is_rack ? `rack:${hit.box}` : `node:${scene.host[scene.of.hosts[hit.box]]}`;
  }
  if (depth !== "pod" && hit.unit !== undefined && scene.network !== "none") return `leaf:${scene.unit_id[hit.unit]}`;
  return `pod:${scene.pod_id[hit.pod]}`;
}

// The place that a text names, and its rank if it is one: "rank 812", "812", "node17", "leaf 3" or a part of a host's name.
export function placeOfText({ scene, view }, text) {
  const words = text.trim().toLowerCase();
  const [, word, digits] = /^([a-z]*)[\s:]*([\d,]+)$/.exec(words) ?? [];
  const number = Number(digits?.replaceAll(",", ""));
  const named = scene.names.findIndex((name) => name.toLowerCase() === words);
  if (named >= 0) return [`node:${scene.host[named]}`];
  if (word === "rank" || word === "") {
    const device = view.is_mesh ? deviceOfRank(view, number) : number < scene.devices ? number : -1;
    return device >= 0 ? [`device:${device}`, number] : [];
  }
  const ids = { [scene.pod_word]: ["pod", scene.pod_id], [scene.unit_word]: ["leaf", scene.unit_id] }[word];
  if (word && ids?.[1].includes(number)) return [`${ids[0]}:${number}`];
  if (word === "rack" && scene.is_rack && number < scene.unit_of.length) return [`rack:${number}`];
  const similar = scene.names.findIndex((name) => name.toLowerCase().includes(words));
  return similar >= 0 ? [`node:${scene.host[similar]}`] : [];
}

// What a click on a device hits.
export function hitOfDevice({ scene, drawn }, device) {
  const [x, y, w, h] = entry(drawn.device, device);
  return hitAt(scene, drawn, x + w / 2, y + h / 2);
}

const MARK_PX = 14; // of a cross on a line
const around = (x, y) => [x - MARK_PX / 2, y - MARK_PX / 2, MARK_PX, MARK_PX];

// The box of a failed part of the network, null if it is not drawn.
function networkBox(p, { kind, level, index }) {
  const { drawn } = p;
  if (index < 0 || !level) return null;
  if (level === "pod") {
    if (kind === "uplink" && drawn.funnel.length) {
      const [x, top, bottom] = entry(drawn.funnel, index, 5);
      return around(x, (top + bottom) / 2);
    }
    const [x, y, w, h] = entry(drawn.spine.length ? drawn.spine : drawn.pod, index);
    return [x, y, w, h];
  }
  if (kind === "switch") return Array.from(entry(drawn[level], index));
  if (!drawn.uplink.length) return null;
  if (level === "unit") return around(drawn.uplink[index * 6 + 2], drawn.uplink[index * 6 + 1]);
  const [x, y, x1] = uplinkOf(p, index);
  return around(Math.max(x, x1) - 2, y);
}

// The box of a failed part, where it was drawn before. Null if it is not drawn.
/** @returns {any} */
export function failedBox(p, mark) {
  if (mark.host < 0) return networkBox(p, mark);
  if (mark.kind !== "cable") return boxInHost(p, mark);
  const [x, y, w, h] = boxInHost(p, { ...mark, kind: "nic" });
  return p.drawn.nic.length ? around(x + w / 2, y + h + 4) : [x, y, w, h];
}

function boxInHost({ scene, drawn }, { kind, host, row, index }) {
  const { size, cellWidth: cw, cellHeight: ch, shape } = drawn;
  const [x, y, w, h] = entry(drawn.host, host);
  if (kind === "node") return shape.is_rack ? [x, y, w, h] : [x, y + size.head, w, h - size.head];
  const first = drawn.device.length ? [drawn.device[0] - drawn.host[scene.hostOf[0] * 4], drawn.device[2]] : [0, cw];
  const own = scene.kindOf(scene.hostOf[0] ?? 0);
  const { rows } = own;
  const slot = own.slot_of[0] ?? 0;
  if (kind === "nic" && drawn.nic.length) {
    const [left, , wide, tall] = drawn.nic;
    const n = scene.first_nic.findIndex((_, g) => scene.kindOf(g).nics);
    if (shape.is_rack) {
      return [x + shape.across * cw + 4 + (index * (size.nicWidth - 4)) / shape.nics, y + (ch - tall) / 2, wide, tall];
    }
    return [x + left - drawn.host[n * 4], y + size.head + row * ch - tall / 2, wide, tall];
  }
  if (shape.is_rack) return [x + (kind === "nic" ? index : row) * cw, y, cw, ch];
  const at = kind === "nic" ? Math.max(row - 0.5, 0) : row;
  const column = size.detail >= 2 ? 0 : Math.floor(at / rows) - Math.floor(slot / rows);
  const box = [x + first[0] + column * cw, y + size.head + (size.detail >= 2 ? at : at % rows) * ch, first[1], ch];
  return kind === "link" && size.detail >= 2 ? [box[0] - 16, box[1] + ch / 2 - 7, 14, 14] : box;
}

// The mark of the failed part at a point of the layout, null without one.
export function failedAt(p, x, y) {
  const marks = p.view.failed ?? [];
  const near = (mark) => {
    const box = failedBox(p, mark);
    if (!box) return false;
    const [left, top, w, h] = box;
    const margin = p.drawn.detail >= 2 ? 3 : 5;
    return x >= left - margin && y >= top - margin && x <= left + w + margin && y <= top + h + margin;
  };
  return marks.filter(near).sort((a, b) => Number(a.kind === "node") - Number(b.kind === "node"))[0] ?? null;
}

// -- descriptions --------------------------------------------------------------------------------------------------------

function loadText(p, name, k) {
  const link = p.loads?.by[name];
  if (!link) return "";
  if (!link.bytes[k]) return `no ${p.view.axis} traffic`;
  const rate = link.gbs[k];
  const parts = [plural(link.groups[k], `${p.view.axis} group`), sizeText(link.bytes[k])];
  if (Number.isFinite(rate)) parts.push(timeText(link.bytes[k] / rate / 1e9), `at ${rateText(rate)}`);
  const limits = link.share[k] >= 0.999 && p.loads.limit === link.name ? `\n${p.loads.mark} limits ${p.view.axis}` : "";
  return parts.join(" · ") + limits;
}

// The heading and the text of a hit, null if there is nothing to show.
export function describeHit(p, hit) {
  const { scene, view } = p;
  const lines = (title, ...rest) => [title, joined("\n", rest)];
  if (hit.kind === "device") return describeDevice(p, hit);
  if (hit.kind === "nic") {
    const kind = scene.kindOf(hit.host);
    const j = hit.index - scene.first_nic[hit.host];
    const rail = kind.nic_rail[j];
    return lines(
      `${kind.nic_names[j]} of ${scene.names[hit.host]}`,
      rail < 0 ? "" : `rail ${rail}`,
      loadText(p, "nic", hit.index),
    );
  }
  if (hit.kind === "cable") {
    const kind = scene.kindOf(hit.host);
    const j = hit.index - scene.first_nic[hit.host];
    const title = `cable of ${kind.nic_names[j]} of ${scene.names[hit.host]}`;
    return lines(title, `to the leaf switch of rail ${kind.nic_rail[j]}`, loadText(p, "nic", hit.index));
  }
  if (hit.kind === "nvlink" || hit.kind === "bar") {
    const { has_switch: hasSwitch, nvlink_gbs: rate, rate_of: per, link_name: link } = scene.kindOf(hit.host);
    const word = hit.kind === "bar" && hasSwitch ? "NVSwitches" : link;
    const owner = hit.kind === "bar" ? scene.names[hit.host] : nameOfDevice(scene, hit.index);
    const load = hit.kind === "bar" ? "" : loadText(p, "device", hit.index);
    return lines(
      `${word} of ${owner}`,
      hit.kind === "bar" ? "" : scene.names[hit.host],
      rate === null ? "" : `${rateText(rate)} ${per}`,
      load,
    );
  }
  if (hit.kind === "leaf") {
    const rail = hit.index % scene.rails;
    const where = unitName(scene, hit.unit);
    const name = scene.rails > 1 ? `leaf switch of rail ${rail}` : "leaf switch";
    const hosts = plural(hostsOfUnit(scene, hit.unit), "host");
    return scene.unit_id.length > 1 ? lines(name, where, hosts, loadText(p, "leaf", hit.index)) : lines(name, hosts);
  }
  if (hit.kind === "up") {
    const up = unitLoad(scene, p.loads, hit.index);
    const each = up.link?.drawn_as === "leaf" && scene.rails > 1 ? ", per rail" : "";
    const more = !up.link
      ? ""
      : up.bytes
        ? `${plural(up.groups, `${view.axis} group`)} · ${sizeText(up.bytes)}${each}`
        : `no ${view.axis} traffic`;
    return lines(`uplinks of ${unitName(scene, hit.index)}`, more);
  }
  if (hit.kind === "exit") {
    return lines(`exit of ${podName(scene, hit.index)}`, loadText(p, "pod", hit.index), taperText(scene).slice(3));
  }
  if (hit.kind === "spine" || hit.kind === "pod") {
    return scene.unit_id.length > 1 ? lines(podName(scene, hit.pod), `${count(scene.perPod[hit.pod])} GPUs`) : null;
  }
  if (hit.kind === "host" || hit.kind === "box") {
    const { nvlink_gbs: rate, rate_of: per, link_name: link } = scene.kindOf(scene.of.hosts[hit.box]);
    const domain = scene.is_joined[hit.box] ? `${link} domain of ${scene.perBox[hit.box]}` : "";
    return lines(boxName(scene, hit.box), domain, domain && rate !== null ? `${rateText(rate)} ${per}` : "");
  }
  return null;
}

function describeDevice(p, hit) {
  const { scene, view } = p;
  const d = hit.index;
  const rank = view.rank[d];
  const g = view.group[d];
  const name = nameOfDevice(scene, d);
  const where = [scene.names[hit.host], name];
  if (scene.unit_id.length > 1) where.push(unitName(scene, hit.unit));
  if (scene.pod_id.length > 1) where.push(podName(scene, hit.pod));
  const lines = [];
  if (rank >= 0) lines.push(coordinates(view, rank));
  if (view.is_placed || !view.is_mesh) lines.push(where.join(" · "));
  if (view.is_mesh && rank >= 0) {
    const peers = view
      .members(g)
      .map((one) => view.rank[one])
      .filter((one) => one !== rank);
    lines.push(
      groupName(view, g) + (peers.length ? ` with ${plural(peers.length, "peer")}: ${runsText(peers, 6)}` : ""),
    );
  } else if (g >= 0) {
    lines.push(groupName(view, g));
  }
  const value = p.values[p.color]?.[rank];
  if (value !== undefined) lines.push(`${p.color}: ${Number.isFinite(value) ? threeDigits(value) : "–"}`);
  if (p.loads && rank >= 0) {
    const kind = scene.kindOf(hit.host);
    const nic = nicsOf(scene, d).find((n) => p.loads.by.nic?.bytes[n] > 0);
    if (nic !== undefined) lines.push(`${kind.nic_names[nic - scene.first_nic[hit.host]]}: ${loadText(p, "nic", nic)}`);
    else if (p.loads.by.device?.bytes[d] > 0) lines.push(`${kind.link_name}: ${loadText(p, "device", d)}`);
  }
  return [rank >= 0 ? `rank ${count(rank)}` : `${name}, no rank`, joined("\n", lines)];
}

// The nearest device in a direction, -1 at the edge.
export const neighbour = ({ device }, from, key) =>
  nearest(device.length / 4, from, key, (d) => middle(entry(device, d)));
