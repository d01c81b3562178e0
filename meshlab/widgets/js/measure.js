// The engines, the form of the next run, the run, and the monitor.

const measurePanel = (() => {
const { make, text, show, attribute, fill } = dom;
const GROUPINGS = { together: "all at once", "together, alone": "at once and alone", pairs: "pairs of ranks" };
const ENGINE_SIGNS = { none: "○", ready: "●", busy: "●", broken: "✕", closed: "○" };
const ENGINE_WORDS = { ready: "idle", broken: "stopped", closed: "closed" };
const FEW_CHIPS = 64; // with their numbers

function enginesPanel({ model, shell }) {
  const sign = make("span", { class: "mr-sign", "aria-hidden": "true" }), line = make("span", { class: "mr-line" });
  const choice = make("select", { "aria-label": "Engines to start" });
  const send = (action, more) => shell.send({ type: "measure.engines", action, ...more });
  const start = make("button", { type: "button", class: "mr-main", text: "Start", onclick: () => send("start", model.get("_engines").choices[choice.selectedIndex]) });
  const restart = make("button", { type: "button", class: "mr-main", text: "Restart", title: "Start new ranks in place of these.", onclick: () => send("restart") });
  const close = make("button", { type: "button", text: "Stop the ranks", title: "End the processes. A run is cancelled, and its rows are kept.", onclick: () => send("close") });
  const chips = make("div", { class: "mr-chips", role: "img" }), alert = make("div", { class: "mr-alert", role: "alert" });
  const root = make("section", { class: "mr-engines", "aria-label": "Engines" },
    make("div", { class: "mr-head" }, make("div", { class: "mr-state" }, sign, line), make("div", { class: "mr-controls" }, choice, start, restart, close)), alert, chips);

  function update() {
    const { state, text: where, doing, problem, ranks, more, choices, is_own: isOwn } = model.get("_engines");
    if (!state) return;
    attribute(root, "data-state", state);
    text(sign, doing && state === "none" ? "◌" : ENGINE_SIGNS[state]);
    text(line, [where, doing || ENGINE_WORDS[state]].filter(Boolean).join(" · "));
    fill(choice, choices, () => choices.map(({ label }) => make("option", { text: label })));
    const isNone = state === "none" || state === "closed", isBusy = Boolean(doing);
    show(choice, isNone);
    show(start, isNone);
    show(restart, state === "broken");
    show(close, isOwn && !isNone);
    start.disabled = choice.disabled = restart.disabled = isBusy;
    text(alert, problem ? `${problem[0].toUpperCase()}${problem.slice(1)}` : "");
    show(chips, ranks.length > 0 && !isNone);
    fill(chips, [ranks, more], () => [
      ...ranks.map(([rank, word, title]) => make("span", { class: `mr-chip mr-${word}`, title: `${title} · ${word}`, text: ranks.length <= FEW_CHIPS ? rank : "" })),
      ...(more ? [make("span", { class: "mr-soft", text: `and ${more.toLocaleString("en")} more` })] : []),
    ]);
    const counts = new Map();
    for (const [, word] of ranks) counts.set(word, (counts.get(word) ?? 0) + 1);
    attribute(chips, "aria-label", [...counts].map(([word, n]) => `${n} rank${n === 1 ? "" : "s"} ${word}`).join(", "));
  }
  return { root, update };
}

function formPanel({ model, listen, shell }) {
  let edit = 0;
  const problems = new Map(), fields = new Map();
  const field = (name, label, control, extra = "") => {
    const problem = make("div", { class: "mr-problem", role: "alert" });
    problems.set(name, problem);
    fields.set(name, control);
    return make(control.tagName === "DIV" ? "div" : "label", { class: `mr-field ${extra}` }, make("span", { class: "mr-label", text: label }), control, problem);
  };
  const input = (name, attributes) => make("input", { name, autocomplete: "off", spellcheck: "false", ...attributes });
  const mesh = input("mesh", { type: "text", title: "The mesh to measure, with one rank per engine. By default that of the picture." });
  const axis = make("select", { name: "axis" }), mode = make("select", { name: "mode" }), grouping = make("select", { name: "grouping" });
  const sampling = make("select", { name: "sampling" }), launches = input("launches", { type: "number", min: 1, max: 99, title: "Repetitions on new ranks. Only they show how much launches differ." });
  const sizes = input("sizes", { type: "text", title: "Message sizes, such as 1K:64M or 1K, 1M" });
  const collectives = make("div", { class: "mr-toggles", role: "group", "aria-label": "Collectives" });
  const meshes = make("div", { class: "mr-toggles" });
  const estimate = make("span", { class: "mr-estimate mr-soft" });
  const start = make("button", { type: "button", class: "mr-main", text: "Start", onclick: () => shell.send({ type: "measure.start" }) });
  const root = make("section", { class: "mr-form", "aria-label": "Next run" },
    make("div", { class: "mr-fields" },
      field("collectives", "Collectives", collectives, "mr-wide"), field("axis", "Axis", axis), field("sizes", "Sizes", sizes), field("mode", "Mode", mode),
      field("grouping", "Groups", grouping), field("sampling", "Precision", sampling), field("launches", "Launches", launches), field("mesh", "Mesh", mesh, "mr-two")),
    meshes, make("div", { class: "mr-head" }, estimate, start));

  function send(changes) {
    const { form } = model.get("_bench");
    edit++;
    shell.send({ type: "measure.form", edit, form: { ...form, ...changes } });
  }
  for (const control of [mesh, axis, sizes, mode, grouping, sampling]) listen(control, "change", () => send({ [control.name]: control.value }));
  listen(launches, "change", () => send({ launches: Number(launches.value) }));
  listen(root, "keydown", (event) => event.target.tagName === "INPUT" && event.stopPropagation()); // keys of the notebook

  const options = (select, values, label, chosen) => {
    fill(select, values, () => values.map((value) => make("option", { value, text: label(value) })));
    if (select.value !== chosen) select.value = chosen;
  };
  const write = (control, value) => {
    if (control.value !== String(value) && control.getRootNode().activeElement !== control) control.value = value;
  };

  function update() {
    const bench = model.get("_bench");
    if (!bench.form || bench.edit < edit) return; // an answer to an older edit
    const { form } = bench, isPairs = form.grouping === "pairs";
    options(axis, ["", ...bench.axes], (name) => name || (isPairs ? "all ranks" : "all axes"), form.axis);
    options(mode, bench.modes, (name) => name, form.mode);
    options(grouping, bench.groupings, (name) => GROUPINGS[name], form.grouping);
    options(sampling, bench.samplings, (name) => name, form.sampling);
    write(sizes, form.sizes);
    write(launches, form.launches);
    write(mesh, form.mesh);
    attribute(mesh, "placeholder", bench.mesh);
    const toggle = (name) => {
      const rest = form.collectives.filter((one) => one !== name);
      send({ collectives: rest.length < form.collectives.length ? (rest.length ? rest : form.collectives) : [...form.collectives, name] });
    };
    fill(collectives, [bench.collectives, form.collectives, isPairs], () => (isPairs ? ["send", "send_recv"] : bench.collectives).map((name) =>
      make("button", { type: "button", text: name, disabled: isPairs, "aria-pressed": String(isPairs || form.collectives.includes(name)), onclick: () => toggle(name) })));
    for (const [name, problem] of problems) {
      text(problem, bench.problems[name] ?? "");
      if (fields.get(name).tagName !== "DIV") attribute(fields.get(name), "aria-invalid", String(name in bench.problems));
    }
    fill(meshes, bench.meshes, () => bench.meshes.map((one) => make("button", { type: "button", text: `Use ${one}`, onclick: () => send({ mesh: one }) })));
    show(meshes, bench.meshes.length > 0);
    text(estimate, [bench.why, bench.estimate].filter(Boolean).join(" "));
    start.disabled = !bench.can_start;
  }
  return { root, update };
}

function panel(parts) {
  const { root: parent } = parts;
  const engines = enginesPanel(parts), form = formPanel(parts);
  const runBox = make("div"), monitorBox = make("div");
  const root = make("div", { class: "meshlab-run mr-measure" }, engines.root, form.root, runBox, monitorBox);
  parent.append(root);
  const isLive = typeof parts.model.send === "function"; // a saved page has no Python, so it only shows the run
  for (const part of [engines.root, form.root, monitorBox]) part.hidden = !isLive;
  const run = runPanel({ ...parts, root: runBox, shell: { ...parts.shell, hasRestart: true } }), monitor = monitorPanel({ ...parts, root: monitorBox });

  function update(changed) {
    const any = (...names) => !changed || names.some((name) => changed.has(name));
    if (any("_engines")) engines.update();
    if (any("_bench")) form.update();
    if (any(...runPanel.traits)) run.update(changed);
    if (any(...monitorPanel.traits)) monitor.update(changed);
  }
  update();
  return { update, destroy: () => (run.destroy(), monitor.destroy(), root.remove()) };
}
panel.traits = ["_engines", "_bench", ...runPanel.traits, ...monitorPanel.traits];
return panel;
})();
