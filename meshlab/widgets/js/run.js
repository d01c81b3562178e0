// One run: its state and controls, the chart, the lateness of the ranks, and the tabs of a run that has ended.

const runPanel = (() => {
const { make, svg, text, show, attribute, fill, table, numbers } = dom;
const SIGNS = { running: "●", paused: "❚❚", done: "✓", cancelled: "■", interrupted: "■", failed: "✕" };
const MOST_NAMED_CELLS = 24; // ranks of a matrix that shows its numbers
const MATRIX_PX = 420;
const NO_CURVE = { lines: [], points: new DataView(new ArrayBuffer(0)), palette: [], references: {}, height: 320, title: "", note: "" };
// Eleven colours of viridis, from low to high.
const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];

function panel({ model, root: parent, listen, shell }) {
  const button = (label, title, type) => make("button", { type: "button", text: label, title, onclick: () => shell.send({ type }) });
  const headline = make("span", { class: "mr-headline" }), sign = make("span", { class: "mr-sign", "aria-hidden": "true" });
  const pause = button("Pause", "Pause after the current step. The ranks stay reserved.", "run.pause");
  const resume = button("Resume", "Continue with the next step.", "run.resume");
  const stop = button("Stop after this step", "Finish the current step, then stop. The results are kept.", "run.stop");
  const end = make("button", { type: "button", text: "End the ranks", title: "Kill the ranks now. The results of finished steps are kept. Asks first.", onclick: () => ask(true) });
  const really = make("button", { type: "button", class: "mr-danger", text: "End the ranks", onclick: () => (ask(false), shell.send({ type: "run.end" })) });
  const keep = make("button", { type: "button", text: "Keep running", onclick: () => (ask(false), end.focus()) });
  const question = make("div", { class: "mr-question", role: "alertdialog", hidden: true, "aria-label": "End the ranks?" },
    make("b", { text: "End the ranks? The current step is lost, and the engines must be restarted." }), really, keep);
  const fillBar = make("i"), bar = make("div", { class: "mr-progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, fillBar);
  const step = make("div", { class: "mr-step" }), alert = make("div", { class: "mr-alert", role: "alert" }), note = make("div", { class: "mr-soft" });
  const restart = make("button", { type: "button", class: "mr-main", text: "Restart", title: "Start new ranks in place of these.", onclick: () => shell.send({ type: "run.restart" }) });
  const tabs = make("div", { class: "mr-tabs", role: "tablist", "aria-label": "Views of the run" });
  const chartBox = make("div", { role: "tabpanel" }), detail = make("div", { class: "mr-detail", role: "tabpanel" }), strip = make("div", { class: "mr-strip" });
  const controls = make("div", { class: "mr-controls" }, pause, resume, stop, end);
  const root = make("div", { class: "mr-run" },
    make("div", { class: "mr-head" }, make("div", { class: "mr-state" }, sign, headline), controls),
    question, bar, step, make("div", { class: "mr-failed" }, alert, restart), note, tabs, chartBox, detail, strip);
  parent.append(root);
  const chart = curveChart({ el: chartBox, get: (name) => model.get("_curve")[name] ?? NO_CURVE[name] });
  let chosen = "curve", shownRun = null;

  function ask(isAsked) {
    show(question, isAsked);
    if (isAsked) keep.focus();
  }

  function choose(name, isByKey) {
    chosen = name;
    paintTabs();
    if (isByKey) tabs.querySelector("[aria-selected=true]")?.focus();
  }

  listen(tabs, "keydown", (event) => {
    const names = ["curve", ...model.get("_details").map((one) => one.name)];
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    choose(names[(names.indexOf(chosen) + move + names.length) % names.length], true);
  });
  listen(question, "keydown", (event) => event.key === "Escape" && (event.stopPropagation(), ask(false), end.focus()));

  function paintState() {
    const run = model.get("_run");
    show(root, Boolean(run.id));
    if (!run.id) return;
    if (run.id !== shownRun) [shownRun, chosen] = [run.id, "curve"];
    attribute(root, "data-state", run.state);
    text(sign, SIGNS[run.state]);
    text(headline, run.headline);
    text(step, run.step);
    fillBar.style.width = `${100 * run.share}%`;
    attribute(bar, "aria-valuenow", Math.round(100 * run.share));
    attribute(bar, "aria-label", run.headline);
    const errors = [run.error && `Failed: ${run.error}`, run.alert].filter(Boolean);
    fill(alert, errors, () => errors.map((one) => make("div", { text: one })));
    show(restart, run.can_restart && !shell.hasRestart);
    text(note, run.note ?? "");
    show(controls, !run.has_ended && typeof model.send === "function");
    const isPausing = run.is_pausing || run.state === "paused";
    // A button that is hidden loses the focus, and the keyboard's place with it.
    const held = root.getRootNode().activeElement;
    show(pause, !isPausing);
    show(resume, isPausing);
    if (held === pause && isPausing) resume.focus();
    if (held === resume && !isPausing) pause.focus();
    pause.disabled = resume.disabled = stop.disabled = run.level > 0;
    end.disabled = run.level > 1;
    if (run.has_ended || run.level > 1) ask(false);
  }

  function paintTabs() {
    const details = model.get("_details"), names = details.map((one) => one.name);
    if (chosen !== "curve" && !names.includes(chosen)) chosen = "curve";
    show(tabs, names.length > 0);
    fill(tabs, [chosen, names], () => [["curve", "Curve"], ...details.map((one) => [one.name, one.label])].map(([name, label]) =>
      make("button", { type: "button", role: "tab", text: label, "aria-selected": String(name === chosen), tabindex: name === chosen ? 0 : -1, onclick: () => choose(name) })));
    show(chartBox, chosen === "curve");
    show(detail, chosen !== "curve");
    const one = details.find((each) => each.name === chosen);
    if (one) fill(detail, [shownRun, one.name, one.text], () => [
      make("div", { class: "mr-verdict", text: one.text }),
      one.note ? make("div", { class: "mr-soft", text: one.note }) : [],
      one.matrix ? matrix(one.matrix) : one.rows.length ? table(one, "") : [],
    ].flat());
  }

  function paintStrip() {
    const late = model.get("_late");
    show(strip, Boolean(late.ranks));
    if (!late.ranks) return;
    fill(strip, [late.text, late.step, late.values], () => {
      const n = late.values.length, most = Math.max(...late.values), worst = late.values.indexOf(most);
      const bars = late.values.map((value, k) => `M${k + 0.1},24V${(24 - Math.max(1, (23 * value) / (most || 1))).toFixed(2)}H${k + 0.9}V24Z`);
      const picture = svg("svg", { viewBox: `0 0 ${n} 24`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "mr-bars", d: bars.filter((_, k) => k !== worst).join("") }), svg("path", { class: "mr-worst", d: bars[worst] }));
      const named = n <= 32 ? [make("div", { class: "mr-ranks", "aria-hidden": "true" }, late.ranks.map((rank) => make("span", { text: rank })))] : [];
      return [
        make("div", {}, make("b", { text: "Arrival of the ranks" }), make("span", { class: "mr-soft", text: ` ${late.step} · ${late.text}` })),
        make("div", { class: "mr-lateness", style: `max-width: ${Math.max(120, 28 * n)}px` }, picture, ...named),
      ];
    });
  }

  function update(changed) {
    const any = (...names) => !changed || names.some((name) => changed.has(name));
    if (any("_run")) paintState();
    if (any("_run", "_details")) paintTabs();
    if (any("_late")) paintStrip();
    if (any("_curve")) chart.update();
  }
  update();
  return { update, destroy: () => (chart.destroy(), root.remove()) };
}
panel.traits = ["_run", "_curve", "_late", "_details"];

function matrix({ ranks, values, slow, low, high, unit }) {
  const n = ranks.length, cells = numbers(values, Float32Array), size = Math.min(MATRIX_PX, Math.max(140, 34 + 56 * n));
  const isNamed = n <= MOST_NAMED_CELLS, edge = isNamed ? 34 : 18, scale = (size - edge) / n;
  const picture = svg("svg", { class: "mr-matrix", viewBox: `0 0 ${size} ${size}`, style: `max-width:${size}px`, role: "img", "aria-label": `Matrix of ${n} ranks, from ${low.toPrecision(3)} to ${high.toPrecision(3)} ${unit}` });
  const colour = (value) => VIRIDIS[Math.round(Math.max(0, Math.min(1, (value - low) / (high - low || 1))) * (VIRIDIS.length - 1))];
  // Cells of one colour are one path, so that 256 ranks are eleven elements and not 65,536.
  const paths = new Map(), texts = [];
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
    const value = cells[i * n + j];
    if (!Number.isFinite(value)) continue;
    const x = edge + j * scale, y = edge + i * scale, gap = isNamed ? 1 : 0;
    paths.set(colour(value), `${paths.get(colour(value)) ?? ""}M${x.toFixed(1)},${y.toFixed(1)}h${(scale - gap).toFixed(1)}v${(scale - gap).toFixed(1)}h${(gap - scale).toFixed(1)}Z`);
    if (isNamed && scale >= 30) texts.push(svg("text", { x: x + scale / 2, y: y + scale / 2 + 4, "text-anchor": "middle", fill: value > low + 0.6 * (high - low) ? "#14171a" : "#ffffff" }, value.toPrecision(3).replace(/\.?0+$/, "")));
  }
  for (const [fillColour, d] of paths) picture.append(svg("path", { d, fill: fillColour }));
  picture.append(...texts);
  for (const [i, j] of slow) picture.append(svg("rect", { class: "mr-slow", x: edge + j * scale + 1, y: edge + i * scale + 1, width: Math.max(1, scale - 3), height: Math.max(1, scale - 3) }));
  const every = Math.max(1, Math.ceil(20 / scale));
  ranks.forEach((rank, k) => {
    if (k % every) return;
    picture.append(svg("text", { class: "mr-end", x: edge + (k + 0.5) * scale, y: edge - 6, "text-anchor": "middle" }, rank), svg("text", { class: "mr-end", x: edge - 6, y: edge + (k + 0.5) * scale + 4, "text-anchor": "end" }, rank));
  });
  const ramp = make("div", { class: "mr-ramp", "aria-hidden": "true" }, make("span", { text: low.toPrecision(3) }), make("i", { style: `background:linear-gradient(90deg, ${VIRIDIS.join(",")})` }), make("span", { text: `${high.toPrecision(3)} ${unit}` }));
  return make("div", { class: "mr-matrixbox" }, picture, ramp);
}

return panel;
})();
