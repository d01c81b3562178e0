// What the panels are made of: steppers, the reason why an edit is not possible, menus, copies and downloads.

import {
  attribute,
  button,
  consume,
  div,
  element,
  findAll,
  focusIn,
  hasModifier,
  muted,
  refill,
  setText,
  span,
  textField,
} from "./dom.js";

// The class of the mark of an axis.
export const markClass = (mark) =>
  `ml-axis-mark ml-${{ "✕": "bad", "■": "bad", "▲": "bad", "●": "good", "◆": "own" }[mark] ?? "plain"}`;

/**
 * A text field that keeps what is typed, or sent and not answered yet: only the answer to its own edit replaces it.
 * @param {{ input: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement, listen: Listen, queue: EditQueue,
 *   send: (text: string) => number | null }} parts
 *   `send` returns the version of the edit.
 */
export function typedField({ input, listen, queue, send }) {
  let shown = "";
  let isTyping = false;
  /** @type {{ text: string, version: number | null } | null} */
  let sent = null;
  const pending = () => (sent && queue.isWaiting(sent.version) ? sent : (sent = null));
  const accept = () => {
    const text = input.value.trim();
    isTyping = false;
    if (text !== (pending()?.text ?? shown)) sent = { text, version: send(text) };
  };
  const reset = () => {
    isTyping = false;
    input.value = pending()?.text ?? shown;
  };
  listen(input, "input", () => (isTyping = true));
  listen(input, "change", accept);
  return {
    accept,
    reset,
    /**
     * @param {string} value Of Python
     * @param {string} text What the field shows, also if it is not valid
     */
    update(value, text = value) {
      shown = value;
      if (!isTyping && !pending() && input.value !== text) input.value = text;
    },
  };
}

// A number that cannot be changed, for a page without Python.
function readout() {
  const root = span("ml-readout");
  return {
    root,
    rename() {},
    /** @param {{ value: string, hint?: string, [name: string]: any }} content */
    update({ value, hint = "" }) {
      setText(root, value || hint);
    },
  };
}

// A number with − and +, or without `isLive` only the number. `step(by)` and `type(text)` are called by hand and return the version of their edit, `update`
// is called by Python.
export function stepper({ label, listen, queue, step, type, id = null, wide = false, isLive = true }) {
  if (!isLive) return readout();
  const less = button("−", { "aria-label": `${label}: less`, tabindex: "-1" });
  const more = button("+", { "aria-label": `${label}: more`, tabindex: "-1" });
  const input = textField({ inputmode: "decimal", "aria-label": label, id });
  const root = span(wide ? "ml-step ml-wide" : "ml-step", less, input, more);
  const field = typedField({ input, listen, queue, send: type });
  listen(less, "click", () => step(-1));
  listen(more, "click", () => step(1));
  listen(input, "focus", () => input.select());
  listen(input, "keydown", (event) => {
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      if (hasModifier(event)) return;
      field.accept(); // what is typed comes before the step
      step(event.key === "ArrowUp" ? 1 : -1);
      event.preventDefault();
    } else if (event.key === "Escape") {
      field.reset();
    } else if (event.key !== "Enter") {
      return;
    }
    event.stopPropagation(); // JupyterLab would leave the widget
    if (event.key === "Enter") field.accept();
  });
  return {
    root,
    input,
    rename(name) {
      attribute(input, "aria-label", name);
      attribute(less, "aria-label", `${name}: less`);
      attribute(more, "aria-label", `${name}: more`);
    },
    update({ value, canLess = true, canMore = true, off = "", problem = null, hint = "" }) {
      field.update(value, problem ? problem.value : value);
      // A button that the pointer is on stays enabled for the browser, so that it keeps the focus at the end of its range.
      attribute(less, "aria-disabled", !canLess || Boolean(off));
      attribute(more, "aria-disabled", !canMore || Boolean(off));
      input.disabled = Boolean(off);
      input.placeholder = hint;
      attribute(input, "aria-invalid", Boolean(problem));
      root.title = off;
      root.classList.toggle("ml-off", Boolean(off));
    },
  };
}

// The reason why an edit is not possible, with valid values near to it as buttons.
export function problemBox({ listen, edit, kept = "" }) {
  const root = element("div", { class: "ml-problem", role: "alert" });
  let options = [];
  listen(root, "click", (event) => {
    const target = event.target.closest("button");
    if (target) edit(options[findAll(root, "button").indexOf(target)][1]);
  });
  return {
    root,
    update(problem) {
      root.hidden = !problem;
      options = problem?.options ?? [];
      if (!problem) return refill(root);
      const sentence = problem.text + (/[.!?]$/.test(problem.text) ? "" : ".");
      refill(
        root,
        element("p", { text: kept ? `${sentence} ${kept}` : sentence }),
        ...(options.length ? [div("ml-options", ...options.map(([label]) => button(label)))] : []),
      );
    },
  };
}

// A line that opens what is below it. Closed content is hidden, so that nothing finds it.
export function disclosure(label, listen, ...content) {
  const root = element("details", {}, element("summary", { text: label }), ...content);
  const follow = () => content.forEach((node) => (node.hidden = !root.open));
  listen(root, "toggle", follow);
  follow();
  return root;
}

// A button with a list of actions below it. `fill` returns the entries when the list opens.
export function menu({ label, listen, root: page, choose, title = "" }) {
  const opener = button(label, { "aria-haspopup": "menu", "aria-expanded": "false", title });
  const list = element("div", { class: "ml-menu", role: "menu", hidden: true });
  const root = span("ml-menu-root", opener, list);
  const items = () => findAll(list, "[role=menuitem]");
  const toggle = (isOpen) => {
    list.hidden = !isOpen;
    attribute(opener, "aria-expanded", isOpen);
    if (isOpen) items()[0]?.focus();
  };
  listen(opener, "click", () => toggle(list.hidden));
  listen(list, "click", (event) => {
    const item = event.target.closest("[role=menuitem]");
    if (!item || item.getAttribute("aria-disabled") === "true") return;
    toggle(false);
    opener.focus();
    choose(item.dataset.value, item);
  });
  listen(root, "keydown", (event) => {
    const all = items();
    const at = all.indexOf(focusIn(root));
    if (event.key === "Escape" && !list.hidden) {
      toggle(false);
      opener.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) toggle(true);
      else all[(at + (event.key === "ArrowDown" ? 1 : all.length - 1)) % all.length]?.focus();
    } else {
      return;
    }
    consume(event);
  });
  listen(page, "pointerdown", (event) => root.contains(event.target) || toggle(false));
  listen(root, "focusout", (event) => event.relatedTarget && !root.contains(event.relatedTarget) && toggle(false));
  const heading = (text) => div("ml-menu-head", text);
  const item = (value, text, { note = "", off = "" } = {}) =>
    element(
      "button",
      {
        type: "button",
        role: "menuitem",
        tabindex: "-1",
        "data-value": value,
        title: off,
        "aria-disabled": off ? "true" : null,
      },
      text,
      ...(note ? [muted(` ${note}`)] : []),
    );
  return { root, opener, list, heading, item, isOpen: () => !list.hidden };
}
