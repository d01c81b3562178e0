// One run: its state and controls, the chart, the lateness of the ranks, and the tabs of a run that has ended.

import { clamp } from "./layout.js";
import { VIRIDIS } from "./colors.js";
import { curveChart } from "./curve.js";
import { unpack } from "./data.js";
import {
  alertBox,
  attribute,
  button,
  consume,
  div,
  element,
  fill,
  find,
  focusIn,
  muted,
  setText,
  show,
  span,
  svg,
} from "./dom.js";
import { recordPanel } from "./monitor.js";
import { joined } from "./text.js";

export const SIGNS = { running: "●", paused: "❚❚", done: "✓", cancelled: "■", interrupted: "■", failed: "✕" };
const MOST_NAMED_CELLS = 24; // ranks of a matrix that shows its numbers
const MATRIX_PX = 420;
const NO_CURVE = {
  lines: [],
  points: new DataView(new ArrayBuffer(0)),
  palette: [],
  references: {},
  height: 320,
  title: "",
  note: "",
};
/**
 * The table of a result. Rows with a mark stand out.
 * @param {{ columns: string[], rows: (string | number)[][], left: number, more: string }} result
 */
export function resultTable({ columns, rows, left, more }) {
  const cell = (tag, value, k) =>
    element(tag, { text: value, class: k < left ? "ml-run-left" : null, scope: tag === "th" ? "col" : null });
  const isHot = (row) => row.some((value) => String(value).startsWith("▲"));
  const grid = element(
    "table",
    { class: "ml-run-table" },
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        columns.map((name, k) => cell("th", name, k)),
      ),
    ),
    element(
      "tbody",
      {},
      rows.map((row) =>
        element(
          "tr",
          { class: isHot(row) ? "ml-run-hot" : null },
          row.map((value, k) => cell("td", value, k)),
        ),
      ),
    ),
  );
  return div("ml-run-scroll", grid, more ? div("ml-soft", more) : []);
}

export function runPanel({ model, root: parent, listen, shell }) {
  const command = (label, title, type) => button(label, { title, onclick: () => shell.send({ type }) });
  const headline = span("ml-run-headline");
  const sign = element("span", { class: "ml-run-sign", "aria-hidden": "true" });
  const pause = command("Pause", "Pause after the current step. The ranks stay reserved.", "run.pause");
  const resume = command("Resume", "Continue with the next step.", "run.resume");
  const stop = command("Stop after this step", "Finish the current step, then stop. The results are kept.", "run.stop");
  const end = button("Kill the ranks", {
    title: "Kill the ranks now. The results of finished steps are kept. Asks first.",
    onclick: () => ask(true),
  });
  const really = button("Kill the ranks", {
    class: "ml-run-danger",
    onclick: () => (ask(false), shell.send({ type: "run.end" })),
  });
  const keep = button("Keep running", { onclick: () => (ask(false), end.focus()) });
  const question = element(
    "div",
    { class: "ml-run-question", role: "alertdialog", hidden: true, "aria-label": "Kill the ranks?" },
    element("b", { text: "Kill the ranks? The current step is lost, and the engines must be restarted." }),
    really,
    keep,
  );
  const fillBar = element("i");
  const bar = element(
    "div",
    { class: "ml-run-progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 },
    fillBar,
  );
  const step = div("ml-run-step");
  const alert = alertBox();
  const note = div("ml-soft");
  const restart = button("Restart", {
    class: "ml-run-main",
    title: "Replace these ranks with new ones.",
    onclick: () => shell.send({ type: "run.restart" }),
  });
  const tabs = element("div", { class: "ml-run-tabs", role: "tablist", "aria-label": "Views of the run" });
  const chartBox = element("div", { role: "tabpanel" });
  const detail = element("div", { class: "ml-run-detail", role: "tabpanel" });
  const strip = div("ml-run-strip");
  const controls = div("ml-run-controls", pause, resume, stop, end);
  const root = div(
    "ml-run",
    div("ml-run-head", div("ml-run-state", sign, headline), controls),
    question,
    bar,
    step,
    div("ml-run-failed", alert, restart),
    note,
    tabs,
    chartBox,
    detail,
    strip,
  );
  parent.append(root);
  const overlays = overlayMenu({ model, shell });
  const chart = switchedChart({ el: chartBox, curve: () => model.get("_curve"), tools: [overlays.root] });
  const record = recordPanel({ model, listen });
  chartBox.append(record.root);
  let chosen = "curve";
  let shownRun = null;

  function ask(isAsked) {
    show(question, isAsked);
    if (isAsked) keep.focus();
  }

  function choose(name, isByKey) {
    chosen = name;
    paintTabs();
    if (isByKey) find(tabs, "[aria-selected=true]")?.focus();
  }

  listen(tabs, "keydown", (event) => {
    const names = ["curve", ...model.get("_details").map((one) => one.name)];
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    consume(event);
    choose(names[(names.indexOf(chosen) + move + names.length) % names.length], true);
  });
  listen(question, "keydown", (event) => event.key === "Escape" && (event.stopPropagation(), ask(false), end.focus()));

  function paintState() {
    const run = model.get("_run");
    show(root, Boolean(run.id));
    if (!run.id) return;
    if (run.id !== shownRun) [shownRun, chosen] = [run.id, "curve"];
    attribute(root, "data-state", run.state);
    setText(sign, run.verdict ? "!" : SIGNS[run.state]);
    setText(headline, joined(" · ", [run.verdict, run.headline]));
    setText(step, run.step);
    fillBar.style.width = `${100 * run.share}%`;
    attribute(bar, "aria-valuenow", Math.round(100 * run.share));
    attribute(bar, "aria-label", run.headline);
    const errors = [run.error && `Failed: ${run.error}`, run.alert].filter(Boolean);
    fill(alert, errors, () => errors.map((one) => element("div", { text: one })));
    show(restart, run.can_restart && !shell.hasRestart);
    setText(note, run.note ?? "");
    show(controls, !run.has_ended && typeof model.send === "function");
    const isPausing = run.is_pausing || run.state === "paused";
    // A button that is hidden loses the focus, and the keyboard's place with it.
    const held = focusIn(root);
    show(pause, !isPausing);
    show(resume, isPausing);
    if (held === pause && isPausing) resume.focus();
    if (held === resume && !isPausing) pause.focus();
    pause.disabled = resume.disabled = stop.disabled = run.level > 0;
    end.disabled = run.level > 1;
    if (run.has_ended || run.level > 1) ask(false);
  }

  function paintTabs() {
    const details = model.get("_details");
    const names = details.map((one) => one.name);
    if (chosen !== "curve" && !names.includes(chosen)) chosen = "curve";
    show(tabs, names.length > 0);
    fill(tabs, [chosen, names], () =>
      [["curve", "Curve"], ...details.map((one) => [one.name, one.label])].map(([name, label]) =>
        button(label, {
          role: "tab",
          "aria-selected": String(name === chosen),
          tabindex: name === chosen ? 0 : -1,
          onclick: () => choose(name),
        }),
      ),
    );
    show(chartBox, chosen === "curve");
    show(detail, chosen !== "curve");
    const one = details.find((each) => each.name === chosen);
    if (one) {
      fill(detail, [shownRun, one.name, one.text], () =>
        [
          div("ml-run-verdict", one.text),
          one.note ? div("ml-soft", one.note) : [],
          one.matrix ? matrix(one.matrix) : one.rows.length ? resultTable(one) : [],
        ].flat(),
      );
    }
  }

  function paintStrip() {
    const late = model.get("_late");
    show(strip, Boolean(late.ranks));
    if (!late.ranks) return;
    fill(strip, [late.text, late.step, late.values], () => {
      const n = late.values.length;
      const most = Math.max(...late.values);
      const worst = late.values.indexOf(most);
      const bars = late.values.map(
        (value, k) => `M${k + 0.1},24V${(24 - Math.max(1, (23 * value) / (most || 1))).toFixed(2)}H${k + 0.9}V24Z`,
      );
      const picture = svg(
        "svg",
        { viewBox: `0 0 ${n} 24`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "ml-run-bars", d: bars.filter((_, k) => k !== worst).join("") }),
        svg("path", { class: "ml-run-worst", d: bars[worst] }),
      );
      const named =
        n <= 32
          ? [
              element(
                "div",
                { class: "ml-run-ranks", "aria-hidden": "true" },
                late.ranks.map((rank) => element("span", { text: rank })),
              ),
            ]
          : [];
      return [
        element("div", {}, element("b", { text: "Arrival of the ranks" }), muted(` ${late.step} · ${late.text}`)),
        element("div", { class: "ml-run-lateness", style: `max-width: ${Math.max(120, 28 * n)}px` }, picture, ...named),
      ];
    });
  }

  function update(changed) {
    const any = (...names) => !changed || names.some((name) => changed.has(name));
    if (any("_run")) paintState();
    if (any("_run", "_details")) paintTabs();
    if (any("_late")) paintStrip();
    if (any("_curve")) chart.update();
    if (any("_runs", "_run")) overlays.update();
    if (any("_load")) record.update();
  }
  update();
  return { update, destroy: () => (chart.destroy(), root.remove()) };
}
runPanel.traits = ["_run", "_curve", "_late", "_details", "_load"];

/**
 * A chart with a switch between bandwidth and latency, whose scales are both logarithmic.
 * @param {{ el: HTMLElement, curve: () => Record<string, any>, tools?: HTMLElement[] }} parts
 */
export function switchedChart({ el, curve, tools = [] }) {
  let quantity = "bandwidth";
  const names = ["bandwidth", "latency"];
  const buttons = names.map((name) =>
    button(`${name[0].toUpperCase()}${name.slice(1)}`, { onclick: () => ((quantity = name), paint(), chart.update()) }),
  );
  const choice = element("div", { class: "ml-run-switch", role: "group", "aria-label": "Quantity" }, buttons);
  const box = element("div");
  el.append(div("ml-run-chart-head", choice, tools), box);
  const paint = () => buttons.forEach((one, k) => attribute(one, "aria-pressed", names[k] === quantity));
  const chart = curveChart({
    el: box,
    get: (name) => (quantity === "latency" ? curve().latency?.[name] : undefined) ?? curve()[name] ?? NO_CURVE[name],
  });
  const update = () => {
    show(choice, Boolean(curve().latency));
    chart.update();
  };
  paint();
  show(choice, Boolean(curve().latency));
  return { update, destroy: chart.destroy };
}

// The other runs that can be drawn next to the one that is shown. A view of one run has none.
function overlayMenu({ model, shell }) {
  const list = div("ml-run-overlays");
  const summary = element("summary", { text: "Overlay" });
  const root = element("details", { class: "ml-run-overlay" }, summary, list);
  const fold = () => show(list, root.open);
  root.addEventListener("toggle", fold);
  fold();
  function update() {
    const { rows = [], overlaid = [], shown } = model.get("_runs") ?? {};
    const others = rows.filter((one) => one.key !== shown && one.run_id !== shown);
    show(root, others.length > 0 && typeof model.send === "function");
    setText(summary, overlaid.length ? `Overlay: ${overlaid.length}` : "Overlay");
    fill(list, [others, overlaid], () =>
      others.map((one) => {
        const box = element("input", {
          type: "checkbox",
          onchange: (event) => {
            const rest = overlaid.filter((key) => key !== one.key);
            shell.send({ type: "run.overlay", keys: event.target.checked ? [...rest, one.key] : rest });
          },
        });
        box.checked = overlaid.includes(one.key);
        return element("label", {}, box, one.name, muted(` ${one.mesh} · ${one.date}`));
      }),
    );
  }
  update();
  return { root, update };
}

function matrix({ ranks, values, slow, low, high, unit }) {
  const n = ranks.length;
  const cells = unpack(values, Float32Array);
  const size = Math.min(MATRIX_PX, Math.max(140, 34 + 56 * n));
  const isNamed = n <= MOST_NAMED_CELLS;
  const edge = isNamed ? 34 : 18;
  const scale = (size - edge) / n;
  const picture = svg("svg", {
    class: "ml-run-matrix",
    viewBox: `0 0 ${size} ${size}`,
    style: `max-width:${size}px`,
    role: "img",
    "aria-label": `Matrix of ${n} ranks, from ${low.toPrecision(3)} to ${high.toPrecision(3)} ${unit}`,
  });
  const colour = (value) => VIRIDIS[Math.round(clamp((value - low) / (high - low || 1), 0, 1) * (VIRIDIS.length - 1))];
  // Cells of one colour are one path, so that 256 ranks are eleven elements and not 65,536.
  const paths = new Map();
  const texts = [];
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      const value = cells[i * n + j];
      if (!Number.isFinite(value)) continue;
      const x = edge + j * scale;
      const y = edge + i * scale;
      const gap = isNamed ? 1 : 0;
      paths.set(
        colour(value),
        `${paths.get(colour(value)) ?? ""}M${x.toFixed(1)},${y.toFixed(1)}h${(scale - gap).toFixed(1)}v${(scale - gap).toFixed(1)}h${(gap - scale).toFixed(1)}Z`,
      );
      if (isNamed && scale >= 30) {
        texts.push(
          svg(
            "text",
            {
              x: x + scale / 2,
              y: y + scale / 2 + 4,
              "text-anchor": "middle",
              fill: value > low + 0.6 * (high - low) ? "#14171a" : "#ffffff",
            },
            value.toPrecision(3).replace(/\.?0+$/, ""),
          ),
        );
      }
    }
  }
  for (const [fillColour, d] of paths) picture.append(svg("path", { d, fill: fillColour }));
  picture.append(...texts);
  for (const [i, j] of slow) {
    picture.append(
      svg("rect", {
        class: "ml-run-slow",
        x: edge + j * scale + 1,
        y: edge + i * scale + 1,
        width: Math.max(1, scale - 3),
        height: Math.max(1, scale - 3),
      }),
    );
  }
  const every = Math.max(1, Math.ceil(20 / scale));
  ranks.forEach((rank, k) => {
    if (k % every) return;
    picture.append(
      svg("text", { class: "ml-run-end", x: edge + (k + 0.5) * scale, y: edge - 6, "text-anchor": "middle" }, rank),
      svg("text", { class: "ml-run-end", x: edge - 6, y: edge + (k + 0.5) * scale + 4, "text-anchor": "end" }, rank),
    );
  });
  const ramp = element(
    "div",
    { class: "ml-run-ramp", "aria-hidden": "true" },
    element("span", { text: low.toPrecision(3) }),
    element("i", { style: `background:linear-gradient(90deg, ${VIRIDIS.join(",")})` }),
    element("span", { text: `${high.toPrecision(3)} ${unit}` }),
  );
  return div("ml-run-matrix-box", picture, ramp);
}
