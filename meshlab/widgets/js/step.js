// The step of the job on the layout on the screen: its time, its memory, what limits it, and its parts as a bar.

import { percent } from "./text.js";
import { button, div, element, refill, muted } from "./dom.js";
import { disclosure } from "./fields.js";

export function stepPanel({ model, root, listen, shell }) {
  const head = element("div", {});
  const table = element("div", {});
  const details = disclosure("Parts of the step", listen, table);
  const figures = div("ml-trace-body");
  const routes = disclosure("Routing of the experts", listen, figures);
  const box = element(
    "div",
    { class: "ml-step-box", role: "group", "aria-label": "Step of the job", hidden: true },
    head,
    details,
    routes,
  );
  root.append(box);

  function partsTable(step) {
    const rows = step.parts.map((part) =>
      element(
        "tr",
        {},
        element(
          "th",
          { scope: "row" },
          element("i", { class: `ml-swatch ml-part-${part.name}`, "aria-hidden": "true" }),
          part.label,
        ),
        element("td", { class: "ml-n", text: part.text }),
        element("td", { text: part.why }),
      ),
    );
    return element("table", { class: "ml-numbers ml-step-table" }, element("tbody", {}, ...rows));
  }

  function bar(step) {
    const parts = step.parts.flatMap(({ name, label, low, high, text }) => [
      element("i", { class: `ml-part-${name}`, style: `width:${percent(low)}`, title: `${label} ${text}` }),
      ...(high > low
        ? [
            element("i", {
              class: `ml-part-${name} ml-may-hide`,
              style: `width:${percent(high - low)}`,
              title: `${label} ${text}: a schedule may hide this part`,
            }),
          ]
        : []),
    ]);
    return element("div", { class: "ml-step-bar", "aria-hidden": "true" }, ...parts);
  }

  function fixable(kind, text, { fix, edits }) {
    const apply = edits.length && shell.isLive ? [button("Apply", { title: `Change the job: ${fix}.` })] : [];
    return element("p", { class: kind }, element("span", { text: `${text} ` }), ...apply);
  }

  listen(head, "click", (event) => {
    const { edits } = model.get("_job").step ?? {};
    if (event.target.closest("button") && edits) shell.edit({ action: "job_field", fields: edits, where: "job" });
  });

  listen(routes, "toggle", () => shell.send({ type: "routing", open: routes.open }));

  return {
    update() {
      const { step, routing = null } = model.get("_job");
      routes.hidden = shell.isLive ? routing === null : !routing;
      if (figures.innerHTML !== routing) figures.innerHTML = routing; // escaped by Python
      box.hidden = !step;
      details.hidden = !step || Boolean(step.problem);
      if (!step) return;
      if (step.problem) {
        const fix = step.fix ? ` ${step.fix[0].toUpperCase()}${step.fix.slice(1)}.` : "";
        return refill(head, fixable("ml-problem", `${step.problem}.${fix}`, step));
      }
      const parts = step.memory_parts.map(([name, , text]) => `${name} ${text}`).join(", ");
      const memory = `${step.fits ? "" : "✕ "}${step.memory}`;
      refill(
        head,
        element(
          "p",
          { class: "ml-step-line" },
          element("b", { text: step.time }),
          element("span", { class: step.fits ? "" : "ml-bad", title: parts, text: memory }),
          muted(step.mfu),
        ),
        ...(step.fits ? [] : [fixable("ml-bad", `It does not fit: ${step.fix}.`, step)]),
        bar(step),
        element("p", { class: "ml-soft", text: `${step.limit}. ${step.caveat}` }),
      );
      refill(table, partsTable(step));
    },
    destroy() {},
  };
}

stepPanel.traits = ["_job"];
