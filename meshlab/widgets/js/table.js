// The table of the axes: what their groups do, the time, and the change to candidate A.

import {
  attribute,
  button,
  div,
  element,
  fillSelect,
  headOf,
  keepNodes,
  refill,
  setText,
  span,
  textField,
} from "./dom.js";
import { markClass, problemBox, typedField } from "./fields.js";
import { count, joined, percent } from "./text.js";

export function tablePanel({ model, root, listen, shell }) {
  const table = element("table", { class: "ml-table" });
  const problem = problemBox({ listen, edit: shell.edit });
  root.append(table, problem.root);

  listen(table, "click", (event) => {
    const row = event.target.closest("tr[data-axis]");
    if (row && !event.target.closest("select, input")) shell.chooseAxis(row.dataset.axis);
  });

  function timeBar(row, isOn) {
    const bar = element("i", { class: row.conflict ? "ml-hot" : "", style: `width:${percent(row.share)}` });
    const track = div("ml-track", bar);
    if (row.low !== null && row.high !== null) {
      track.append(
        element("b", {
          class: "ml-interval",
          style: `left:${percent(row.low)};width:${percent(Math.max(row.high - row.low, 0))}`,
        }),
      );
    }
    if (row.pinned !== null) {
      track.append(element("u", { style: `left:calc(${percent(row.pinned)} - 1px)`, title: "Candidate A" }));
    }
    const text =
      row.interval && isOn ? [element("span", { class: "ml-soft ml-interval-text", text: row.interval })] : [];
    return [track, ...text];
  }

  // The fields of the call of an axis, which stay in the page as long as their row, so that what is typed stays.
  function makeCall(axis) {
    const where = `call:${axis}`;
    const choice = element("select", { "aria-label": `Collective of ${axis}` });
    const input = textField({ "aria-label": `Message size of ${axis}`, size: "7" });
    const send = (content) => shell.edit({ action: "call", axis, where, ...content });
    const field = typedField({ input, listen, queue: shell.queue, send: (value) => send({ value }) });
    listen(choice, "change", () => send({ collective: choice.value }));
    const root = span("ml-call", choice, element("span", {}, "of ", input));
    listen(root, "keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") event.target.blur();
      if (event.key === "Escape") field.reset();
    });
    return {
      root,
      update(row, collectives) {
        fillSelect(
          choice,
          collectives.map((name) => [name, name]),
          row.collective,
        );
        const fault = shell.fault(where);
        field.update(row.bytes, fault?.value || row.bytes);
        attribute(input, "aria-invalid", Boolean(fault?.value));
      },
    };
  }

  function makeRow(axis) {
    const call = makeCall(axis);
    const name = element("th", { scope: "row" });
    const text = element("span");
    const note = span("ml-soft ml-detail");
    const detail = span("ml-soft ml-detail");
    const does = element("td", { class: "ml-does" }, text, note, detail);
    const gbs = element("td", { class: "ml-n" });
    const bar = element("td", { class: "ml-time-bar" });
    const time = element("td", { class: "ml-n" });
    const root = element("tr", { "data-axis": axis }, name, does, gbs, bar, time);
    return {
      root,
      update(row, isOn, collectives) {
        root.className = isOn ? "ml-on" : "";
        refill(
          name,
          element("span", {
            class: markClass(row.mark),
            title: row.meaning,
            text: row.mark,
          }),
          button(`${row.axis}=${count(row.size)}`, { class: "ml-quiet", "aria-current": String(isOn) }),
        );
        setText(text, row.text);
        setText(note, `${row.collective} of ${row.bytes}`);
        const hasFields = isOn && shell.isLive;
        note.hidden = hasFields || !(isOn || row.own);
        if (!hasFields) call.root.remove();
        else if (!call.root.parentNode) detail.before(call.root);
        call.update(row, collectives);
        setText(detail, `${row.detail}, ${row.basis}`);
        detail.hidden = !isOn || !row.detail;
        setText(gbs, row.gbs);
        bar.title = joined(" · ", [row.interval, row.detail, row.basis]);
        refill(bar, ...timeBar(row, isOn));
        refill(time, row.time, ...(row.change ? [span("ml-soft ml-change", `${row.change} to A`)] : []));
      },
    };
  }
  const made = new Map(); // rows by their axis
  const body = element("tbody");
  const header = element("thead");
  table.append(header, body);

  return {
    update() {
      const { rows, head } = model.get("_table");
      const { collectives, problems } = shell.panel();
      const axis = shell.axis();
      table.hidden = !rows.length;
      shell.picture.root.classList.toggle("ml-is-placed", rows.length > 0); // the table chooses the axis
      const names = ["Axis", "Links of its groups", "busbw", head, ""];
      refill(header, ...headOf(names, [null, null, "ml-n", "ml-time-head"]).children);
      keepNodes(
        body,
        made,
        rows.map((row) => row.axis),
        makeRow,
      );
      for (const row of rows) made.get(row.axis).update(row, row.axis === axis, collectives);
      problem.update(problems.find(({ where }) => where.startsWith("call:")) ?? null);
    },
    destroy() {},
  };
}

tablePanel.traits = ["_table", "_panel", "axis"];
