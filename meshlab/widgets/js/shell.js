// The workbench around the picture: header, tabs, panels, and the way of every edit to Python.
//
// A panel is a function `fooPanel({ model, root, listen, shell })`. It fills the element `root`, and returns
// `{ update(changed), destroy() }`. `changed` is the set of traits that Python has sent; the first call has all of them.
// `listen(target, event, handler)` is removed with the workbench.

const TABS = [["design", "Design"], ["measure", "Measure"], ["runs", "Runs"]];

function workbenchPanel({ model, root: parent }) {
  const root = element("div", { class: "meshlab-workbench" });
  parent.append(root);
  const ended = new AbortController();
  const listen = (target, event, handler, options = {}) => target.addEventListener(event, handler, { signal: ended.signal, ...options });
  const head = element("div", { class: "wb-head" }), tabs = element("div", { class: "wb-tabs", role: "tablist", "aria-label": "Workbench" });
  const side = element("div", { class: "wb-side" }), right = element("div", { class: "wb-right" });
  const measure = element("div", { class: "wb-measure", role: "tabpanel" }), runs = element("div", { class: "wb-runs", role: "tabpanel" });
  const design = element("div", { class: "wb-design", role: "tabpanel" });
  right.append(measure, runs, design);
  root.append(head, tabs, element("div", { class: "wb-main" }, side, right));

  const shell = { root, send: (content) => model.send(content), say: () => {} };
  const panels = [], handlers = [];
  const on = (event, handler) => {
    model.on(event, handler);
    handlers.push([event, handler]);
  };
  function add(make, into) {
    panels.push(make({ model, root: into, listen, shell }));
    for (const name of make.traits) on(`change:${name}`, note(name));
  }
  let changed = new Set();
  const picture = picturePanel({ model, root: design });
  if (typeof measurePanel === "function") add(measurePanel, measure);
  if (typeof runsPanel === "function") add(runsPanel, runs);

  function note(name) {
    return () => {
      if (!changed.size) queueMicrotask(update);
      changed.add(name);
    };
  }
  function update() {
    const now = changed;
    changed = new Set();
    for (const panel of panels) panel.update(now);
  }
  return {
    destroy() {
      ended.abort();
      for (const [event, handler] of handlers) model.off(event, handler);
      for (const panel of panels) panel.destroy();
      picture.destroy();
      root.remove();
    },
  };
}
