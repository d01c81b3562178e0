// Unpacks what Python sends: the scene of the machine, the mesh on it, and the load of the links. Numbers as text.

const THIN = "\u2009";
const HOST_FIELDS = ["kind_of", "host", "first_device", "first_nic", "box_of", "unit_of", "is_joined", "pod_of", "unit_id", "pod_id"];

// An array from bytes, which may start at any offset, or from one number for an array of equal values.
function unpack(value, Type, length) {
  if (value instanceof DataView) return new Type(value.buffer.slice(value.byteOffset, value.byteOffset + value.byteLength));
  return new Type(length).fill(value ?? NaN);
}

const count = (n) => n.toLocaleString("en");
const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

// The same as format_size, format_time_us and format_bandwidth in units.py.
function sizeText(bytes) {
  if (bytes < 1024) return `${Math.floor(bytes)}${THIN}B`;
  let power = Math.min(Math.floor(Math.log2(bytes) / 10), 4), value = bytes / 1024 ** power;
  if (power < 4 && Math.round(value * 100) / 100 >= 1024) [power, value] = [power + 1, value / 1024];
  return `${Number(value.toFixed(2))}${THIN}${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function threeDigits(value) {
  if (value === 0) return "0";
  const digits = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function timeText(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1e-3) return `${threeDigits(seconds * 1e6)}${THIN}µs`;
  return seconds < 1 ? `${threeDigits(seconds * 1e3)}${THIN}ms` : `${threeDigits(seconds)}${THIN}s`;
}

const rateText = (gbs) => (Number.isFinite(gbs) ? `${threeDigits(gbs)}${THIN}GB/s` : "–");

// The least and the largest of the known values. The first is larger without any.
function rangeOf(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

// "0–7, 16, 24–31, …"
function runsText(ranks, most) {
  const parts = [];
  for (let i = 0; i < ranks.length; ) {
    let j = i;
    while (j + 1 < ranks.length && ranks[j + 1] === ranks[j] + 1) j++;
    if (parts.length === most) return `${parts.join(", ")}, …`;
    parts.push(j > i + 1 ? `${ranks[i]}–${ranks[j]}` : ranks.slice(i, j + 1).join(", "));
    i = j + 1;
  }
  return parts.join(", ");
}

// The first child of each parent, and the number of children at the end. `parent` is sorted.
function starts(parent, n) {
  const first = new Int32Array(n + 1);
  for (const index of parent) first[index + 1]++;
  for (let k = 0; k < n; k++) first[k + 1] += first[k];
  return first;
}

function readScene(raw) {
  const scene = { ...raw };
  for (const name of HOST_FIELDS) scene[name] = unpack(raw[name], Int32Array);
  const hosts = scene.box_of.length, boxes = scene.unit_of.length, units = scene.pod_of.length;
  const of = { hosts: starts(scene.box_of, boxes), boxes: starts(scene.unit_of, units), units: starts(scene.pod_of, scene.pod_id.length) };
  const kindOf = (h) => scene.kinds[scene.kind_of[h]];
  let devices = 0, nics = 0;
  for (let h = 0; h < hosts; h++) {
    devices += kindOf(h).devices;
    nics += kindOf(h).nics;
  }
  const hostOf = new Int32Array(devices), hostOfNic = new Int32Array(nics);
  for (let h = 0; h < hosts; h++) {
    hostOf.fill(h, scene.first_device[h], scene.first_device[h] + kindOf(h).devices);
    hostOfNic.fill(h, scene.first_nic[h], scene.first_nic[h] + kindOf(h).nics);
  }
  // The devices below each box, unit and pod.
  const below = (start, inner) => Array.from({ length: start.length - 1 }, (_, k) => {
    let sum = 0;
    for (let j = start[k]; j < start[k + 1]; j++) sum += inner(j);
    return sum;
  });
  const perBox = below(of.hosts, (h) => kindOf(h).devices), perUnit = below(of.boxes, (b) => perBox[b]);
  const perPod = below(of.units, (u) => perUnit[u]);
  return Object.assign(scene, { of, kindOf, devices, nics, hostOf, hostOfNic, perBox, perUnit, perPod });
}

function nameOfDevice(scene, device) {
  const h = scene.hostOf[device], local = device - scene.first_device[h];
  return scene.kindOf(h).names?.[local] ?? `rank ${device}`;
}

const hostsOfUnit = (scene, u) => scene.of.hosts[scene.of.boxes[u + 1]] - scene.of.hosts[scene.of.boxes[u]];

// The mesh on the machine: the rank and the group of every device.
function readView(raw, scene) {
  const n = scene.devices, rank = raw.rank_of === null ? new Int32Array(n) : unpack(raw.rank_of, Int32Array, n);
  if (raw.rank_of === null) for (let d = 0; d < n; d++) rank[d] = d < raw.world ? d : -1;
  return withGroups({ ...raw, rank }, unpack(raw.group_of, Int32Array, n));
}

function withGroups(view, group) {
  const n = view.n_groups;
  let start = null, list = null; // devices by group, in the order of ranks
  const index = () => {
    start = new Int32Array(n + 1);
    for (const g of group) if (g >= 0) start[g + 1]++;
    for (let g = 0; g < n; g++) start[g + 1] += start[g];
    list = new Int32Array(start[n]);
    const next = start.slice(), { rank } = view;
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
function regroup(view, axis) {
  const at = view.axes.findIndex(([name]) => name === axis);
  if (at < 0 || view.rank_of !== null) return null;
  const size = view.axes[at][1], stride = view.axes.slice(at + 1).reduce((all, [, n]) => all * n, 1);
  const group = view.rank.map((r) => (r < 0 ? -1 : Math.floor(r / (stride * size)) * stride + (r % stride)));
  return withGroups({ ...view, axis, single: false, n_groups: view.world / size, group_size: size }, group);
}

function groupName(view, g) {
  if (g < 0) return view.is_mesh ? `not in ${view.axis}` : "";
  return view.single ? view.axis : view.is_mesh ? `${view.axis}_${g}` : `${view.axis} ${g}`;
}

function coordinates(view, rank) {
  const parts = [];
  for (const [name, size] of [...view.axes].reverse()) {
    parts.unshift(`${name}=${rank % size}`);
    rank = Math.floor(rank / size);
  }
  return parts.join(" · ");
}

function deviceOfRank(view, rank) {
  return view.rank_of === null ? (rank < view.world ? rank : -1) : view.rank.indexOf(rank);
}

// The load of every kind of link: groups, bytes and the share in the time of the slowest link of the axis.
function readLoads(raw) {
  if (!raw?.links) return null;
  const links = raw.links.map((link) => ({
    ...link,
    groups: unpack(link.groups, Int32Array, link.n),
    bytes: unpack(link.bytes, Float32Array, link.n),
    share: unpack(link.share, Float32Array, link.n),
    gbs: unpack(link.gbs, Float32Array, link.n),
  }));
  const drawn = (as) => links.find((link) => link.drawn_as === as && link.name !== "host") ?? null;
  const by = { device: drawn("device"), nic: drawn("nic"), leaf: drawn("leaf"), unit: drawn("unit"), pod: drawn("pod") };
  const limit = raw.is_conflict ? links.find((link) => link.name === raw.limit) : null;
  return { ...raw, links, by, climbs: unpack(raw.climbs, Uint8Array, raw.n_groups), conflict: limit?.drawn_as ?? "" };
}

// The load of the uplinks of a unit: of its leaf switches if these are its only uplinks.
function unitLoad(scene, loads, u) {
  const link = loads?.by.unit ?? loads?.by.leaf;
  if (!link) return { share: 0, groups: 0, bytes: 0, gbs: NaN, link: null };
  const n = link.drawn_as === "leaf" ? scene.rails : 1, sum = { share: 0, groups: 0, bytes: 0, gbs: link.gbs[u * n], link };
  for (let k = u * n; k < (u + 1) * n; k++) {
    sum.share = Math.max(sum.share, link.share[k]);
    sum.groups = Math.max(sum.groups, link.groups[k]);
    sum.bytes = Math.max(sum.bytes, link.bytes[k]);
  }
  return sum;
}

// The largest share of the NICs of every rail.
function railShares(scene, loads) {
  const found = new Float32Array(scene.pod_of.length * Math.max(scene.rails, 1)), nic = loads?.by.nic;
  if (!nic || !scene.rails) return found;
  for (let n = 0; n < scene.nics; n++) {
    const h = scene.hostOfNic[n], rail = scene.kindOf(h).nic_rail[n - scene.first_nic[h]];
    if (rail < 0) continue;
    const at = scene.unit_of[scene.box_of[h]] * scene.rails + rail;
    if (nic.share[n] > found[at]) found[at] = nic.share[n];
  }
  return found;
}

// Groups that use a NIC, or without NICs a device, that a group uses too.
function sharingGroups(scene, view, loads, g) {
  const found = new Set([g]), nicsOf = (d) => {
    const h = scene.hostOf[d], local = d - scene.first_device[h];
    return scene.kindOf(h).near.filter(([own]) => own === local).map(([, j]) => scene.first_nic[h] + j);
  };
  if (g < 0 || !loads?.by.nic?.bytes.some((b) => b > 0)) return found;
  const mine = new Set(view.members(g).flatMap(nicsOf));
  for (const h of new Set([...mine].map((n) => scene.hostOfNic[n]))) {
    const first = scene.first_device[h];
    for (let d = first; d < first + scene.kindOf(h).devices; d++) {
      if (view.group[d] >= 0 && nicsOf(d).some((n) => mine.has(n))) found.add(view.group[d]);
    }
  }
  return found;
}
