// What Python sends, unpacked, and what follows from it without Python.
import assert from "node:assert/strict";
import test from "node:test";
import { coordinates, deviceOfRank, groupName, readView, regroup, unpack } from "../../../meshlab/widgets/js/data.js";

const bytes = (values) => new DataView(Int32Array.from(values).buffer);
const AXES = [
  ["pp", 2],
  ["dp", 2],
  ["tp", 2],
];
const view = (changes = {}) =>
  readView(
    {
      is_mesh: true,
      single: false,
      world: 8,
      axes: AXES,
      axis: "tp",
      n_groups: 4,
      rank_of: null,
      group_of: bytes([0, 0, 1, 1, 2, 2, 3, 3]),
      ...changes,
    },
    { devices: 8 },
  );

test("bytes are unpacked at any offset, and one number is an array of it", () => {
  const buffer = new Uint8Array([9, 1, 0, 0, 0, 2, 0, 0, 0]).buffer;
  assert.deepEqual([...unpack(new DataView(buffer, 1, 8), Int32Array)], [1, 2]);
  assert.deepEqual([...unpack(7, Int32Array, 3)], [7, 7, 7]);
  assert.deepEqual([...unpack(null, Float32Array, 1)], [NaN]);
});

test("the members of a group are in the order of ranks", () => {
  assert.deepEqual(view().members(2), [4, 5]);
  const mapped = view({ rank_of: bytes([7, 6, 5, 4, 3, 2, 1, 0]), group_of: bytes([3, 3, 2, 2, 1, 1, 0, 0]) });
  assert.deepEqual(mapped.members(0), [7, 6]);
  assert.equal(deviceOfRank(mapped, 7), 0);
});

test("the groups of a different axis follow from the strides", () => {
  const dp = regroup(view(), "dp");
  assert.deepEqual([...dp.group], [0, 1, 0, 1, 2, 3, 2, 3]);
  assert.deepEqual(dp.members(1), [1, 3]);
  assert.equal(dp.n_groups, 4);
  assert.deepEqual([...regroup(view(), "pp").group], [0, 1, 2, 3, 0, 1, 2, 3]);
});

test("they do not follow for an unknown axis or ranks in a different order", () => {
  assert.equal(regroup(view(), "ep"), null);
  assert.equal(regroup(view({ rank_of: bytes([1, 0, 2, 3, 4, 5, 6, 7]) }), "dp"), null);
});

test("a rank has coordinates, and a group a name", () => {
  assert.equal(coordinates(view(), 6), "pp=1 · dp=1 · tp=0");
  assert.equal(groupName(view(), 3), "tp_3");
  assert.equal(groupName(view(), -1), "not in tp");
  assert.equal(groupName({ ...view(), is_mesh: false }, 3), "tp 3");
});
