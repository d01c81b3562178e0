// The table of the axes: what their groups do, the time, and the change to candidate A.

import { button, element, optionsOf, refill } from "./dom.js";
import { problemBox } from "./fields.js";
import { count } from "./text.js";

export function tablePanel({ model, root, listen, shell }) {
  const table = element("table", { class: "ml-table" });
  const problem = problemBox({ listen, edit: shell.edit });
  root.append(table, problem.root);

  listen(table, "click", (event) => {
    const row = event.target.closest("tr[data-axis]");
    if (row && !event.target.closest("select, input")) shell.chooseAxis(row.dataset.axis);
  });
  listen(table, "change", (event) => {
    const axis = event.target.closest("tr")?.dataset.axis;
    const where = `call:${axis}`;
    if (event.target.matches("select")) shell.edit({ action: "call", axis, collective: event.target.value, where });
    if (event.target.matches("input")) shell.edit({ action: "call", axis, value: event.target.value, where });
  });
  listen(table, "keydown", (event) => {
    if (!event.target.matches("input, select")) return;
    event.stopPropagation();
    if (event.key === "Enter") event.target.blur();
  });

  const percent = (share) => `${(100 * share).toFixed(2)}%`;

  function timeCell(row, isOn) {
    const bar = element("i", { class: row.conflict ? "ml-hot" : "", style: `width:${percent(row.share)}` });
    const track = element("div", { class: "ml-track" }, bar);
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
    const title = [row.interval, row.detail, row.basis].filter(Boolean).join(" · ");
    return element(
      "td",
      { class: "ml-time-bar", title },
      track,
      ...(row.interval && isOn ? [element("span", { class: "ml-soft ml-interval-text", text: row.interval })] : []),
    );
  }

  function callLine(row, collectives) {
    const choice = element(
      "select",
      { "aria-label": `Collective of ${row.axis}` },
      ...optionsOf(collectives.map((name) => [name, name])),
    );
    choice.querySelector(`[value="${row.collective}"]`)?.setAttribute("selected", "");
    return element(
      "span",
      { class: "ml-call" },
      choice,
      element(
        "span",
        {},
        "of ",
        element("input", {
          type: "text",
          value: row.bytes,
          "aria-label": `Message size of ${row.axis}`,
          size: "7",
          spellcheck: "false",
          autocomplete: "off",
        }),
      ),
    );
  }

  return {
    update() {
      const { rows, head } = model.get("_table");
      const { collectives, problem: fault } = shell.panel();
      const axis = shell.axis();
      table.hidden = !rows.length;
      shell.picture.root.classList.toggle("ml-is-placed", rows.length > 0); // the table chooses the axis
      const body = rows.map((row) => {
        const isOn = row.axis === axis;
        const note = isOn
          ? callLine(row, collectives)
          : row.own
            ? element("span", { class: "ml-soft", text: `${row.collective} of ${row.bytes}` })
            : "";
        const name = element(
          "th",
          { scope: "row" },
          element("span", {
            class: `ml-axis-mark ml-${{ "■": "bad", "▲": "bad", "●": "good", "◆": "own" }[row.mark] ?? "plain"}`,
            title: row.meaning,
            text: row.mark,
          }),
          button(`${row.axis}=${count(row.size)}`, { class: "ml-quiet", "aria-current": String(isOn) }),
        );
        return element(
          "tr",
          { "data-axis": row.axis, class: isOn ? "ml-on" : "" },
          name,
          element(
            "td",
            { class: "ml-does" },
            element("span", { text: row.text }),
            note,
            ...(isOn && row.detail
              ? [element("span", { class: "ml-soft ml-detail", text: `${row.detail}, ${row.basis}` })]
              : []),
          ),
          element("td", { class: "ml-n", text: row.gbs }),
          timeCell(row, isOn),
          element(
            "td",
            { class: "ml-n" },
            row.time,
            ...(row.change ? [element("span", { class: "ml-soft ml-change", text: `${row.change} to A` })] : []),
          ),
        );
      });
      const heads = [
        ["Axis", ""],
        ["Links of its groups", ""],
        ["busbw", "ml-n"],
        [head, "ml-time-head"],
        ["", ""],
      ];
      refill(
        table,
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            ...heads.map(([text, name]) =>
              element(text ? "th" : "td", { class: name || null, scope: text ? "col" : null, text }),
            ),
          ),
        ),
        element("tbody", {}, ...body),
      );
      const mine = fault?.where.startsWith("call:") ? fault : null;
      problem.update(mine);
    },
    destroy() {},
  };
}

tablePanel.traits = ["_table", "_panel", "axis"];
