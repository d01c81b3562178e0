// The trace of a job. Python writes its sentences and draws its figures.

import { button, div, element, fillSelect, setText, textField } from "./dom.js";

const MOVES = [
  ["+", "Zoom in", "in"],
  ["−", "Zoom out", "out"],
  ["‹", "Earlier", "earlier"],
  ["›", "Later", "later"],
];

export function tracePanel({ model, root, listen, shell }) {
  const send = (content) => shell.send({ type: "trace", ...content });
  const path = textField({ "aria-label": "Folder of traces", placeholder: "folder with the traces of a job" });
  const read = button("Read", { onclick: () => send({ path: path.value }) });
  const follow = button("Follow", { onclick: () => send({ path: path.value, follow: true }) });
  const steps = element("select", { "aria-label": "Step of the timeline" });
  const moves = MOVES.map(([text, title, move]) =>
    button(text, { title, "aria-label": title, onclick: () => send({ move }) }),
  );
  const note = element("p", { class: "ml-soft", role: "status" });
  const view = div("ml-trace-view", steps, ...moves);
  const body = div("ml-trace-body");
  root.append(div("ml-trace-tools", ...(shell.isLive ? [path, read, follow, view] : [])), note, body);
  listen(steps, "change", () => send({ step: steps.value }));
  listen(path, "keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") read.click();
  });
  return {
    update() {
      const trace = model.get("_trace");
      setText(note, trace.note);
      view.hidden = !trace.steps[0];
      fillSelect(steps, trace.steps, trace.step);
      if (body.innerHTML !== trace.html) body.innerHTML = trace.html; // escaped by Python
    },
    destroy() {},
  };
}

tracePanel.traits = ["_trace"];
