// The engines, the form of the next run, the run, and the monitor.

import { GROUPS } from "./colors.js";
import { alertBox, attribute, button, div, element, fill, muted, setText, show, span, textField } from "./dom.js";
import { typedField } from "./fields.js";
import { monitorPanel } from "./monitor.js";
import { queueOf } from "./queue.js";
import { runPanel } from "./run.js";
import { joined } from "./text.js";

const GROUPINGS = { together: "all together", "together, alone": "together and alone", pairs: "pairs of ranks" };
const ENGINE_SIGNS = { none: "○", ready: "●", busy: "●", broken: "✕", closing: "○", closed: "○" };
const ENGINE_WORDS = { ready: "idle", broken: "stopped", closing: "closing", closed: "closed" };
const FEW_CHIPS = 64; // with their numbers

function enginesPanel({ model, shell }) {
  const sign = element("span", { class: "ml-run-sign", "aria-hidden": "true" });
  const line = span("ml-run-line");
  const number = element("input", { type: "number", min: 1, "aria-label": "Ranks", class: "ml-run-number" });
  const choice = element("select", { "aria-label": "Backend" });
  const send = (action, more) => shell.send({ type: "measure.engines", action, ...more });
  const chosen = () => model.get("_engines").choices[choice.selectedIndex];
  const start = button("Start ranks", {
    class: "ml-run-main",
    onclick: () => {
      const { n, most = n, backend, owner } = chosen();
      const ranks = Math.min(most, Math.max(1, Math.round(Number(number.value)) || n));
      send("start", owner === undefined ? { n: ranks, backend } : { owner });
    },
  });
  const end = button("Stop them", {
    title: "Stop the ranks of the other workbench. A run is cancelled, and its rows are kept.",
    onclick: () => send("close", { owner: chosen().owner }),
  });
  const restart = button("Restart", {
    class: "ml-run-main",
    title: "Replace these ranks with new ones.",
    onclick: () => send("restart"),
  });
  const close = button("Stop the ranks", {
    title: "Stop the processes. A run is cancelled, and its rows are kept.",
    onclick: () => send("close"),
  });
  const map = rankMap({ model });
  const alert = alertBox();
  const choices = div("ml-run-starts", number, choice, start, end);
  const root = element(
    "section",
    { class: "ml-run-engines", "aria-label": "Ranks" },
    div("ml-run-head", div("ml-run-state", sign, line), div("ml-run-controls", restart, close)),
    choices,
    alert,
    map.root,
  );
  choice.addEventListener("change", () => {
    fit(chosen());
    nameStart();
  });

  function fit({ n, most = n }) {
    number.max = String(most);
    number.value = String(n);
  }

  // Engines of another workbench are taken over, or stopped.
  function nameStart() {
    const isOffer = chosen()?.owner !== undefined;
    setText(start, isOffer ? "Use them" : "Start ranks");
    show(number, !isOffer);
    show(end, isOffer);
  }

  function update() {
    const { state, text: where, doing, problem, choices: offered, is_own: isOwn } = model.get("_engines");
    if (!state) return;
    attribute(root, "data-state", state);
    setText(sign, doing && state === "none" ? "◌" : ENGINE_SIGNS[state]);
    const isNone = state === "none" || state === "closed";
    setText(line, isNone ? doing || "No ranks yet" : joined(" · ", [where, doing || ENGINE_WORDS[state]]));
    fill(choice, offered, () => offered.map(({ text }) => element("option", { text })));
    if (!number.value && offered.length) fit(chosen());
    const isBusy = Boolean(doing);
    show(choices, isNone);
    nameStart();
    show(restart, state === "broken");
    show(close, isOwn && !isNone && state !== "closing");
    start.disabled = end.disabled = number.disabled = choice.disabled = restart.disabled = isBusy;
    setText(alert, problem ? `${problem[0].toUpperCase()}${problem.slice(1)}` : "");
    map.update();
  }
  return { root, update };
}

// The ranks that measure, in a box per host, coloured by their groups along one axis of the mesh that is measured.
function rankMap({ model }) {
  let axis = "";
  const caption = div("ml-run-mapped");
  const chips = element("div", { class: "ml-run-chips", role: "img" });
  const root = div("ml-run-map", caption, chips);

  function chip([rank, word, title], isNamed, groups) {
    const group = groups?.[rank];
    const where = group >= 0 ? ` · ${axis} group ${group}` : "";
    return element("span", {
      class: `ml-run-chip ml-run-${word}`,
      title: `${title}${where} · ${word}`,
      style: group >= 0 && word !== "dead" ? `--ml-run-group: var(--ml-g${group % GROUPS})` : null,
      text: isNamed ? rank : "",
    });
  }

  function update() {
    const { state, ranks = [], more, hosts = [] } = model.get("_engines");
    const { groups = {}, mesh, form } = model.get("_bench");
    const isNone = !state || state === "none" || state === "closed";
    show(root, ranks.length > 0 && !isNone);
    const axes = Object.keys(groups);
    if (form?.axis && axes.includes(form.axis)) axis = form.axis;
    else if (!axes.includes(axis)) axis = axes.at(-1) ?? "";
    const isMeasured = axes.length > 0 && groups[axis].length >= ranks.length;
    fill(caption, [mesh, axes, axis, isMeasured], () =>
      isMeasured
        ? [
            element("span", { text: mesh }),
            muted("groups of"),
            ...axes.map((name) =>
              button(name, {
                class: "ml-run-axis",
                "aria-pressed": String(name === axis),
                onclick: () => ((axis = name), update()),
              }),
            ),
          ]
        : [],
    );
    fill(chips, [ranks, more, hosts, axis, groups], () => {
      const boxes = new Map();
      ranks.forEach((one, k) => {
        const host = hosts[k] ?? "";
        if (!boxes.has(host)) boxes.set(host, []);
        boxes.get(host).push(chip(one, ranks.length <= FEW_CHIPS, isMeasured ? groups[axis] : null));
      });
      const named = (host, list) => [element("span", { class: "ml-run-host-name ml-soft", text: host }), ...list];
      return [
        ...[...boxes].map(([host, list]) => span("ml-run-host", boxes.size > 1 ? named(host, list) : list)),
        ...(more ? [muted(`and ${more.toLocaleString("en")} more`)] : []),
      ];
    });
    const counts = new Map();
    for (const [, word] of ranks) counts.set(word, (counts.get(word) ?? 0) + 1);
    attribute(chips, "aria-label", [...counts].map(([word, n]) => `${n} rank${n === 1 ? "" : "s"} ${word}`).join(", "));
  }
  return { root, update };
}

function formPanel({ model, listen, shell }) {
  const queue = queueOf(model);
  const problems = new Map();
  const fields = new Map();
  const field = (name, label, control, extra = "") => {
    const problem = element("div", { class: "ml-run-problem", role: "alert" });
    problems.set(name, problem);
    fields.set(name, control);
    return element(
      control.tagName === "DIV" ? "div" : "label",
      { class: `ml-run-field ${extra}` },
      element("span", { class: "ml-run-label", text: label }),
      control,
      problem,
    );
  };
  const input = (name, attributes) => textField({ name, ...attributes });
  const mesh = input("mesh", {
    type: "text",
    title: "The mesh to measure, with one rank per engine. By default the mesh of the picture.",
  });
  const axis = element("select", { name: "axis" });
  const mode = element("select", { name: "mode" });
  const grouping = element("select", { name: "grouping" });
  const sampling = element("select", { name: "sampling" });
  const launches = input("launches", {
    type: "number",
    min: 1,
    max: 99,
    title: "Repetitions on new ranks, which show how much launches differ.",
  });
  const sizes = input("sizes", { type: "text", title: "Message sizes, such as 1K:64M or 1K, 1M" });
  const collectives = element("div", { class: "ml-run-toggles", role: "group", "aria-label": "Collectives" });
  const meshes = div("ml-run-toggles");
  const estimate = span("ml-run-estimate ml-soft");
  const start = button("Measure", { class: "ml-run-main", onclick: () => shell.send({ type: "measure.start" }) });
  const root = element(
    "section",
    { class: "ml-run-form", "aria-label": "Next run" },
    div(
      "ml-run-fields",
      field("collectives", "Collectives", collectives, "ml-run-wide"),
      field("axis", "Axis", axis),
      field("sizes", "Sizes", sizes),
      field("mode", "Mode", mode),
      field("grouping", "Groups", grouping),
      field("sampling", "Precision", sampling),
      field("launches", "Launches", launches),
      field("mesh", "Mesh", mesh, "ml-run-two"),
    ),
    meshes,
    div("ml-run-head", estimate, start),
  );

  // Only what has changed, because the other fields may have edits on their way.
  function send(changes) {
    const version = queue.push({ type: "measure.form", form: changes }, "_bench");
    update();
    return version;
  }
  for (const control of [axis, mode, grouping, sampling]) {
    listen(control, "change", () => send({ [control.name]: control.value }));
  }
  const typed = new Map(
    [mesh, sizes, launches].map((input) => {
      const value = (text) => (input === launches ? Number(text) : text);
      return [input, typedField({ input, listen, queue, send: (text) => send({ [input.name]: value(text) }) })];
    }),
  );
  listen(root, "keydown", (event) => event.target.tagName === "INPUT" && event.stopPropagation()); // keys of the notebook

  const options = (select, values, label, chosen) => {
    fill(select, values, () => values.map((value) => element("option", { value, text: label(value) })));
    if (select.value !== chosen) select.value = chosen;
  };

  function update() {
    const bench = model.get("_bench");
    if (!bench.form) return;
    const waiting = queue.waiting("_bench");
    const form = Object.assign({}, bench.form, ...waiting.map(({ content }) => content.form));
    const isPairs = form.grouping === "pairs";
    options(axis, ["", ...bench.axes], (name) => name || (isPairs ? "all ranks" : "all axes"), form.axis);
    options(mode, bench.modes, (name) => name, form.mode);
    options(grouping, bench.groupings, (name) => GROUPINGS[name], form.grouping);
    options(sampling, bench.samplings, (name) => name, form.sampling);
    for (const [input, field] of typed) field.update(String(form[input.name]));
    attribute(mesh, "placeholder", bench.mesh);
    const toggle = (name) => {
      const rest = form.collectives.filter((one) => one !== name);
      send({
        collectives:
          rest.length < form.collectives.length ? (rest.length ? rest : form.collectives) : [...form.collectives, name],
      });
    };
    fill(collectives, [bench.collectives, form.collectives, isPairs], () =>
      (isPairs ? ["send", "send_recv"] : bench.collectives).map((name) =>
        button(name, {
          disabled: isPairs,
          "aria-pressed": String(isPairs || form.collectives.includes(name)),
          onclick: () => toggle(name),
        }),
      ),
    );
    if (waiting.length) return; // the rest is about an older form
    for (const [name, problem] of problems) {
      setText(problem, bench.problems[name] ?? "");
      if (fields.get(name).tagName !== "DIV") {
        attribute(fields.get(name), "aria-invalid", name in bench.problems);
      }
    }
    fill(meshes, bench.meshes, () =>
      bench.meshes.map((one) => button(`Use ${one}`, { onclick: () => send({ mesh: one }) })),
    );
    show(meshes, bench.meshes.length > 0);
    setText(estimate, joined(" ", [bench.why, bench.estimate]));
    start.disabled = !bench.can_start;
    start.classList.toggle("ml-run-main", !bench.why); // the ranks have the main button until they run
  }
  return { root, update };
}

export function measurePanel(parts) {
  const { root: parent } = parts;
  const engines = enginesPanel(parts);
  const form = formPanel(parts);
  const runBox = element("div");
  const monitorBox = element("div");
  const setup = div("ml-run-setup", engines.root, form.root);
  const outcome = div("ml-run-outcome", runBox, monitorBox);
  const root = div("meshlab-run ml-run-measure", div("ml-run-two-columns", setup, outcome));
  parent.append(root);
  const isLive = typeof parts.model.send === "function"; // a saved page has no Python, so it only shows the run
  setup.hidden = monitorBox.hidden = !isLive;
  const run = runPanel({ ...parts, root: runBox, shell: { ...parts.shell, hasRestart: true } });
  const monitor = monitorPanel({ ...parts, root: monitorBox });

  function update(changed) {
    const any = (...names) => !changed || names.some((name) => changed.has(name));
    if (any("_engines", "_bench")) engines.update();
    if (any("_bench")) form.update();
    if (any("_runs", ...runPanel.traits)) run.update(changed);
    if (any(...monitorPanel.traits)) monitor.update();
  }
  update();
  return { update, destroy: () => (run.destroy(), monitor.destroy(), root.remove()) };
}
measurePanel.traits = ["_engines", "_bench", "_runs", ...runPanel.traits, ...monitorPanel.traits];
