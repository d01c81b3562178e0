// The load of every GPU, or of the processors of hosts without GPUs.

import { clamp } from "./layout.js";
import { attribute, div, element, fill, headOf, keepNodes, muted, setText, show, span, svg } from "./dom.js";

const ALIVE_MS = 20_000; // Python stops the readings if it does not hear from any page for a minute
const POINTS = 120;

function fillFacts(node, one) {
  fill(node, [one.facts, one.throttle], () => [
    ...one.facts.map(([name, value]) => span("ml-run-fact", muted(`${name} `), value)),
    ...(one.throttle ? [element("b", { class: "ml-run-throttle", text: `▲ throttled: ${one.throttle}` })] : []),
  ]);
}

export function monitorPanel({ model, root: parent, shell }) {
  let isOpen = Boolean(model.get("_monitor").rows);
  let timer = 0;
  const toggle = element("button", { type: "button", class: "ml-run-fold", onclick: () => setOpen(!isOpen) });
  const body = div("ml-run-monitor");
  const waiting = div("ml-soft", "Waiting for the first reading …");
  const root = element("section", { class: "ml-run-monitor-box", "aria-label": "Monitor" }, toggle, waiting, body);
  parent.append(root);
  const rows = new Map();

  function setOpen(wanted) {
    isOpen = wanted;
    shell.send({ type: isOpen ? "monitor.open" : "monitor.close" });
    beat();
    update();
  }
  function beat() {
    clearInterval(timer);
    if (isOpen) timer = setInterval(() => shell.send({ type: "monitor.alive" }), ALIVE_MS);
  }

  // A row is made once and then only changed, because readings arrive every second.
  function makeRow() {
    const name = element("th", { scope: "row" });
    const line = svg("path", { class: "ml-run-trace" });
    const area = svg("path", { class: "ml-run-area" });
    const picture = svg(
      "svg",
      { viewBox: `0 0 ${POINTS - 1} 24`, preserveAspectRatio: "none", "aria-hidden": "true" },
      area,
      line,
    );
    const use = element("td", { class: "ml-run-use" });
    const memory = element("span");
    const bar = element("i");
    const facts = element("td", { class: "ml-run-facts" });
    const row = element(
      "tr",
      {},
      name,
      element("td", { class: "ml-run-graph" }, picture),
      use,
      element(
        "td",
        { class: "ml-run-memory" },
        memory,
        element("div", { class: "ml-run-track", "aria-hidden": "true" }, bar),
      ),
      facts,
    );
    return { root: row, name, line, area, use, memory, bar, facts };
  }
  function paintRow(parts, one) {
    setText(parts.name, one.name);
    setText(parts.use, one.use);
    setText(parts.memory, one.memory);
    parts.bar.style.width = `${Math.min(100, 100 * one.memory_share)}%`;
    const first = POINTS - one.history.length;
    const points = one.history.map((share, k) => `${first + k},${(23 - 22 * clamp(share, 0, 1)).toFixed(1)}`);
    attribute(parts.line, "d", points.length > 1 ? `M${points.join("L")}` : "");
    attribute(parts.area, "d", points.length > 1 ? `M${first},24L${points.join("L")}V24Z` : "");
    fillFacts(parts.facts, one);
  }

  const head = headOf(["Device", "Use, last 2 minutes", "", "Memory", ""]);
  const list = element("tbody");
  const grid = element("table", {}, head, list);
  body.append(div("ml-run-scroll", grid));

  function update() {
    const { rows: found, is_paused: isPaused } = model.get("_monitor");
    setText(
      waiting,
      isPaused ? "The run records its hosts itself: see below its curve." : "Waiting for the first reading …",
    );
    setText(toggle, `${isOpen ? "▾" : "▸"} Monitor`);
    attribute(toggle, "aria-expanded", isOpen);
    show(body, isOpen && Boolean(found?.length));
    show(waiting, isOpen && !found?.length);
    if (!isOpen || !found) return;
    keepNodes(
      list,
      rows,
      found.map((one) => one.key),
      makeRow,
    );
    for (const one of found) paintRow(rows.get(one.key), one);
  }
  beat();
  update();
  return { update, destroy: () => (clearInterval(timer), root.remove()) };
}
monitorPanel.traits = ["_monitor"];

/**
 * The record of the hosts during a run: a row per device, all on the time axis of the run.
 * @param {{ model: Model, listen: Listen }} parts
 */
export function recordPanel({ model, listen }) {
  const marks = element("div", { class: "ml-load-marks", "aria-hidden": "true" });
  const rows = div("ml-load-rows");
  const axis = element("div", { class: "ml-load-axis ml-soft", "aria-hidden": "true" });
  const reading = div("ml-load-reading ml-soft");
  const legend = div(
    "ml-load-legend ml-soft",
    element("span", { text: "use" }),
    element("span", { class: "ml-load-of-traffic", text: "traffic of the NVLinks" }),
  );
  const root = element(
    "section",
    { class: "ml-load", "aria-label": "Hosts during the run" },
    div("ml-load-head", element("b", { text: "Hosts during the run" }), legend, reading),
    marks,
    rows,
    axis,
  );
  const made = new Map();

  function makeRow() {
    const name = element("b");
    const facts = div("ml-load-facts");
    const area = svg("path", { class: "ml-run-area" });
    const line = svg("path", { class: "ml-run-trace" });
    const traffic = svg("path", { class: "ml-load-traffic" });
    const hot = svg("path", { class: "ml-load-hot" });
    const strip = svg(
      "svg",
      { viewBox: "0 0 1000 24", preserveAspectRatio: "none", "aria-hidden": "true" },
      hot,
      area,
      traffic,
      line,
    );
    const cells = element("canvas", { "aria-hidden": "true" });
    const node = div("ml-load-row", name, div("ml-load-strip", strip, cells), facts);
    return { root: node, name, facts, area, line, traffic, hot, cells };
  }

  // Every core is a line of cells, because a host may have a hundred.
  function paintCells(canvas, { cells, times }, end) {
    show(canvas, Boolean(cells) && cells.length > 1);
    if (!cells || cells.length < 2) return;
    const high = clamp(Math.floor(96 / cells.length), 2, 6);
    [canvas.width, canvas.height] = [1000, high * cells.length];
    canvas.style.height = `${canvas.height}px`;
    const pen = canvas.getContext("2d");
    const { color } = getComputedStyle(canvas);
    pen.fillStyle = color;
    cells.forEach((values, k) =>
      values.forEach((percent, at) => {
        const from = at ? times[at - 1] : 0;
        pen.globalAlpha = Math.min(1, percent / 100);
        const left = Math.round((1000 * from) / end);
        pen.fillRect(left, k * high, Math.max(1, Math.round((1000 * times[at]) / end) - left), high - 1);
      }),
    );
  }

  function paintRow(parts, one, end) {
    setText(parts.name, one.name);
    fillFacts(parts.facts, one);
    const x = (seconds) => (1000 * seconds) / end;
    const path = (values, top) => {
      // A value is that of the time since the reading before, so it is drawn as a step.
      const steps = values.map((value, k) => {
        const y = (23 - 22 * clamp(value / top, 0, 1)).toFixed(1);
        return `${k ? "L" : "M"}${x(k ? one.times[k - 1] : 0).toFixed(1)},${y}H${x(one.times[k]).toFixed(1)}`;
      });
      return steps.join("");
    };
    const line = path(one.values, one.top);
    attribute(parts.line, "d", line);
    attribute(parts.area, "d", line ? `${line}V24H0Z` : "");
    attribute(parts.traffic, "d", one.traffic ? path(one.traffic, Math.max(...one.traffic, 1e-9)) : "");
    const from = (time) => one.times[one.times.indexOf(time) - 1] ?? 0;
    attribute(
      parts.hot,
      "d",
      one.throttled.map((time) => `M${x(from(time))},0H${x(time)}V24H${x(from(time))}Z`).join(""),
    );
    paintCells(parts.cells, one, end);
  }

  listen(rows, "pointermove", (event) => {
    const strip = event.target.closest(".ml-load-row")?.querySelector(".ml-load-strip");
    const { rows: known, end_s: end, marks: changes } = model.get("_load");
    if (!strip || !known) return;
    const box = strip.getBoundingClientRect();
    const time = clamp((event.clientX - box.left) / box.width, 0, 1) * end;
    const one = known[[...rows.children].indexOf(strip.parentElement)];
    const k = one.times.findIndex((at) => at >= time);
    const step = changes.filter(([at]) => at <= time).at(-1)?.[1];
    setText(
      reading,
      k < 0
        ? ""
        : [`${one.name} at ${time.toFixed(1)} s: ${Number(one.values[k].toPrecision(3))} ${one.unit}`, step]
            .filter(Boolean)
            .join(" · "),
    );
  });
  listen(rows, "pointerleave", () => setText(reading, ""));

  function update() {
    const { rows: known = [], end_s: end = 1, marks: changes = [] } = model.get("_load") ?? {};
    show(root, known.length > 0);
    show(
      legend,
      known.some((one) => one.traffic),
    );
    keepNodes(
      rows,
      made,
      known.map((one) => one.key),
      makeRow,
    );
    for (const one of known) paintRow(made.get(one.key), one, end);
    const share = (k) => ((changes[k + 1]?.[0] ?? end) - changes[k][0]) / end;
    fill(marks, [changes, end], () =>
      changes.map(([at, label], k) =>
        element("span", {
          style: `left:${(100 * at) / end}%;width:${100 * share(k)}%`,
          title: label,
          text: share(k) > 0.12 ? label : "",
        }),
      ),
    );
    fill(axis, [end], () =>
      [0, 0.25, 0.5, 0.75, 1].map((share) => element("span", { text: `${Number((share * end).toPrecision(3))} s` })),
    );
  }
  update();
  return { root, update };
}
