// Numbers as text. tests/base/test_units.py has the same for Python.
import assert from "node:assert/strict";
import test from "node:test";
import {
  plural,
  rangeOf,
  rateText,
  runsText,
  sizeText,
  threeDigits,
  timeText,
} from "../../../meshlab/widgets/js/text.js";

const THIN = "\u2009";

test("sizes have binary units and at most two decimals", () => {
  assert.equal(sizeText(1023), `1023${THIN}B`);
  assert.equal(sizeText(1536), `1.5${THIN}KiB`);
  assert.equal(sizeText(2 ** 20 - 1), `1${THIN}MiB`);
  assert.equal(sizeText(3 * 2 ** 50), `3072${THIN}TiB`);
});

test("times and rates have three digits", () => {
  assert.equal(timeText(12.3456e-6), `12.3${THIN}µs`);
  assert.equal(timeText(0.25), `250${THIN}ms`);
  assert.equal(timeText(Infinity), "–");
  assert.equal(rateText(1234.5), `1,235${THIN}GB/s`);
  assert.equal(threeDigits(0), "0");
  assert.equal(threeDigits(0.01234), "0.012");
});

test("consecutive ranks are ranges", () => {
  assert.equal(runsText([0, 1, 2, 3, 8, 10, 11, 12], 6), "0–3, 8, 10–12");
  assert.equal(runsText([0, 1, 5], 6), "0, 1, 5");
  assert.equal(runsText([0, 2, 4, 6], 2), "0, 2, …");
  assert.equal(runsText([], 6), "");
});

test("a range ignores unknown values, and has none without values", () => {
  assert.deepEqual(rangeOf([NaN, 3, -1]), [-1, 3]);
  const [low, high] = rangeOf([NaN]);
  assert.ok(low > high);
});

test("one is singular", () => {
  assert.equal(plural(1, "group"), "1 group");
  assert.equal(plural(1200, "group"), "1,200 groups");
});
