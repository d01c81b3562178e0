// The load of every GPU, or of the processors of hosts without GPUs.

const monitorPanel = (() => {
const { make, svg, text, show, attribute, fill } = dom;
const ALIVE_MS = 20_000; // Python stops the readings if it does not hear from any page for a minute
const POINTS = 120;

function panel({ model, root: parent, shell }) {
  let isOpen = Boolean(model.get("_monitor").rows), timer = 0;
  const toggle = make("button", { type: "button", class: "mr-fold", onclick: () => setOpen(!isOpen) });
  const body = make("div", { class: "mr-monitor" }), waiting = make("div", { class: "mr-soft", text: "Waiting for the first reading …" });
  const root = make("section", { class: "mr-monitorbox", "aria-label": "Monitor" }, toggle, waiting, body);
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
    const name = make("th", { scope: "row" }), line = svg("path", { class: "mr-trace" }), area = svg("path", { class: "mr-area" });
    const picture = svg("svg", { viewBox: `0 0 ${POINTS - 1} 24`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
    const use = make("td", { class: "mr-use" }), memory = make("span"), bar = make("i"), facts = make("td", { class: "mr-facts" });
    const row = make("tr", {}, name, make("td", { class: "mr-graph" }, picture), use,
      make("td", { class: "mr-memory" }, memory, make("div", { class: "mr-track", "aria-hidden": "true" }, bar)), facts);
    return { row, name, line, area, use, memory, bar, facts };
  }
  function paintRow(parts, one) {
    text(parts.name, one.name);
    text(parts.use, one.use);
    text(parts.memory, one.memory);
    parts.bar.style.width = `${Math.min(100, 100 * one.memory_share)}%`;
    const first = POINTS - one.history.length;
    const points = one.history.map((share, k) => `${first + k},${(23 - 22 * Math.max(0, Math.min(1, share))).toFixed(1)}`);
    attribute(parts.line, "d", points.length > 1 ? `M${points.join("L")}` : "");
    attribute(parts.area, "d", points.length > 1 ? `M${first},24L${points.join("L")}V24Z` : "");
    fill(parts.facts, [one.facts, one.throttle], () => [
      ...one.facts.map(([name, value]) => make("span", { class: "mr-fact" }, make("span", { class: "mr-soft", text: `${name} ` }), value)),
      ...(one.throttle ? [make("b", { class: "mr-throttle", text: `▲ throttled: ${one.throttle}` })] : []),
    ]);
  }

  const head = make("thead", {}, make("tr", {}, ["Device", "Use, last 2 minutes", "", "Memory", ""].map((name) => make("th", { scope: "col", text: name }))));
  const list = make("tbody"), grid = make("table", {}, head, list);
  body.append(make("div", { class: "mr-scroll" }, grid));

  function update() {
    const found = model.get("_monitor").rows;
    text(toggle, `${isOpen ? "▾" : "▸"} Monitor`);
    attribute(toggle, "aria-expanded", String(isOpen));
    show(body, isOpen && Boolean(found?.length));
    show(waiting, isOpen && !found?.length);
    if (!isOpen || !found) return;
    for (const [key, parts] of rows) if (!found.some((one) => one.key === key)) (parts.row.remove(), rows.delete(key));
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
panel.traits = ["_monitor"];
return panel;
})();
