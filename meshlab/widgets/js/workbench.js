// The workbench around the picture: header, tabs, panels, and the way of every edit to Python.
//
// A panel is a function `fooPanel({ model, root, listen, shell })` with a property `traits`, the names of the traits that
// it shows. It fills the element `root`, and returns `{ update(changed), destroy() }`. `changed` is the set of traits that
// have changed; the first call has all of them. `listen(target, event, handler)` is removed with the workbench.
//
// Each edit passes the queue of queue.js and has a version. Python's answers carry it, so that late ones are dropped.

import {
  attribute,
  button,
  consume,
  copyText,
  div,
  element,
  find,
  findAll,
  hasModifier,
  listeners,
  refill,
  setText,
  span,
} from "./dom.js";
import { comparePanel } from "./compare.js";
import { exportPanel } from "./export.js";
import { jobPanel } from "./job.js";
import { machinePanel } from "./machine.js";
import { measurePanel } from "./measure.js";
import { meshPanel } from "./mesh.js";
import { partBar } from "./part_bar.js";
import { picturePanel } from "./picture.js";
import { queueOf } from "./queue.js";
import { runsPanel } from "./runs.js";
import { stepPanel } from "./step.js";
import { tablePanel } from "./table.js";
import { followTheme } from "./theme.js";
import { tracePanel } from "./trace.js";

const TABS = [
  ["design", "Design"],
  ["measure", "Measure"],
  ["runs", "Runs"],
  ["trace", "Job"],
];
const OF_EDITS = ["_panel", "_table", "_job", "axis"]; // traits that an edit changes
const SLOW_MS = 150; // a longer wait is shown
const SILENT_MS = 5000; // after which the kernel probably runs a cell
let workbenches = 0;

export function workbenchPanel({ model, root: parent }) {
  const number = ++workbenches;
  const root = div("meshlab meshlab-workbench");
  parent.append(root);
  const { listen, stop } = listeners();
  const shows = (name) => model.get("panels").includes(name);
  const isLive = !model.get("_view_only") && typeof model.send === "function"; // a saved page has no kernel
  root.classList.toggle("ml-view-only", !isLive);

  const title = element("b", { class: "ml-title" });
  const summary = span("ml-summary");
  const tools = span("ml-tools");
  const undo = button("Undo", { title: "Undo the last change (Ctrl+Z)." });
  const redo = button("Redo", { title: "Redo (Ctrl+Shift+Z)." });
  const pin = button("Pin as A", {
    "aria-pressed": "false",
    title: "Keep this design as A, and compare later changes with it.",
  });
  const showCode = button("Show code", {
    "aria-expanded": "false",
    title: "Show the code that recreates this workbench.",
  });
  const head = div("ml-head", title, summary, tools);
  const code = element("pre", { class: "ml-code", tabindex: "0", "aria-label": "Code" });
  const copy = button("Copy", { class: "ml-copy-button" });
  const codeBox = element("div", { class: "ml-code-box", hidden: true }, code, copy);
  const tabs = element("div", { class: "ml-tabs", role: "tablist", "aria-label": "Workbench" });
  const side = div("ml-side");
  const right = div("ml-right");
  const boxes = Object.fromEntries(
    ["measure", "runs", "trace", "design"].map((name) => [name, div(`ml-tab ml-${name}`)]),
  );
  const live = element("div", { class: "ml-live", role: "status", "aria-live": "polite" });
  const toast = element("div", { class: "ml-toast", "aria-hidden": "true", hidden: true });
  right.append(...Object.values(boxes));
  root.append(head, codeBox, tabs, div("ml-main", side, right), live, toast);
  tools.append(undo, redo, pin, showCode);

  // -- edits --

  let slow = 0;
  let silent = 0;
  let toastTimer = 0;
  const messages = new Map();
  const queue = queueOf(model);
  const sent = new Map(); // the versions of the last edits by field
  const done = new Set();

  // Sends an edit, and paints the axes that it leads to if they are known. Returns its version.
  function edit(content, axes = null) {
    if (!isLive) return null;
    const version = queue.push({ type: "edit", ...content });
    picture.expect(version, axes);
    if (content.where) sent.set(content.where, version);
    fillHead();
    clearTimeout(slow);
    clearTimeout(silent);
    slow = setTimeout(() => root.classList.add("ml-busy"), SLOW_MS);
    silent = setTimeout(
      () => announce("The kernel is not responding: it is running a cell, or it has stopped"),
      SILENT_MS,
    );
    return version;
  }

  function say(text) {
    setText(live, text);
  }

  function announce(text) {
    say(text);
    setText(toast, text);
    toast.hidden = false;
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => (toast.hidden = true), 2500);
  }

  const shell = {
    root,
    edit,
    queue,
    say,
    announce,
    isLive,
    id: (name) => `meshlab-${number}-${name}`,
    send: (content, ...more) => isLive && model.send(content, ...more),
    onMessage: (type, handler) => messages.set(type, handler),
    panel: () => model.get("_panel"),
    fault: (where) => model.get("_panel").problems.find((one) => one.where === where) ?? null, // why the last edit of a field is not possible
    axis: () => model.get("axis"),
    chooseAxis: (axis) => picture.chooseAxis(axis),
    isDone: (where) => done.has(where), // Python has accepted an edit of this field
    refresh: () => note("_panel")(),
  };

  // -- panels --

  /** @type {[Panel, string[]][]} */
  const panels = [];
  const handlers = [];
  const on = (event, handler) => {
    model.on(event, handler);
    handlers.push([event, handler]);
  };
  let changed = new Set();
  const late = new Set(); // changed by answers to edits that are not the last
  function note(name) {
    return () => {
      if (!changed.size) queueMicrotask(update);
      changed.add(name);
    };
  }
  function add(make, into, ...more) {
    const panel = make({ model, root: into, listen, shell }, ...more);
    panels.push([panel, make.traits]);
    return panel;
  }

  const picture = picturePanel({
    model,
    root: boxes.design,
    clicked: (...what) => bar?.show(...what),
    lassoed: (...what) => bar?.showDevices(...what),
  });
  shell.picture = picture;
  const stage = picture.root.querySelector(".ml-stage");
  const bar = isLive && shows("machine") ? partBar({ after: stage, listen, shell }) : null;
  if (bar) panels.push([bar, partBar.traits]);
  const low = div("ml-low");
  const axes = div("ml-axes-table");
  const links = picture.root.querySelector(".ml-links");
  links.replaceWith(low);
  low.append(...(shows("table") ? [axes] : []), links);
  picture.root.classList.toggle("ml-has-table", shows("table"));
  const stageOfB = picture.root.querySelector(".ml-stage");
  if (shows("table")) add(comparePanel, low, stageOfB);
  if (shows("job")) {
    const step = div("ml-step-panel");
    picture.root.prepend(step);
    add(stepPanel, step);
  }
  if (shows("machine")) add(machinePanel, side);
  if (shows("mesh")) add(meshPanel, side);
  if (shows("job")) add(jobPanel, side);
  if (shows("table")) add(tablePanel, axes);
  if (shows("export")) add(exportPanel, tools);
  if (shows("measure") && (isLive || model.get("_run")?.state)) add(measurePanel, boxes.measure);
  if (shows("runs") && isLive) add(runsPanel, boxes.runs);
  if (shows("trace") && (isLive || model.get("_trace").html)) add(tracePanel, boxes.trace);

  function update() {
    const now = changed;
    changed = new Set();
    if (now.has("_panel")) {
      for (const [where, version] of sent) {
        if (queue.isWaiting(version)) continue;
        sent.delete(where);
        if (!shell.fault(where)) done.add(where);
      }
      if (!queue.waiting().length) {
        clearTimeout(slow);
        clearTimeout(silent);
        root.classList.remove("ml-busy");
      }
    }
    const isOutdated = queue.waiting().length > 0;
    for (const name of OF_EDITS) if (isOutdated && now.delete(name)) late.add(name);
    if (!isOutdated) for (const name of late) now.add(name);
    if (!isOutdated) late.clear();
    fillHead();
    for (const [panel, traits] of panels) if (traits.some((name) => now.has(name))) panel.update(now);
    done.clear();
  }

  function fillHead() {
    const panel = shell.panel();
    setText(title, panel.title);
    attribute(undo, "aria-disabled", !panel.undo && !queue.waiting().length); // also of an edit on its way
    attribute(redo, "aria-disabled", !panel.redo);
    attribute(pin, "aria-pressed", Boolean(panel.pinned));
    setText(pin, panel.pinned ? "Unpin A" : "Pin as A");
    setText(code, model.get("_code"));
    fillTabs();
  }

  function fillTabs() {
    const names = TABS.filter(([name]) => name === "design" || boxes[name].children.length);
    const tab = model.get("tab");
    tabs.hidden = names.length < 2;
    const shown = names.some(([name]) => name === tab) ? tab : "design";
    const { state, text } = model.get("_engines") ?? {};
    setText(summary, shown === "design" ? shell.panel().summary : !state || state === "none" ? "" : text);
    refill(
      tabs,
      ...names.map(([name, text]) =>
        button(text, {
          role: "tab",
          "data-tab": name,
          id: shell.id(`tab-${name}`),
          "aria-controls": shell.id(name),
          "aria-selected": String(name === tab),
          tabindex: name === tab ? "0" : "-1",
        }),
      ),
    );
    for (const [name, box] of Object.entries(boxes)) {
      if (names.length > 1) {
        box.id = shell.id(name);
        attribute(box, "role", "tabpanel");
        attribute(box, "aria-labelledby", shell.id(`tab-${name}`));
      }
      box.hidden = name !== shown;
    }
    // The design is about another machine than the ranks that measure.
    side.hidden = shown !== "design" || !side.children.length;
    for (const tool of [undo, redo]) tool.hidden = !isLive || shown !== "design";
    pin.hidden = !isLive || shown !== "design" || !shows("table");
  }

  const choose = (tab) => {
    model.set("tab", tab);
    if (isLive) model.save_changes();
    fillTabs();
    find(tabs, `[data-tab="${tab}"]`)?.focus();
  };
  listen(tabs, "click", (event) => event.target.dataset.tab && choose(event.target.dataset.tab));
  listen(tabs, "keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const all = findAll(tabs, "[data-tab]");
    if (!step) return;
    const at = all.findIndex((one) => one.dataset.tab === model.get("tab"));
    choose(all[(at + step + all.length) % all.length].dataset.tab);
    consume(event);
  });

  // -- header and keys --

  // While an edit has no answer, nobody knows what it enables.
  const isOff = (node) => node.getAttribute("aria-disabled") === "true" && !queue.waiting().length;
  listen(
    root,
    "click",
    (event) => {
      const target = event.target.closest("[aria-disabled=true]");
      if (target && isOff(target)) event.stopImmediatePropagation();
    },
    { capture: true },
  );
  listen(undo, "click", () => isOff(undo) || edit({ action: "undo" }));
  listen(redo, "click", () => isOff(redo) || edit({ action: "redo" }));
  listen(pin, "click", () => edit({ action: shell.panel().pinned ? "unpin" : "pin" }));
  listen(showCode, "click", () => {
    codeBox.hidden = !codeBox.hidden;
    attribute(showCode, "aria-expanded", !codeBox.hidden);
    setText(showCode, codeBox.hidden ? "Show code" : "Hide code");
  });
  listen(copy, "click", async () => {
    if (await copyText(code.textContent, root)) return announce("Copied the code");
    const all = document.createRange();
    all.selectNodeContents(code);
    getSelection()?.removeAllRanges();
    getSelection()?.addRange(all);
    code.focus();
    announce("The front end does not allow copying: the code is selected, so press Ctrl+C");
  });
  listen(root, "keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.target.closest("input, textarea")) return;
    const key = event.key.toLowerCase();
    const action = key === "z" ? (event.shiftKey ? "redo" : "undo") : key === "y" ? "redo" : "";
    if (!action) return;
    consume(event); // or JupyterLab would undo an edit of the notebook
    if (!isOff(action === "undo" ? undo : redo)) edit({ action });
  });
  let isFlicked = false;
  const flick = (isOn) => {
    if (isOn === isFlicked || (isOn && !shell.panel().pinned)) return;
    isFlicked = isOn;
    root.classList.toggle("ml-flicked", isOn);
    shell.send({ type: "flick", on: isOn });
  };
  listen(stage, "keydown", (event) => {
    if (event.key.toLowerCase() !== "a" || hasModifier(event) || event.target !== stage) {
      return;
    }
    consume(event);
    flick(true);
  });
  listen(stage, "keyup", (event) => event.key.toLowerCase() === "a" && flick(false));
  listen(stage, "blur", () => flick(false));

  // -- the model --

  for (const name of new Set(["_panel", "_code", "tab", "axis", ...panels.flatMap(([, traits]) => traits)])) {
    on(`change:${name}`, note(name));
  }
  on("msg:custom", (content) => messages.get(content?.type)?.(content));
  const unfollow = followTheme(root);
  changed = new Set(["_panel", ...panels.flatMap(([, traits]) => traits)]);
  update();

  return {
    destroy() {
      stop();
      unfollow();
      for (const timer of [slow, silent, toastTimer]) clearTimeout(timer);
      for (const [event, handler] of handlers) model.off(event, handler);
      for (const [panel] of panels) panel.destroy();
      picture.destroy();
      root.remove();
    },
  };
}
