// The runs of this session and of a folder. Two that are picked are compared.

import { element, fill, focusIn, setText, show } from "./dom.js";
import { SIGNS, resultTable } from "./run.js";

export function runsPanel({ model, root: parent, listen, shell }) {
  let picked = [];
  const folder = element("input", {
    type: "text",
    name: "folder",
    "aria-label": "Folder of runs",
    placeholder: "folder of saved runs",
    autocomplete: "off",
    spellcheck: "false",
  });
  const list = element("button", {
    type: "button",
    text: "List",
    onclick: () => shell.send({ type: "run.folder", folder: folder.value }),
  });
  const note = element("div", { class: "ml-soft" });
  const alert = element("div", { class: "ml-run-alert", role: "alert" });
  const body = element("tbody");
  const columns = ["", "run", "best busbw", "measured", "where and when (UTC)", ""];
  const head = element(
    "thead",
    {},
    element(
      "tr",
      {},
      columns.map((name) => element("th", { scope: "col", text: name })),
    ),
  );
  const grid = element(
    "div",
    { class: "ml-run-scroll" },
    element("table", { class: "ml-run-table ml-run-list" }, head, body),
  );
  const result = element("section", { class: "ml-run-compared", "aria-label": "Comparison" });
  const root = element(
    "div",
    { class: "meshlab-run ml-run-listbox" },
    element("div", { class: "ml-run-head" }, note, element("div", { class: "ml-run-controls" }, folder, list)),
    alert,
    grid,
    result,
  );
  parent.append(root);
  listen(folder, "keydown", (event) => {
    event.stopPropagation(); // keys of the notebook
    if (event.key === "Enter") list.click();
  });

  function pick(key, isPicked) {
    picked = isPicked ? [...picked, key].slice(-2) : picked.filter((one) => one !== key);
    shell.send(picked.length === 2 ? { type: "run.compare", keys: picked } : { type: "run.uncompare" });
    update();
  }

  function rowOf(one, shown) {
    const box = element("input", {
      type: "checkbox",
      "aria-label": `Compare ${one.name}`,
      onchange: (event) => pick(one.key, event.target.checked),
    });
    box.checked = picked.includes(one.key);
    const open = element("button", {
      type: "button",
      text: one.key === shown ? "Shown" : "Show",
      title: "Show this run in the tab Measure.",
      disabled: one.key === shown,
      onclick: () => shell.send({ type: "run.open", key: one.key }),
    });
    const two = (first, second) => element("span", {}, first, element("span", { class: "ml-soft", text: second }));
    const sign = element("span", {
      class: "ml-run-sign",
      title: one.state,
      role: "img",
      "aria-label": one.state,
      text: SIGNS[one.state],
    });
    const cells = [
      element(
        "span",
        {},
        element("span", { class: "ml-run-name" }, sign, element("b", { text: one.name })),
        element("span", { class: "ml-soft", text: one.is_here ? `${one.state} · this session` : one.state }),
      ),
      one.best,
      two(one.collectives, one.mesh),
      two(one.where, one.date),
      open,
    ];
    return element(
      "tr",
      { "data-state": one.state },
      element("td", {}, box),
      cells.map((value, k) => element("td", { class: k === 1 ? null : "ml-run-left" }, value)),
    );
  }

  function update() {
    const { folder: known, rows, shown, problem, compared } = model.get("_runs");
    if (!rows) return;
    if (focusIn(folder) !== folder && folder.value !== known) folder.value = known;
    picked = picked.filter((key) => rows.some((one) => one.key === key));
    setText(
      note,
      rows.length
        ? picked.length === 1
          ? "Pick another run to compare with."
          : "Pick two runs to compare them."
        : "No runs yet. Start one in the tab Measure, or list a folder of saved runs.",
    );
    setText(alert, problem ?? "");
    show(grid, rows.length > 0);
    fill(body, [rows, shown, picked], () => rows.map((one) => rowOf(one, shown)));
    show(result, Boolean(compared) && picked.length === 2);
    if (!compared) return;
    fill(result, compared, () =>
      compared.problem
        ? [
            element("div", { class: "ml-run-alert", text: compared.problem }),
            compared.can_force
              ? element("button", {
                  type: "button",
                  text: "Compare anyway",
                  onclick: () => shell.send({ type: "run.compare", keys: compared.keys, anyway: true }),
                })
              : "",
          ]
        : [
            element("div", { class: "ml-run-verdict", text: compared.text }),
            element(
              "div",
              { class: "ml-soft" },
              element("div", { text: compared.from }),
              element("div", { text: compared.to }),
            ),
            element(
              "ul",
              { class: "ml-run-notes" },
              compared.notes.map((one) => element("li", { text: one })),
            ),
            resultTable({ ...compared, columns: ["", ...compared.columns.slice(1)] }),
          ],
    );
  }
  update();
  return { update, destroy: () => root.remove() };
}
runsPanel.traits = ["_runs"];
