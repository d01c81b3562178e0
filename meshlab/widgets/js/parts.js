// The parts of a machine that can be picked: what a hit on the picture may mean, by the names that Python gives them, and the
// outline of each. Nothing here touches the document.

import { entry, nicsOf } from "./data.js";
import { boxName, podName } from "./paint.js";
import { count, plural } from "./text.js";

/** @typedef {{ key: string, text: string, names: string[], hit: any, canRemove: boolean, canRate: boolean }} Part */

const BOTH = { canRemove: true, canRate: true };
const joined = (name) => name.replace(" ", "");

/**
 * What a hit may mean, the nearest first.
 * @returns {Part[]}
 */
export function partsAt(p, hit) {
  const { scene } = p;
  const found = [];
  if (!hit) return found;
  const add = (kind, index, text, names, { canRemove = false, canRate = false } = {}) =>
    names.length &&
    found.push({ key: `${kind} ${index}`, text, names, hit: { ...hit, kind, index }, canRemove, canRate });
  const network = networkParts(scene, add);
  const h = hit.host ?? -1;
  const kind = h >= 0 ? scene.kindOf(h) : null;
  const host = scene.names[h];

  const device = (d) => {
    const name = kind.names[d - scene.first_device[h]];
    add("device", d, `${name} of ${host}`, [`${host}/${joined(name)}`], { canRemove: true });
  };
  const nvlink = (d) => {
    const local = d - scene.first_device[h];
    const peers = kind.set_of.filter((set) => set === kind.set_of[local]).length;
    if (kind.set_of[local] < 0 || (peers < 2 && !scene.is_rack)) return;
    const name = kind.names[local];
    add("nvlink", d, `${kind.link_name} of ${name}`, [`${host}/${joined(name)}/NVLink`], BOTH);
  };
  const pairs = (d) => {
    const local = d - scene.first_device[h];
    for (let other = 0; other < kind.devices; other++) {
      const rank = p.view.rank[scene.first_device[h] + other];
      const isJoined = kind.set_of[local] >= 0 && kind.set_of[other] === kind.set_of[local];
      if (other === local || rank < 0 || !p.selected[rank] || !isJoined) continue;
      const ends = [local, other].sort((a, b) => a - b).map((k) => kind.names[k]);
      add(
        "pair",
        `${h} ${ends}`,
        `${kind.link_name} between ${ends.join(" and ")}`,
        [`${host}/${ends.map(joined).join("-")}`],
        BOTH,
      );
    }
  };
  const nic = (n) => {
    const name = kind.nic_names[n - scene.first_nic[h]];
    add("nic", n, `${name} of ${host}`, [`${host}/${name}`], BOTH);
  };
  const cable = (n) => {
    const j = n - scene.first_nic[h];
    const name = kind.nic_names[j];
    if (kind.nic_rail[j] < 0 || scene.network !== "known") return;
    add("cable", n, `cable of ${name}`, [`${host}/${name}/cable`]);
    network.leaf(hit.unit * scene.rails + kind.nic_rail[j]);
  };

  if (hit.kind === "device" || hit.kind === "nvlink") {
    if (hit.kind === "nvlink") nvlink(hit.index);
    device(hit.index);
    if (hit.kind === "device") nvlink(hit.index);
    pairs(hit.index);
    const near = nicsOf(scene, hit.index);
    if (near.length === 1) [nic, cable].forEach((part) => part(near[0]));
  } else if (hit.kind === "nic" || hit.kind === "cable") {
    for (const part of hit.kind === "nic" ? [nic, cable] : [cable, nic]) part(hit.index);
  } else if (hit.kind === "bar") {
    const devices = devicesOfBar(p, hit.index);
    const names = devices.map((d) => `${host}/${joined(kind.names[d - scene.first_device[h]])}/NVLink`);
    if (!scene.is_rack) add("bar", hit.index, `${kind.link_name} of ${plural(devices.length, "GPU")}`, names, BOTH);
  } else if (hit.kind === "leaf") {
    network.leaf(hit.index);
    network.uplink(hit.index);
    network.uplinks(hit.unit);
  } else if (hit.kind === "up") {
    network.uplinks(hit.index);
    for (let r = 0; r < Math.max(scene.rails, 1); r++) network.uplink(hit.index * Math.max(scene.rails, 1) + r);
  } else if (hit.kind === "exit") {
    network.exit(hit.index);
    network.pod(hit.index);
  } else if (hit.kind === "spine") {
    network.pod(hit.pod);
    if (scene.pod_id.length > 1) network.exit(hit.pod);
  }
  if (h >= 0) {
    add("host", h, host, [host], { canRemove: true });
  } else if (hit.kind === "box") {
    const [first, last] = [scene.of.hosts[hit.box], scene.of.hosts[hit.box + 1]];
    const names = scene.names.slice(first, last);
    add("box", hit.box, `${boxName(scene, hit.box)}, ${plural(names.length, "host")}`, names, { canRemove: true });
  }
  return found;
}

function networkParts(scene, add) {
  const { leaf_word: word, network } = scene;
  const isKnown = network === "known" && Boolean(word);
  const rails = Math.max(scene.rails, 1);
  const number = (leaf) => scene.unit_id[Math.floor(leaf / rails)] * rails + (leaf % rails);
  const hasUplinks = isKnown && scene.unit_id.length > 1;
  const rated = { canRate: true };
  return {
    leaf: (k) => isKnown && add("leaf", k, `${word} switch ${count(number(k))}`, [`${word}:${number(k)}`]),
    uplink: (k) =>
      hasUplinks &&
      add("uplink", k, `an uplink of ${word} switch ${number(k)}`, [`${word}:${number(k)}/uplink`], rated),
    uplinks(u) {
      const names = Array.from({ length: rails }, (_, r) => `${word}:${number(u * rails + r)}/uplink`);
      if (hasUplinks && rails > 1) add("up", u, `an uplink of each of ${rails} ${word} switches`, names, rated);
    },
    pod: (k) => isKnown && scene.pod_word && add("pod", k, podName(scene, k), [`${scene.pod_word}:${scene.pod_id[k]}`]),
    exit: (k) =>
      isKnown &&
      scene.pod_word &&
      add("exit", k, `an uplink of ${podName(scene, k)}`, [`${scene.pod_word}:${scene.pod_id[k]}/uplink`], rated),
  };
}

export function devicesOfBar({ scene, drawn }, bar) {
  const h = drawn.barHost[bar];
  const { set_of: sets } = scene.kindOf(h);
  return sets.flatMap((set, l) => (set === drawn.barSet[bar] ? [scene.first_device[h] + l] : []));
}

// -- the keyboard --------------------------------------------------------------------------------------------------------

// The parts on the way from a GPU out of its machine, for the keyboard: the GPU, its NVLink, its NIC and so on.
export function wayOut(p, device) {
  const { scene, drawn } = p;
  const h = scene.hostOf[device];
  const kind = scene.kindOf(h);
  const found = [whole(p, "device", device)];
  const local = device - scene.first_device[h];
  const hasLinks =
    kind.set_of[local] >= 0 &&
    (scene.is_rack || kind.set_of.some((set, l) => l !== local && set === kind.set_of[local]));
  const add = (name, index) => found.push(whole(p, name, index));
  const { unit, pod } = found[0];
  if (drawn.detail >= 2 && hasLinks) add("nvlink", device);
  const [nic] = nicsOf(scene, device);
  if (drawn.nic.length && nic !== undefined) add("nic", nic);
  const rail = nic === undefined ? -1 : kind.nic_rail[nic - scene.first_nic[h]];
  if (drawn.drop.length && rail >= 0) add("cable", nic);
  if (scene.network === "known") add("leaf", unit * scene.rails + Math.max(rail, 0));
  if (drawn.uplink.length) add("up", unit);
  if (drawn.funnel.length) add("exit", pod);
  add("host", h);
  return found;
}

// The part of the same kind in a direction, null at the edge.
export function nextPart(p, hit, key) {
  const { scene, drawn } = p;
  const number = {
    nic: scene.nics,
    cable: scene.nics,
    nvlink: scene.devices,
    leaf: drawn.leaf.length / 4,
    up: drawn.uplink.length / 6,
    exit: drawn.funnel.length / 5,
    host: scene.box_of.length,
  }[hit.kind];
  const best = nearest(number, hit.index, key, (k) => centerOf(p, hit.kind, k));
  return best < 0 ? null : whole(p, hit.kind, best);
}

// A GPU that a part belongs to, from which the keyboard goes on.
export function deviceBelow({ scene }, hit) {
  if (hit.kind === "device" || hit.kind === "nvlink") return hit.index;
  const h = hit.host ?? scene.of.hosts[scene.of.boxes[hit.unit ?? scene.of.units[hit.pod]]];
  const j = hit.kind === "nic" || hit.kind === "cable" ? hit.index - scene.first_nic[h] : -1;
  const rail = hit.kind === "leaf" ? hit.index % scene.rails : -1;
  const kind = scene.kindOf(h);
  const near = kind.near.find(([, own]) => (j >= 0 ? own === j : rail < 0 || kind.nic_rail[own] === rail));
  return scene.first_device[h] + (near?.[0] ?? 0);
}

/**
 * A hit with the places around it.
 * @returns {any}
 */
function whole({ scene }, kind, index) {
  const host = {
    nic: scene.hostOfNic[index],
    cable: scene.hostOfNic[index],
    device: scene.hostOf[index],
    nvlink: scene.hostOf[index],
    host: index,
  }[kind];
  if (host !== undefined) {
    const box = scene.box_of[host];
    return { kind, index, host, box, unit: scene.unit_of[box], pod: scene.pod_of[scene.unit_of[box]] };
  }
  if (kind === "exit") return { kind, index, pod: index };
  const unit = kind === "leaf" ? Math.floor(index / scene.rails) : index;
  return { kind, index, unit, pod: scene.pod_of[unit] };
}

/**
 * The nearest of some things in a direction, -1 at the edge. A step across costs less than one aside.
 * @param {number} number
 * @param {number} from
 * @param {string} key
 * @param {(k: number) => number[]} center
 */
export function nearest(number, from, key, center) {
  const [x, y] = center(from);
  const isAcross = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  let best = -1;
  let least = Infinity;
  for (let k = 0; k < number; k++) {
    const [x1, y1] = center(k);
    const along = sign * (isAcross ? x1 - x : y1 - y);
    const aside = Math.abs(isAcross ? y1 - y : x1 - x);
    if (!(along > 0.5) || aside > along) continue;
    const cost = along + 8 * aside;
    if (cost < least) [best, least] = [k, cost];
  }
  return best;
}

export const middle = ([x, y, w, h]) => [x + w / 2, y + h / 2];

function centerOf(p, kind, index) {
  const { drawn, scene } = p;
  if (kind === "nvlink") return middle(entry(drawn.device, index));
  if (kind === "cable") return Array.from(drawn.drop.subarray(index * 6, index * 6 + 2));
  if (kind === "up") return Array.from(drawn.uplink.subarray(index * 6 + 2, index * 6 + 4));
  if (kind === "exit") return [drawn.funnel[index * 5], drawn.funnel[index * 5 + 1]];
  if (kind === "host" && scene.is_rack) return middle(entry(drawn.host, index));
  return middle(entry(drawn[kind], index));
}

// -- outlines ------------------------------------------------------------------------------------------------------------

/**
 * The boxes and the lines of a part. Far away a link has the outline of its host.
 * @returns {{ boxes: Box[], lines: number[][] }}
 */
export function outlineOf(p, { kind, index }) {
  const { drawn, scene } = p;
  const box = (array) => /** @type {Box} */ (Array.from(entry(array, index)));
  const boxes = (...list) => ({ boxes: list, lines: [] });
  const lines = (...list) => ({ boxes: [], lines: list });
  if (kind === "device") return boxes(box(drawn.device));
  if (kind === "host") return boxes(hostBox(p, index));
  if (kind === "box" || kind === "pod") return boxes(box(drawn[kind]));
  if (kind === "leaf") return boxes(box(drawn.leaf));
  if (kind === "bar") return boxes(box(drawn.bar));
  if (kind === "nvlink") {
    const line = stubOf(p, index);
    return line ? lines(line) : boxes(hostBox(p, scene.hostOf[index]));
  }
  if (kind === "nic") return boxes(drawn.nic.length ? box(drawn.nic) : hostBox(p, scene.hostOfNic[index]));
  if (kind === "cable") {
    const line = cableOf(p, index);
    return line ? lines(line) : boxes(hostBox(p, scene.hostOfNic[index]));
  }
  if (kind === "up") return lines(Array.from(entry(drawn.uplink, index, 6)));
  if (kind === "uplink") return lines(uplinkOf(p, index));
  if (kind === "exit") {
    const [x, top, bottom, , base] = entry(drawn.funnel, index, 5);
    return boxes([x - base / 2, top, base, bottom - top]);
  }
  return boxes();
}

function hostBox({ drawn, scene }, host) {
  const [x, y, w, h] = entry(drawn.host, host);
  return /** @type {Box} */ (scene.is_rack ? [x, y, w, h] : [x - 2, y, w + 4, h + 3]);
}

// The line between the NVLink bar of a GPU and the GPU, null if it is not drawn.
export function stubOf({ drawn, scene }, device) {
  if (drawn.detail < 2 || scene.is_rack) return null;
  const [x, y, , h] = entry(drawn.device, device);
  const left = drawn.host[scene.hostOf[device] * 4] + drawn.size.nvlink - 2;
  return [left, y + h / 2, x, y + h / 2];
}

// The line from a NIC to its leaf switch, null if it is not drawn.
export function cableOf({ drawn, scene }, nic) {
  const h = scene.hostOfNic[nic];
  const r = scene.kindOf(h).nic_rail[nic - scene.first_nic[h]];
  if (!drawn.drop.length || r < 0) return null;
  const b = scene.box_of[h];
  const line = (scene.unit_of[b] * drawn.size.unitRows + drawn.boxRow[b]) * scene.rails + r;
  const [x, y, x1, , x2, end] = entry(drawn.rail, line, 6);
  const drop = Array.from(entry(drawn.drop, nic, 6));
  return [...drop, Math.max(drop[4], x), y, x1, y, x2, end];
}

// The line from a leaf switch to the spine.
export function uplinkOf({ drawn, scene }, leaf) {
  const unit = Math.floor(leaf / Math.max(scene.rails, 1));
  const [x, y, w, h] = entry(drawn.leaf, leaf);
  const riser = drawn.riser.length ? drawn.riser[unit * 4] : x + w;
  const [x0, y0, x1, , x2, top] = entry(drawn.uplink, unit, 6);
  return [Math.min(x + w, riser), y + h / 2, riser, y + h / 2, riser, y0, x0, y0, x1, y0, x2, top];
}
