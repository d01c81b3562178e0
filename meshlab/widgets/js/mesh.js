// The mesh panel: axes in order, steppers that keep the product, templates, and pasted layouts.

import {
  attribute,
  button,
  consume,
  div,
  element,
  fillSelect,
  focusIn,
  keepNodes,
  muted,
  setText,
  span,
  textField,
} from "./dom.js";
import { markClass, problemBox, stepper } from "./fields.js";
import { clamp } from "./layout.js";

export function meshPanel({ root, listen, shell }) {
  const list = element("div", { class: "ml-axes", role: "list", "aria-label": "Axes, the slowest first" });
  const add = element("select", { "aria-label": "Add an axis" });
  const template = element("select", { "aria-label": "Layout" });
  const text = element("textarea", {
    rows: "1",
    "aria-label": "Mesh as text, flags or code",
    spellcheck: "false",
    placeholder: "dp=4, tp=8, or flags",
  });
  const use = button("Use");
  const edit = (content, axes) => shell.edit(content, axes);
  // For the axis in the picture. It has its own line, so that no row moves under the pointer of a double click.
  const renaming = button("Rename", { class: "ml-quiet", title: "F2, or a double click on the name." });
  const remove = button("Remove", { class: "ml-quiet" });
  const takes = button("Auto size", {
    class: "ml-quiet",
    "aria-pressed": "false",
    title: "Adjust this axis when another size changes.",
  });
  const toolbar = element("div", { class: "ml-axis-tools", role: "group" }, renaming, remove, takes);
  const sum = element("span", { role: "status" });
  const fill = button("Use all", { class: "ml-quiet", title: "Change the sizes so that every GPU has a rank." });
  const kept = "The picture keeps the last mesh that fits.";
  const problem = problemBox({ listen, edit, kept });
  const message = stepper({
    label: "Message size",
    listen,
    queue: shell.queue,
    isLive: shell.isLive,
    wide: true,
    id: shell.id("message"),
    step: (by) => edit({ action: "message_step", by, where: "message" }),
    type: (value) => edit({ action: "message", value, where: "message" }),
  });
  const messageProblem = problemBox({ listen, edit });
  const section = element(
    "section",
    { class: "ml-mesh", "aria-label": "Mesh" },
    element("h2", {}, "Mesh ", muted("· slowest axis first")),
    list,
    ...(shell.isLive ? [toolbar] : []),
    element("p", { class: "ml-note ml-sum" }, sum, " ", ...(shell.isLive ? [fill] : [])),
    ...(shell.isLive ? [problem.root, div("ml-row ml-two", add, template), div("ml-row ml-paste-row", text, use)] : []),
    element("h2", { text: "Message" }),
    div(
      "ml-fields",
      shell.isLive ? element("label", { for: shell.id("message"), text: "Size per rank" }) : muted("Size per rank"),
      message.root,
    ),
    messageProblem.root,
  );
  root.append(section);
  const made = new Map(); // rows by the name of their axis
  let rows = [];
  let lifted = null;

  const send = (content) => edit({ where: "paste", ...content });
  listen(add, "change", () => {
    if (add.value) send({ action: "add", name: add.value });
    add.value = "";
  });
  listen(template, "change", () => {
    if (template.value) send({ action: "template", text: template.value });
    template.value = "";
  });
  let pasted = "";
  listen(use, "click", () => {
    pasted = text.value;
    send({ action: "paste", text: pasted });
  });
  listen(text, "input", () => {
    text.rows = Math.min(Math.max(text.value.split("\n").length, 1), 6);
  });
  listen(text, "keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    use.click();
  });
  listen(fill, "click", () => send({ action: "use_all" }));

  listen(renaming, "click", () => made.get(shell.axis())?.startRename());
  listen(remove, "click", () => send({ action: "remove_axis", axis: shell.axis() }));
  listen(takes, "click", () => edit({ action: "rest", axis: shell.axis() }));

  const axesOf = (order) => order.map(({ name, size }) => [name, size]);

  function move(name, to) {
    const from = rows.findIndex((row) => row.name === name);
    const at = clamp(to, 0, rows.length - 1);
    if (from === at || from < 0) return;
    const order = rows.slice();
    order.splice(at, 0, ...order.splice(from, 1));
    edit({ action: "move", axis: name, to: at, where: "paste" }, axesOf(order));
    rows = order;
    arrange();
    shell.say(`${name} is axis ${at + 1} of ${rows.length}`);
  }

  // Puts the rows in order. The focus stays with its axis.
  function arrange() {
    const held = focusIn(list);
    keepNodes(
      list,
      made,
      rows.map((row) => row.name),
      makeRow,
    );
    if (held && list.contains(held) && focusIn(list) !== held) held.focus();
  }

  function makeRow(first) {
    let name = first;
    const grip = button("⠿", { class: "ml-grip", title: "Drag to change the order, or press Alt with an arrow key." });
    const select = button(name, { class: "ml-name" });
    const rename = textField({ class: "ml-rename", hidden: true, "aria-label": "Name of the axis" });
    const mark = span("ml-axis-mark");
    const rest = element("span", {
      class: "ml-rest ml-soft",
      text: "auto",
      title: "Adjusts when another size changes.",
    });
    const field = stepper({
      label: `Size of ${name}`,
      listen,
      queue: shell.queue,
      isLive: shell.isLive,
      step: (by) => {
        const row = rows.find((one) => one.name === name);
        const isOutdated = shell.queue.waiting().length > 0; // the row is that before the waiting edits
        const next = isOutdated ? null : by > 0 ? row?.more : row?.less;
        if (next || isOutdated) edit({ action: "step", axis: name, by, where: `size:${name}` }, next);
      },
      type: (value) => edit({ action: "size", axis: name, value, where: `size:${name}` }),
    });
    const box = problemBox({ listen, edit, kept });
    const node = element(
      "div",
      { class: "ml-axis-row", role: "listitem" },
      ...(shell.isLive ? [grip] : [element("span")]),
      span("ml-name-cell", select, ...(shell.isLive ? [rename] : []), rest),
      field.root,
      mark,
      box.root,
    );

    const startRename = () => {
      rename.value = name;
      rename.hidden = false;
      select.hidden = true;
      rename.focus();
      rename.select();
    };
    const endRename = (isAccepted) => {
      if (rename.hidden) return;
      rename.hidden = true;
      select.hidden = false;
      const value = rename.value.trim();
      if (!isAccepted || !value || value === name) return;
      edit({ action: "rename", axis: name, value, where: `size:${name}` });
      if (made.has(value)) return;
      // Edits that follow before Python has answered are about the new name.
      rows = rows.map((row) => (row.name === name ? { ...row, name: value } : row));
      made.set(value, made.get(name));
      made.delete(name);
      name = value;
      setText(select, name);
      field.rename(`Size of ${name}`);
    };
    listen(select, "click", () => shell.chooseAxis(name));
    if (shell.isLive) listen(select, "dblclick", startRename);
    listen(rename, "blur", () => endRename(true));
    listen(rename, "keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") {
        endRename(event.key === "Enter");
        select.focus();
      }
    });
    listen(node, "keydown", (event) => {
      if (!shell.isLive) return;
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (step && event.altKey) {
        move(name, rows.findIndex((row) => row.name === name) + step);
      } else if (event.key === "F2") {
        startRename();
      } else if (event.key === "Delete" && event.target === grip && rows.length > 1) {
        send({ action: "remove_axis", axis: name });
      } else {
        return;
      }
      consume(event);
    });
    listen(grip, "pointerdown", (event) => {
      if (event.button !== 0 || rows.length < 2) return;
      event.preventDefault();
      grip.setPointerCapture(event.pointerId);
      grip.focus();
      lifted = { name, y: event.clientY, order: rows.slice() };
      node.classList.add("ml-lifted");
    });
    listen(grip, "pointermove", (event) => {
      if (lifted?.name !== name) return;
      const height = node.offsetHeight + 4;
      const from = rows.findIndex((row) => row.name === name);
      const by = event.clientY - lifted.y;
      const steps = Math.round(by / height);
      const to = clamp(from + steps, 0, rows.length - 1);
      lifted.to = to;
      node.style.transform = `translateY(${clamp(by, -from * height, (rows.length - 1 - from) * height)}px)`;
      rows.forEach((row, k) => {
        if (row.name === name) return;
        const shift = k > from && k <= to ? -height : k < from && k >= to ? height : 0;
        made.get(row.name).root.style.transform = shift ? `translateY(${shift}px)` : "";
      });
    });
    const drop = (isDone) => {
      if (lifted?.name !== name) return;
      const { to } = lifted;
      lifted = null;
      node.classList.remove("ml-lifted");
      for (const row of rows) made.get(row.name).root.style.transform = "";
      if (isDone && to !== undefined) move(name, to);
      shell.refresh();
    };
    listen(grip, "pointerup", () => drop(true));
    listen(grip, "pointercancel", () => drop(false));
    return {
      root: node,
      startRename,
      update(row, { axis, count: n }) {
        name = row.name;
        setText(select, name);
        attribute(select, "aria-current", name === axis);
        node.classList.toggle("ml-on", name === axis);
        attribute(grip, "aria-label", `Move ${name}`);
        const mine = shell.fault(`size:${name}`);
        field.rename(`Size of ${name}`);
        field.update({
          value: String(row.size),
          canLess: Boolean(row.less),
          canMore: Boolean(row.more),
          problem: mine,
        });
        box.update(mine);
        rest.hidden = !row.is_rest || n < 2 || !shell.isLive;
        setText(mark, row.mark);
        mark.title = row.meaning;
        attribute(mark, "aria-label", row.meaning);
        mark.className = markClass(row.mark);
      },
    };
  }

  return {
    update() {
      if (lifted) return; // the order under the hand stays
      const panel = shell.panel();
      const { mesh } = panel;
      rows = mesh.rows;
      arrange();
      for (const row of rows) made.get(row.name).update(row, { axis: shell.axis(), count: rows.length });
      const own = rows.find((row) => row.name === shell.axis());
      toolbar.hidden = !own;
      if (own) {
        attribute(toolbar, "aria-label", `Axis ${own.name}`);
        attribute(renaming, "aria-label", `Rename ${own.name}`);
        attribute(remove, "aria-label", `Remove ${own.name}`);
        attribute(takes, "aria-label", `Auto size: ${own.name}`);
        attribute(takes, "aria-pressed", own.is_rest);
        takes.hidden = rows.length < 2;
        attribute(remove, "aria-disabled", rows.length < 2);
      }
      setText(sum, mesh.sum);
      fill.hidden = !mesh.idle;
      const fault = shell.fault("paste");
      problem.update(fault);
      attribute(text, "aria-invalid", Boolean(fault?.value));
      if (shell.isDone("paste") && text.value === pasted) {
        text.value = "";
        text.rows = 1;
      }
      fillSelect(add, [["", "+ Axis"], ...mesh.free.map((name) => [name, name])], "");
      fillSelect(template, [["", "Layout"], ...mesh.templates.map(([name, axes]) => [axes, `${name} · ${axes}`])], "");
      const mine = shell.fault("message");
      message.update({ value: panel.message, problem: mine });
      messageProblem.update(mine);
    },
    destroy() {},
  };
}

meshPanel.traits = ["_panel", "axis"];
