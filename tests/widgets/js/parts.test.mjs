// The names of parts, and the places that a text names.
import assert from "node:assert/strict";
import test from "node:test";
import { readScene } from "../../../meshlab/widgets/js/data.js";
import { partsAt } from "../../../meshlab/widgets/js/parts.js";
import { placeOfText } from "../../../meshlab/widgets/js/pick.js";

const bytes = (values) => new DataView(Int32Array.from(values).buffer);
const KIND = {
  devices: 2,
  nics: 2,
  set_of: [0, 0],
  nic_rail: [0, 1],
  near: [
    [0, 0],
    [1, 1],
  ],
  names: ["GPU 0", "GPU 1"],
  nic_names: ["NIC0", "NIC1"],
};
// Two hosts, each with its own two leaf switches.
const scene = readScene({
  kinds: [KIND],
  kind_of: bytes([0, 0]),
  host: bytes([0, 1]),
  first_device: bytes([0, 2]),
  first_nic: bytes([0, 2]),
  box_of: bytes([0, 1]),
  unit_of: bytes([0, 1]),
  is_joined: bytes([1, 1]),
  pod_of: bytes([0, 0]),
  unit_id: bytes([0, 1]),
  pod_id: bytes([0]),
  network: "known",
  rails: 2,
  leaf_word: "leaf",
  unit_word: "leaf",
  pod_word: "",
  names: ["gpu-a", "gpu-b"],
});
const picture = {
  scene,
  selected: new Uint8Array([1, 1, 0, 0]),
  view: { rank: [0, 1, 2, 3], rank_of: null, world: 4, is_mesh: true },
};
const named = (hit) => partsAt(picture, { pod: 0, ...hit }).map(({ names }) => names.join(" "));

test("a click on a GPU may mean it, its links, or what they lead to", () => {
  assert.deepEqual(named({ kind: "device", index: 0, unit: 0, box: 0, host: 0 }), [
    "gpu-a/GPU0",
    "gpu-a/GPU0/NVLink",
    "gpu-a/GPU0-GPU1",
    "gpu-a/NIC0",
    "gpu-a/NIC0/cable",
    "leaf:0",
    "gpu-a",
  ]);
});

test("switches and uplinks have the numbers of their level", () => {
  assert.deepEqual(named({ kind: "leaf", index: 3, unit: 1 }), [
    "leaf:3",
    "leaf:3/uplink",
    "leaf:2/uplink leaf:3/uplink",
  ]);
  assert.deepEqual(named({ kind: "up", index: 1, unit: 1 }), [
    "leaf:2/uplink leaf:3/uplink",
    "leaf:2/uplink",
    "leaf:3/uplink",
  ]);
  const [first, second] = partsAt(picture, { kind: "cable", index: 3, unit: 1, box: 1, host: 1, pod: 0 });
  assert.deepEqual([first.names, second.names], [["gpu-b/NIC1/cable"], ["leaf:3"]]);
  assert.deepEqual([first.canRemove, first.canRate], [false, false]);
});

test("a text names a rank, a host or a group of hosts", () => {
  assert.deepEqual(placeOfText(picture, "rank 3"), ["device:3", 3]);
  assert.deepEqual(placeOfText(picture, " 2 "), ["device:2", 2]);
  assert.deepEqual(placeOfText(picture, "GPU-B"), ["node:1"]);
  assert.deepEqual(placeOfText(picture, "leaf 1"), ["leaf:1"]);
  assert.deepEqual(placeOfText(picture, "b"), ["node:1"]);
  assert.deepEqual(placeOfText(picture, "rank 4"), []);
  assert.deepEqual(placeOfText(picture, "nowhere"), []);
});
