// The bar below the picture for the parts that are picked: fail, remove or restore them, or set their rate.

import { button, div, element, fillSelect, setText, span, textField } from "./dom.js";
import { problemBox } from "./fields.js";
import { partsAt } from "./parts.js";
import { count } from "./text.js";

const WHERE = "part"; // the field of its edits
const MOST_NAMES = 512; // in one edit
const bare = (name) => name.replace(/[=*][^/]*$/, ""); // without a rate and a number of uplinks

/** @typedef {import("./parts.js").Part} Part */

export function partBar({ after, listen, shell }) {
  const choice = element("select", { "aria-label": "Part" });
  const text = element("b", {});
  const fail = button("Fail", { title: "Mark as failed. Failed parts are listed, and can be restored." });
  const remove = button("Remove", { title: "Remove from the machine." });
  const restore = button("Restore", { title: "Mark as working again." });
  const value = textField({
    size: "8",
    placeholder: "50 %",
    "aria-label": "Rate",
    title: "A share such as 50 %, or a rate such as 200 Gb/s.",
  });
  const set = button("Set rate", { title: "Give it a lower rate." });
  const rate = span("ml-part-rate", value, set);
  const zoom = button("Zoom to it", { title: "Also by a double click. Fit shows all again." });
  const close = button("✕", { class: "ml-quiet", "aria-label": "Close" });
  const bar = element(
    "div",
    { class: "ml-part", role: "group", "aria-label": "Picked parts of the machine", hidden: true },
    text,
    choice,
    fail,
    remove,
    restore,
    rate,
    zoom,
    close,
  );
  const hint = div("ml-soft ml-part-hint");
  hint.textContent = "Click any part to fail it or set its rate. Shift adds more, the keys N and P go along the links.";
  const problem = problemBox({ listen, edit: shell.edit });
  after.after(div("ml-part-row", hint, bar, problem.root));
  const stage = after;
  /** @type {Part[]} */
  let options = []; // of one hit
  /** @type {Map<string, Part>} */
  let picked = new Map();
  let marks = [];

  const show = () => {
    const parts = [...picked.values()];
    const names = parts.flatMap((part) => part.names);
    bar.hidden = !parts.length;
    hint.hidden = parts.length > 0;
    shell.picture.outline(parts.map((part) => part.hit));
    if (!parts.length) return;
    const markOf = (name) => marks.find((mark) => bare(mark.name) === bare(name));
    const states = names.map(markOf);
    const isBroken = states.some((mark) => mark && !mark.share && mark.kind !== "uplink");
    const [only] = parts;
    const isOne = parts.length === 1;
    const list = parts.map((part) => part.text).join(", ");
    choice.hidden = !isOne || options.length < 2;
    setText(text, isOne ? `${only.text}${isBroken ? ": failed" : ""}` : `${count(parts.length)} parts: ${list}`);
    text.title = list;
    text.hidden = isOne && !choice.hidden && !isBroken;
    fillSelect(
      choice,
      options.map((part) => [part.key, part.text]),
      only.key,
    );
    fail.hidden = isBroken;
    remove.hidden = isBroken || parts.some((part) => !part.canRemove);
    rate.hidden = isBroken || parts.some((part) => !part.canRate);
    restore.hidden = !states.some(Boolean);
    zoom.hidden = !isOne || only.hit.host === undefined;
  };

  const clear = () => {
    picked = new Map();
    options = [];
    show();
  };

  const act = (action, more = {}) => {
    const names = [...picked.values()].flatMap((part) => part.names).slice(0, MOST_NAMES);
    const parts = names.length === 1 ? { part: names[0] } : { parts: names };
    clear();
    stage.focus();
    shell.edit({ action, ...parts, ...more, where: WHERE });
  };
  listen(fail, "click", () => act("fail"));
  listen(remove, "click", () => act("remove"));
  listen(restore, "click", () => act("restore"));
  listen(set, "click", () => act("rate", { value: value.value.trim() || "50 %" }));
  listen(zoom, "click", () => {
    const [part] = picked.values();
    stage.focus();
    shell.picture.zoomTo(part.hit);
  });
  listen(close, "click", () => {
    clear();
    stage.focus();
  });
  listen(choice, "change", () => {
    const part = options.find(({ key }) => key === choice.value);
    if (part) picked = new Map([[part.key, part]]);
    show();
  });
  listen(bar, "keydown", (event) => {
    if (event.key === "Escape") {
      clear();
      stage.focus();
    } else if (event.key === "Enter" && event.target === value) {
      set.click();
    }
    event.stopPropagation();
  });

  return {
    /**
     * @param {any} p The picture
     * @param {any} hit What was clicked, null for nothing
     * @param {any} mark The mark of a failed part under the pointer, or null
     * @param {boolean} isMore Whether the part joins the picked ones, or leaves them
     */
    show(p, hit, mark, isMore) {
      marks = p.view.failed ?? [];
      const found = mark && !mark.share ? [partOfMark(mark)] : partsAt(p, hit);
      const [first] = found;
      if (!isMore) {
        options = found;
        picked = new Map(first ? [[first.key, first]] : []);
      } else if (first) {
        options = picked.size ? options : found;
        if (!picked.delete(first.key)) picked.set(first.key, first);
        if (picked.size === 1 && ![...picked.values()].some(({ key }) => options.some((one) => one.key === key))) {
          options = [...picked.values()];
        }
      }
      show();
    },
    // The GPUs in a lasso, as one part.
    showDevices(p, devices) {
      const { scene } = p;
      const names = devices.map((d) => {
        const h = scene.hostOf[d];
        return `${scene.names[h]}/${scene.kindOf(h).names[d - scene.first_device[h]].replace(" ", "")}`;
      });
      if (!names.length || names.length > MOST_NAMES) return clear();
      const hit = { kind: "none", index: 0 };
      options = [{ key: "lasso", text: `${count(names.length)} GPUs`, names, hit, canRemove: true, canRate: false }];
      picked = new Map([["lasso", options[0]]]);
      show();
    },
    clear,
    update() {
      problem.update(shell.fault(WHERE));
    },
    destroy() {},
  };
}
partBar.traits = ["_panel"];

/** @returns {Part} */
function partOfMark(mark) {
  const hit = { kind: "mark", index: mark.name, mark };
  return { key: `mark ${mark.name}`, text: mark.text, names: [mark.name], hit, canRemove: false, canRate: false };
}
