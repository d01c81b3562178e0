// The runs of this session and of a folder: their names and notes, a filter, their removal, and their comparison.

import {
  alertBox,
  attribute,
  button,
  div,
  element,
  fill,
  findAll,
  focusIn,
  headOf,
  keepNodes,
  muted,
  setText,
  show,
  span,
  textField,
} from "./dom.js";
import { typedField } from "./fields.js";
import { queueOf } from "./queue.js";
import { SIGNS, resultTable, switchedChart } from "./run.js";

const FEW_ROWS = 100; // of a comparison before all are asked for

export function runsPanel({ model, root: parent, listen, shell }) {
  const queue = queueOf(model);
  let picked = [];
  let answered = null; // the keys of the comparison that was shown last
  const field = (attributes) => textField({ ...attributes });
  const folder = field({ name: "folder", "aria-label": "Folder of runs", placeholder: "folder of saved runs" });
  const filter = field({ name: "filter", type: "search", "aria-label": "Filter runs", placeholder: "filter" });
  const action = (text, onclick, more = {}) => button(text, { onclick, ...more });
  const list = action("List", () => shell.send({ type: "run.folder", folder: folder.value }));
  const note = element("div", { class: "ml-soft", role: "status" });
  const alert = alertBox();
  const report = action("Report", () => shell.send({ type: "run.report", keys: picked }), {
    title: "Save the report of the run as a page. With two, the earlier one is the baseline.",
  });
  const drop = action("Delete", () => shell.send({ type: "run.delete", keys: picked }), {
    title: "Remove the ticked runs from the list. This can be undone.",
  });
  const none = action("Untick all", () => tick([]));
  const undone = element("span");
  const deleted = element(
    "div",
    { class: "ml-run-deleted", role: "status" },
    undone,
    action("Undo", () => shell.send({ type: "run.undelete" }), { class: "ml-run-undo" }),
    action("", () => shell.send({ type: "run.remove" }), { class: "ml-run-final" }),
  );
  const final = deleted.lastElementChild;
  const body = element("tbody");
  const columns = ["", "run", "notes", "best busbw", "measured", "where and when (UTC)", ""];
  const head = headOf(columns);
  const table = element("table", { class: "ml-run-table ml-run-list" }, head, body);
  const grid = element("div", { class: "ml-run-scroll ml-run-rows", tabindex: "0", "aria-label": "Runs" }, table);
  const result = comparisonOf({ shell, again: (anyway) => compare(picked, anyway) });
  const root = div(
    "meshlab-run ml-run-listbox",
    div("ml-run-head", filter, div("ml-run-controls", folder, list)),
    alert,
    deleted,
    div("ml-run-head", note, div("ml-run-controls", report, drop, none)),
    grid,
    result.root,
  );
  parent.append(root);
  listen(root, "keydown", (event) => {
    if (!event.target.matches("input, textarea")) return;
    event.stopPropagation(); // keys of the notebook
    if (event.key === "Enter" && event.target === folder) list.click();
    else if (event.key === "Enter" && event.target.matches("input")) event.target.blur();
  });
  listen(filter, "input", () => update());

  function compare(keys, anyway = false) {
    shell.send(
      keys.length > 1 ? { type: "run.compare", keys, ...(anyway ? { anyway } : {}) } : { type: "run.uncompare" },
    );
  }
  function tick(keys) {
    const before = picked.length;
    picked = keys;
    if (before > 1 || keys.length > 1) compare(keys);
    update();
  }

  // A row is made once and then only changed, so that what is typed stays.
  function makeRow(key) {
    const box = element("input", {
      type: "checkbox",
      onchange: (event) => tick(event.target.checked ? [...picked, key] : picked.filter((one) => one !== key)),
    });
    const name = field({ class: "ml-run-label-field" });
    const notes = element("textarea", {
      class: "ml-run-label-field",
      rows: 1,
      placeholder: "notes",
      spellcheck: "false",
    });
    const sign = element("span", { class: "ml-run-sign", role: "img" });
    const soft = span("ml-soft");
    const best = element("td");
    const measured = element("td", { class: "ml-run-left" });
    const where = element("td", { class: "ml-run-left" });
    const open = action("Show", () => shell.send({ type: "run.open", key }), {
      title: "Show this run in the tab Measure.",
    });
    const row = element(
      "tr",
      {},
      element("td", {}, box),
      element("td", { class: "ml-run-left" }, span("ml-run-name", sign, name), soft),
      element("td", { class: "ml-run-left" }, notes),
      best,
      measured,
      where,
      element("td", {}, open),
    );
    const label = (what) => (text) => queue.push({ type: "run.label", key, [what]: text }, "_runs");
    /** @type {[ReturnType<typeof typedField>, string][]} */
    const fields = [
      [typedField({ input: name, listen, queue, send: label("name") }), "label"],
      [typedField({ input: notes, listen, queue, send: label("notes") }), "notes"],
    ];
    const two = (node, first, second) => fill(node, [first, second], () => [first, muted(second)]);
    return {
      root: row,
      update(one, isShown) {
        attribute(row, "data-state", one.state);
        for (const [typed, what] of fields) typed.update(one[what]);
        attribute(name, "placeholder", one.unnamed);
        attribute(name, "aria-label", `Name of ${one.unnamed}`);
        attribute(notes, "aria-label", `Notes on ${one.name}`);
        attribute(box, "aria-label", `Compare ${one.name}`);
        box.checked = picked.includes(key);
        setText(sign, SIGNS[one.state]);
        attribute(sign, "aria-label", one.state);
        const subtitle = one.unnamed === one.run_id && !one.label ? [] : [one.run_id];
        setText(soft, [...subtitle, one.state, ...(one.is_here ? ["this session"] : [])].join(" · "));
        setText(best, one.best);
        two(measured, one.collectives, one.mesh);
        two(where, one.where, one.date);
        setText(open, isShown ? "Shown" : "Show");
        open.disabled = isShown;
      },
    };
  }
  const made = new Map();

  const isFound = (one, words) =>
    words.every((word) =>
      [one.name, one.run_id, one.notes, one.where, one.mesh, one.collectives, one.state, one.date]
        .join(" ")
        .toLowerCase()
        .includes(word),
    );

  function update() {
    const {
      folder: known,
      rows,
      shown,
      problem,
      compared,
      deleted: gone = [],
      on_disk: onDisk = 0,
    } = model.get("_runs");
    if (!rows) return;
    if (focusIn(folder) !== folder && folder.value !== known) folder.value = known;
    if (compared && compared.keys !== answered) {
      answered = compared.keys;
      if (!answered.every((key) => picked.includes(key))) picked = [...answered]; // Python has measured and compared
    }
    picked = picked.filter((key) => rows.some((one) => one.key === key));
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const visible = rows.filter((one) => isFound(one, words) || picked.includes(one.key));
    const count = words.length ? `${visible.length} of ${rows.length} runs. ` : "";
    setText(
      note,
      !rows.length
        ? "No runs yet. Start one in the tab Measure, or list a folder of saved runs."
        : picked.length === 1
          ? `${count}Tick another run to compare with.`
          : picked.length
            ? `${count}${picked.length} runs are ticked.`
            : `${count}Tick two or more runs to compare them.`,
    );
    setText(alert, problem ?? "");
    show(filter, rows.length > 0);
    for (const one of [report, drop, none]) show(one, picked.length > 0);
    show(report, picked.length === 1 || picked.length === 2);
    show(deleted, gone.length > 0);
    setText(undone, gone.length === 1 ? `Deleted ${gone[0]}.` : `Deleted ${gone.length} runs.`);
    setText(final, onDisk ? "Remove from the disk" : "Forget for good");
    attribute(
      final,
      "title",
      onDisk
        ? "Remove the files of these runs. This cannot be undone."
        : "Drop these runs from memory. This cannot be undone.",
    );
    show(grid, rows.length > 0);
    keepNodes(
      body,
      made,
      visible.map((one) => one.key),
      makeRow,
    );
    for (const one of visible) made.get(one.key).update(one, one.key === shown || one.run_id === shown);
    result.update(picked.length > 1 ? compared : null);
  }
  update();
  return { update, destroy: () => (result.destroy(), root.remove()) };
}
runsPanel.traits = ["_runs"];

// The answer of a comparison: the curves of all runs, and the ratios of each to the earliest.
/**
 * @param {{ shell: Shell, again: (anyway: boolean) => void }} parts
 */
function comparisonOf({ shell, again }) {
  let shown = null;
  const chartBox = element("div");
  const pairs = element("div");
  const root = element("section", { class: "ml-run-compared", "aria-label": "Comparison" }, chartBox, pairs);
  const chart = switchedChart({ el: chartBox, curve: () => shown?.curve ?? {} });

  const soft = (text) => div("ml-soft", text);
  /** @returns {(Node | string)[]} */
  function pairOf(pair, isOne) {
    const title = isOne || !pair.of ? [] : [element("h3", { text: pair.of })];
    if (pair.problem) {
      const force = button("Compare anyway", { onclick: () => again(true) });
      return [...title, div("ml-run-alert", pair.problem), pair.can_force ? force : ""];
    }
    const n = pair.launches;
    const repeat = button(`Measure ${n} launches of ${pair.repeat.length > 1 ? "each" : "the other"}`, {
      class: "ml-run-main",
      title: "Measure the same plan again on the ranks that run now, and compare the new runs.",
      onclick: () => shell.send({ type: "run.repeat", keys: pair.repeat }),
    });
    const figure = div("ml-run-figure");
    if (pair.figure) figure.append(svgOf(pair.figure));
    return [
      ...title,
      div("ml-run-verdict", pair.text),
      ...(pair.repeat.length ? [div("ml-run-repeat", repeat)] : []),
      soft(pair.from),
      soft(pair.to),
      element(
        "ul",
        { class: "ml-run-notes" },
        pair.notes.map((one) => element("li", { text: one })),
      ),
      figure,
      rowsOf(pair),
    ];
  }

  // All rows are in the page as soon as they are asked for.
  function rowsOf({ columns, rows, left, more }) {
    const box = element("div");
    const draw = (most) => {
      const rest = rows.length - most;
      box.replaceChildren(
        resultTable({
          columns: ["", ...columns.slice(1)],
          rows: rows.slice(0, most),
          left,
          more: rest > 0 ? "" : more,
        }),
      );
      if (rest > 0) {
        const all = `Show all ${rows.length.toLocaleString("en")} rows`;
        box.append(button(all, { onclick: () => draw(rows.length) }));
      }
      const scroll = findAll(box, ".ml-run-scroll")[0];
      scroll.classList.add("ml-run-rows");
      scroll.tabIndex = 0;
      attribute(scroll, "aria-label", "Rows of the comparison");
    };
    draw(Math.min(FEW_ROWS, rows.length));
    return box;
  }

  function update(compared) {
    show(root, Boolean(compared));
    shown = compared ?? null;
    if (!compared) return;
    show(chartBox, Boolean(compared.curve));
    if (compared.curve) chart.update();
    const { others = [] } = compared;
    const all = [{ ...compared, curve: null, others: null }, ...others];
    fill(pairs, all, () => all.flatMap((pair) => pairOf(pair, all.length === 1)));
  }
  update(null);
  return { root, update, destroy: chart.destroy };
}

// An <svg> that Python has drawn, as an element of this page.
function svgOf(text) {
  const page = new DOMParser().parseFromString(text, "image/svg+xml");
  return document.importNode(page.documentElement, true);
}
