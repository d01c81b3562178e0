// The load of every GPU, or of the processors of hosts without GPUs.

import { attribute, element, fill, setText, show, svg } from "./dom.js";

const ALIVE_MS = 20_000; // Python stops the readings if it does not hear from any page for a minute
const POINTS = 120;

export function monitorPanel({ model, root: parent, shell }) {
  let isOpen = Boolean(model.get("_monitor").rows);
  let timer = 0;
  const toggle = element("button", { type: "button", class: "ml-run-fold", onclick: () => setOpen(!isOpen) });
  const body = element("div", { class: "ml-run-monitor" });
  const waiting = element("div", { class: "ml-soft", text: "Waiting for the first reading …" });
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
    return { row, name, line, area, use, memory, bar, facts };
  }
  function paintRow(parts, one) {
    setText(parts.name, one.name);
    setText(parts.use, one.use);
    setText(parts.memory, one.memory);
    parts.bar.style.width = `${Math.min(100, 100 * one.memory_share)}%`;
    const first = POINTS - one.history.length;
    const points = one.history.map(
      (share, k) => `${first + k},${(23 - 22 * Math.max(0, Math.min(1, share))).toFixed(1)}`,
    );
    attribute(parts.line, "d", points.length > 1 ? `M${points.join("L")}` : "");
    attribute(parts.area, "d", points.length > 1 ? `M${first},24L${points.join("L")}V24Z` : "");
    fill(parts.facts, [one.facts, one.throttle], () => [
      ...one.facts.map(([name, value]) =>
        element("span", { class: "ml-run-fact" }, element("span", { class: "ml-soft", text: `${name} ` }), value),
      ),
      ...(one.throttle ? [element("b", { class: "ml-run-throttle", text: `▲ throttled: ${one.throttle}` })] : []),
    ]);
  }

  const head = element(
    "thead",
    {},
    element(
      "tr",
      {},
      ["Device", "Use, last 2 minutes", "", "Memory", ""].map((name) => element("th", { scope: "col", text: name })),
    ),
  );
  const list = element("tbody");
  const grid = element("table", {}, head, list);
  body.append(element("div", { class: "ml-run-scroll" }, grid));

  function update() {
    const found = model.get("_monitor").rows;
    setText(toggle, `${isOpen ? "▾" : "▸"} Monitor`);
    attribute(toggle, "aria-expanded", String(isOpen));
    show(body, isOpen && Boolean(found?.length));
    show(waiting, isOpen && !found?.length);
    if (!isOpen || !found) return;
    for (const [key, parts] of rows) {
      if (found.some((one) => one.key === key)) continue;
      parts.row.remove();
      rows.delete(key);
    }
    for (const one of found) {
      if (!rows.has(one.key)) {
        rows.set(one.key, makeRow());
        list.append(rows.get(one.key).row);
      }
      paintRow(rows.get(one.key), one);
    }
  }
  beat();
  update();
  return { update, destroy: () => (clearInterval(timer), root.remove()) };
}
monitorPanel.traits = ["_monitor"];
