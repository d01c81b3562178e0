// Edits in their order, each with a version, until an answer of Python includes them.
import assert from "node:assert/strict";
import test from "node:test";
import { queueOf } from "../../../meshlab/widgets/js/queue.js";

function modelOf(state = {}) {
  const sent = [];
  return { state, sent, get: (name) => state[name], send: (content) => sent.push(content) };
}

test("edits are sent in order, with the version that the page has seen", () => {
  const model = modelOf({ _panel: { edit: 4 }, _bench: { edit: 6 } });
  const queue = queueOf(model);
  assert.equal(queue.push({ type: "edit", action: "size" }), 7);
  assert.equal(queue.push({ type: "edit", action: "turn" }), 8);
  assert.deepEqual(
    model.sent.map(({ edit, seen, action }) => [edit, seen, action]),
    [
      [7, 4, "size"],
      [8, 4, "turn"],
    ],
  );
});

test("an edit waits until the value of its trait includes it", () => {
  const model = modelOf({ _panel: { edit: 0 }, _bench: { edit: 0 } });
  const queue = queueOf(model);
  const [panel, form] = [queue.push({ action: "size" }), queue.push({ form: { sizes: "1K" } }, "_bench")];
  model.state._panel = { edit: panel };
  assert.equal(queue.isWaiting(panel), false);
  assert.equal(queue.isWaiting(form), true);
  assert.deepEqual(
    queue.waiting("_bench").map(({ content }) => content.form),
    [{ sizes: "1K" }],
  );
  model.state._bench = { edit: form };
  assert.deepEqual(queue.waiting("_bench"), []);
});

test("all displays of a model share its queue, and another model has its own", () => {
  const model = modelOf();
  queueOf(model).push({ action: "size" });
  assert.equal(queueOf(model).push({ action: "turn" }), 2);
  assert.equal(queueOf(modelOf()).next(), 1);
});
