// What the panels are made of: steppers, the reason why an edit is not possible, menus, copies and downloads.

const button = (text, attributes = {}) => element("button", { type: "button", ...attributes, text });
const optionsOf = (pairs) => pairs.map(([name, text]) => element("option", { value: name, text }));

// A number with − and +. `step(by)` and `type(text)` are called by hand, `update` by Python.
function stepper({ label, listen, step, type, id, wide = false }) {
  const less = button("−", { "aria-label": `${label}: less`, tabindex: "-1" }), more = button("+", { "aria-label": `${label}: more`, tabindex: "-1" });
  const input = element("input", { type: "text", inputmode: "decimal", "aria-label": label, autocomplete: "off", spellcheck: "false", id: id ?? null });
  const root = element("span", { class: wide ? "wb-step wb-wide" : "wb-step" }, less, input, more);
  let shown = "";
  const accept = () => {
    if (input.value.trim() === shown) return;
    type(input.value.trim());
  };
  listen(less, "click", () => step(-1));
  listen(more, "click", () => step(1));
  listen(input, "change", accept);
  listen(input, "focus", () => input.select());
  listen(input, "keydown", (event) => {
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      step(event.key === "ArrowUp" ? 1 : -1);
      event.preventDefault();
    } else if (event.key === "Escape") input.value = shown;
    else if (event.key !== "Enter") return;
    event.stopPropagation(); // JupyterLab would leave the widget
    if (event.key === "Enter") accept();
  });
  return {
    root,
    input,
    update({ value, canLess = true, canMore = true, off = "", problem = null, hint = "" }) {
      shown = value;
      const text = problem ? problem.value : value;
      if (input.value !== text) input.value = text;
      // A button that the pointer is on stays enabled for the browser, so that it keeps the focus at the end of its range.
      less.setAttribute("aria-disabled", String(!canLess || Boolean(off)));
      more.setAttribute("aria-disabled", String(!canMore || Boolean(off)));
      input.disabled = Boolean(off);
      input.placeholder = hint;
      input.setAttribute("aria-invalid", String(Boolean(problem)));
      root.title = off;
      root.classList.toggle("wb-off", Boolean(off));
    },
  };
}

// The reason why an edit is not possible, with valid values near to it as buttons.
function problemBox({ listen, edit, kept = "" }) {
  const root = element("div", { class: "wb-problem", role: "alert" });
  let options = [];
  listen(root, "click", (event) => {
    const target = event.target.closest("button");
    if (target) edit(options[[...root.querySelectorAll("button")].indexOf(target)][1]);
  });
  return {
    root,
    update(problem) {
      root.hidden = !problem;
      options = problem?.options ?? [];
      if (!problem) return refill(root);
      const sentence = problem.text + (/[.!?]$/.test(problem.text) ? "" : ".");
      refill(root, element("p", { text: kept ? `${sentence} ${kept}` : sentence }),
        ...(options.length ? [element("div", { class: "wb-options" }, ...options.map(([label]) => button(label)))] : []));
    },
  };
}

// A button with a list of actions below it. `fill` returns the entries when the list opens.
function menu({ label, listen, root: page, choose, title = "" }) {
  const opener = button(label, { "aria-haspopup": "menu", "aria-expanded": "false", title });
  const list = element("div", { class: "wb-menu", role: "menu", hidden: true });
  const root = element("span", { class: "wb-menu-root" }, opener, list);
  const items = () => [...list.querySelectorAll("[role=menuitem]")];
  const toggle = (isOpen) => {
    list.hidden = !isOpen;
    opener.setAttribute("aria-expanded", String(isOpen));
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
    const all = items(), at = all.indexOf(root.getRootNode().activeElement);
    if (event.key === "Escape" && !list.hidden) {
      toggle(false);
      opener.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) toggle(true);
      else all[(at + (event.key === "ArrowDown" ? 1 : all.length - 1)) % all.length]?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  listen(page, "pointerdown", (event) => root.contains(event.target) || toggle(false));
  listen(root, "focusout", (event) => event.relatedTarget && !root.contains(event.relatedTarget) && toggle(false));
  const heading = (text) => element("div", { class: "wb-menu-head", text });
  const item = (value, text, { note = "", off = "" } = {}) =>
    element("button", { type: "button", role: "menuitem", tabindex: "-1", "data-value": value, title: off, "aria-disabled": off ? "true" : null }, text,
      ...(note ? [element("span", { class: "ml-soft", text: ` ${note}` })] : []));
  return { root, opener, list, heading, item, isOpen: () => !list.hidden };
}

// Copies text. Without a secure context there is no clipboard API, so the text is selected in a field and copied.
async function copyText(text, root) {
  if (window.isSecureContext && navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // The front end does not permit it, so try the other way.
    }
  }
  const field = element("textarea", { class: "wb-copy", "aria-hidden": "true", tabindex: "-1" }), held = root.getRootNode().activeElement;
  field.value = text;
  root.append(field);
  field.focus();
  field.select();
  let isDone = false;
  try {
    isDone = document.execCommand("copy");
  } catch {
    isDone = false;
  }
  field.remove();
  held?.focus();
  return isDone;
}

function saveUrl(name, url) {
  element("a", { href: url, download: name }).click();
}

function saveFile(name, kind, parts) {
  const url = URL.createObjectURL(new Blob(parts, { type: kind }));
  saveUrl(name, url);
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
