// Unpacks what Python sends: the scene of the machine, the mesh on it, and the load of the links. Numbers as text.

const HOST_FIELDS = [
  "kind_of",
  "host",
  "first_device",
  "first_nic",
  "box_of",
  "unit_of",
  "is_joined",
  "pod_of",
  "unit_id",
  "pod_id",
];

// An array from bytes, which may start at any offset, or from one number for an array of equal values.
export function unpack(value, Type, length) {
  if (value instanceof DataView) {
    return new Type(value.buffer.slice(value.byteOffset, value.byteOffset + value.byteLength));
  }
  return new Type(length).fill(value ?? NaN);
}

// The first child of each parent, and the number of children at the end. `parent` is sorted.
function starts(parent, n) {
  const first = new Int32Array(n + 1);
  for (const index of parent) first[index + 1]++;
  for (let k = 0; k < n; k++) first[k + 1] += first[k];
  return first;
}

export function readScene(raw) {
  const scene = { ...raw };
  for (const name of HOST_FIELDS) scene[name] = unpack(raw[name], Int32Array);
  const hosts = scene.box_of.length;
  const boxes = scene.unit_of.length;
  const units = scene.pod_of.length;
  const of = {
    hosts: starts(scene.box_of, boxes),
    boxes: starts(scene.unit_of, units),
    units: starts(scene.pod_of, scene.pod_id.length),
  };
  const kindOf = (h) => scene.kinds[scene.kind_of[h]];
  let devices = 0;
  let nics = 0;
  for (let h = 0; h < hosts; h++) {
    devices += kindOf(h).devices;
    nics += kindOf(h).nics;
  }
  const hostOf = new Int32Array(devices);
  const hostOfNic = new Int32Array(nics);
  for (let h = 0; h < hosts; h++) {
    hostOf.fill(h, scene.first_device[h], scene.first_device[h] + kindOf(h).devices);
    hostOfNic.fill(h, scene.first_nic[h], scene.first_nic[h] + kindOf(h).nics);
  }
  // The devices below each box, unit and pod.
  const below = (start, inner) =>
    Array.from({ length: start.length - 1 }, (_, k) => {
      let sum = 0;
      for (let j = start[k]; j < start[k + 1]; j++) sum += inner(j);
      return sum;
    });
  const perBox = below(of.hosts, (h) => kindOf(h).devices);
  const perUnit = below(of.boxes, (b) => perBox[b]);
  const perPod = below(of.units, (u) => perUnit[u]);
  return Object.assign(scene, { of, kindOf, devices, nics, hostOf, hostOfNic, perBox, perUnit, perPod });
}

/**
 * An entry of a layout: left, top, width and height of a box, or the points of a line.
 * @param {Float64Array} array
 * @param {number} k
 * @returns {any}
 */
export function entry(array, k, size = 4) {
  return array.subarray(k * size, (k + 1) * size);
}

export function nameOfDevice(scene, device) {
  const h = scene.hostOf[device];
  const local = device - scene.first_device[h];
  return scene.kindOf(h).names?.[local] ?? `rank ${device}`;
}

export const hostsOfUnit = (scene, u) => scene.of.hosts[scene.of.boxes[u + 1]] - scene.of.hosts[scene.of.boxes[u]];

// The mesh on the machine: the rank and the group of every device.
export function readView(raw, scene) {
  const n = scene.devices;
  const rank = raw.rank_of === null ? new Int32Array(n) : unpack(raw.rank_of, Int32Array, n);
  if (raw.rank_of === null) for (let d = 0; d < n; d++) rank[d] = d < raw.world ? d : -1;
  return withGroups({ ...raw, rank }, unpack(raw.group_of, Int32Array, n));
}

function withGroups(view, group) {
  const n = view.n_groups;
  let start = null;
  let list = null; // devices by group, in the order of ranks
  const index = () => {
    start = new Int32Array(n + 1);
    for (const g of group) if (g >= 0) start[g + 1]++;
    for (let g = 0; g < n; g++) start[g + 1] += start[g];
    list = new Int32Array(start[n]);
    const next = start.slice();
    const { rank } = view;
    const order = view.rank_of === null ? null : Int32Array.from(rank.keys()).sort((a, b) => rank[a] - rank[b]);
    for (let k = 0; k < group.length; k++) {
      const d = order ? order[k] : k;
      if (group[d] >= 0) list[next[group[d]]++] = d;
    }
  };
  const members = (g) => {
    if (!list) index();
    return g < 0 ? [] : Array.from(list.subarray(start[g], start[g + 1]));
  };
  return { ...view, group, members };
}

// The groups of a different axis, from the strides of the mesh, so that cells change colour before Python answers. Null
// if the groups do not follow from the strides.
export function regroup(view, axis) {
  const at = view.axes.findIndex(([name]) => name === axis);
  if (at < 0 || view.rank_of !== null) return null;
  const size = view.axes[at][1];
  const stride = view.axes.slice(at + 1).reduce((all, [, n]) => all * n, 1);
  const group = view.rank.map((r) => (r < 0 ? -1 : Math.floor(r / (stride * size)) * stride + (r % stride)));
  return withGroups({ ...view, axis, single: false, n_groups: view.world / size, group_size: size }, group);
}

export function groupName(view, g) {
  if (g < 0) return view.is_mesh ? `not in ${view.axis}` : "";
  return view.single ? view.axis : view.is_mesh ? `${view.axis}_${g}` : `${view.axis} ${g}`;
}

export function coordinates(view, rank) {
  const parts = [];
  for (const [name, size] of [...view.axes].reverse()) {
    parts.unshift(`${name}=${rank % size}`);
    rank = Math.floor(rank / size);
  }
  return parts.join(" · ");
}

export function deviceOfRank(view, rank) {
  return view.rank_of === null ? (rank < view.world ? rank : -1) : view.rank.indexOf(rank);
}

// The load of every kind of link: groups, bytes and the share in the time of the slowest link of the axis.
export function readLoads(raw) {
  if (!raw?.links) return null;
  const links = raw.links.map((link) => ({
    ...link,
    groups: unpack(link.groups, Int32Array, link.n),
    bytes: unpack(link.bytes, Float32Array, link.n),
    share: unpack(link.share, Float32Array, link.n),
    gbs: unpack(link.gbs, Float32Array, link.n),
  }));
  const drawn = (as) => links.find((link) => link.drawn_as === as && link.name !== "host") ?? null;
  const by = {
    device: drawn("device"),
    nic: drawn("nic"),
    leaf: drawn("leaf"),
    unit: drawn("unit"),
    pod: drawn("pod"),
  };
  const limit = raw.is_conflict ? links.find((link) => link.name === raw.limit) : null;
  return { ...raw, links, by, climbs: unpack(raw.climbs, Uint8Array, raw.n_groups), conflict: limit?.drawn_as ?? "" };
}

// The load of the uplinks of a unit: of its leaf switches if these are its only uplinks.
export function unitLoad(scene, loads, u) {
  const link = loads?.by.unit ?? loads?.by.leaf;
  if (!link) return { share: 0, groups: 0, bytes: 0, gbs: NaN, link: null };
  const n = link.drawn_as === "leaf" ? scene.rails : 1;
  const sum = { share: 0, groups: 0, bytes: 0, gbs: link.gbs[u * n], link };
  for (let k = u * n; k < (u + 1) * n; k++) {
    sum.share = Math.max(sum.share, link.share[k]);
    sum.groups = Math.max(sum.groups, link.groups[k]);
    sum.bytes = Math.max(sum.bytes, link.bytes[k]);
  }
  return sum;
}

// The largest share of the NICs of every rail.
export function railShares(scene, loads) {
  const found = new Float32Array(scene.pod_of.length * Math.max(scene.rails, 1));
  const nic = loads?.by.nic;
  if (!nic || !scene.rails) return found;
  for (let n = 0; n < scene.nics; n++) {
    const h = scene.hostOfNic[n];
    const rail = scene.kindOf(h).nic_rail[n - scene.first_nic[h]];
    if (rail < 0) continue;
    const at = scene.unit_of[scene.box_of[h]] * scene.rails + rail;
    if (nic.share[n] > found[at]) found[at] = nic.share[n];
  }
  return found;
}

// The NICs next to a device.
export function nicsOf(scene, device) {
  const h = scene.hostOf[device];
  const local = device - scene.first_device[h];
  return scene
    .kindOf(h)
    .near.filter(([own]) => own === local)
    .map(([, j]) => scene.first_nic[h] + j);
}

// Groups that use a NIC, or without NICs a device, that a group uses too.
export function sharingGroups(scene, view, loads, g) {
  const found = new Set([g]);
  if (g < 0 || !loads?.by.nic?.bytes.some((b) => b > 0)) return found;
  const mine = new Set(view.members(g).flatMap((d) => nicsOf(scene, d)));
  for (const h of new Set([...mine].map((n) => scene.hostOfNic[n]))) {
    const first = scene.first_device[h];
    for (let d = first; d < first + scene.kindOf(h).devices; d++) {
      if (view.group[d] >= 0 && nicsOf(scene, d).some((n) => mine.has(n))) found.add(view.group[d]);
    }
  }
  return found;
}
