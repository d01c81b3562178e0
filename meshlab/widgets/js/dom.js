// Elements: create them, and change only what is different, because screen readers announce every write and the focus
// must stay where it is.

/**
 * @typedef {string | number | boolean | null | undefined | ((event: any) => unknown)} Attribute
 * @typedef {Node | string | number} Child
 */

/**
 * An element with attributes and children. "text" is its text, and names that begin with "on" are event handlers. Without
 * a value (false, null or undefined), an attribute is left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, Attribute>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      node.addEventListener(name.slice(2), value);
    } else if (name === "text") {
      node.textContent = String(value ?? "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  appendTo(node, children);
  return node;
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  appendTo(node, children);
  return node;
}

/**
 * @param {Element} parent
 * @param {(Child | Child[])[]} children
 */
function appendTo(parent, children) {
  for (const child of children.flat()) parent.append(typeof child === "number" ? String(child) : child);
}

/**
 * @param {string} text
 * @param {Record<string, Attribute>} [attributes]
 */
export function button(text, attributes = {}) {
  return element("button", { type: "button", ...attributes, text });
}

/** A box for the sentence of an error, which a screen reader reads at once. */
export function alertBox() {
  return element("div", { class: "ml-run-alert", role: "alert" });
}

/**
 * @param {string} name Of its class
 * @param {...(Child | Child[])} children
 */
export function div(name, ...children) {
  return element("div", { class: name }, ...children);
}

/**
 * @param {string} name Of its class
 * @param {...(Child | Child[])} children
 */
export function span(name, ...children) {
  return element("span", { class: name }, ...children);
}

/**
 * @param {string | number} text
 * @param {Record<string, Attribute>} [attributes]
 */
export function muted(text, attributes = {}) {
  return element("span", { class: "ml-soft", ...attributes, text });
}

/** @param {Record<string, Attribute>} attributes */
export function textField(attributes) {
  return element("input", { type: "text", spellcheck: "false", autocomplete: "off", ...attributes });
}

/**
 * The head of a table. A column without a name has no heading.
 * @param {string[]} names
 * @param {(string | null)[]} [classes]
 */
export function headOf(names, classes = []) {
  const cells = names.map((text, k) =>
    element(text ? "th" : "td", { class: classes[k], scope: text ? "col" : null, text }),
  );
  return element("thead", {}, element("tr", {}, cells));
}

/**
 * Keeps one node per key, in the order of the keys. Nodes are made once and then only changed, so that what is typed stays.
 * @template {{ root: Element }} Kept
 * @param {Element} parent
 * @param {Map<string, Kept>} made
 * @param {string[]} keys
 * @param {(key: string) => Kept} make
 */
export function keepNodes(parent, made, keys, make) {
  for (const [key, { root }] of made) {
    if (keys.includes(key)) continue;
    root.remove();
    made.delete(key);
  }
  keys.forEach((key, k) => {
    if (!made.has(key)) made.set(key, make(key));
    const { root } = made.get(key);
    if (parent.children[k] !== root) parent.insertBefore(root, parent.children[k] ?? null);
  });
}

/** @param {KeyboardEvent | WheelEvent} event */
export const hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;

/**
 * Ends an event here: the browser does nothing, and the notebook does not see it.
 * @param {Event} event
 */
export function consume(event) {
  event.preventDefault();
  event.stopPropagation();
}

/**
 * @param {Node} node
 * @param {string | number} text
 */
export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = String(text);
}

/**
 * @param {HTMLElement | SVGElement} node
 * @param {boolean} isVisible
 */
export function show(node, isVisible) {
  node.toggleAttribute("hidden", !isVisible);
}

/**
 * @param {Element} node
 * @param {string} name
 * @param {string | number | boolean} value
 */
export function attribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

const CONTROLS = "button, input, select";
/** @type {WeakMap<Element, string>} */
const contents = new WeakMap();

/**
 * Replaces the children if what they show has changed. A control at the same place keeps the focus.
 * @param {Element} parent
 * @param {unknown} content All that the children show
 * @param {() => Child[]} build
 */
export function fill(parent, content, build) {
  const key = JSON.stringify(content);
  if (contents.get(parent) === key) return;
  const focused = focusIn(parent);
  const place = focused && parent.contains(focused) ? findAll(parent, CONTROLS).indexOf(focused) : -1;
  contents.set(parent, key);
  parent.replaceChildren();
  appendTo(parent, build());
  if (place >= 0) findAll(parent, CONTROLS)[place]?.focus();
}

/**
 * Replaces the children, unless they are the same.
 * @param {Element} parent
 * @param {...Child} children
 */
export function refill(parent, ...children) {
  const content = children.map((child) => (child instanceof Element ? child.outerHTML : child));
  fill(parent, content, () => children);
}

/** @param {[string, string][]} pairs */
export function optionsOf(pairs) {
  return pairs.map(([name, text]) => element("option", { value: name, text }));
}

/**
 * @param {HTMLSelectElement} select
 * @param {[string, string][]} options Pairs of a value and its text
 * @param {string} value
 */
export function fillSelect(select, options, value) {
  fill(select, options, () => optionsOf(options));
  if (select.value !== value) select.value = value;
}

/**
 * @param {ParentNode} parent
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export const find = (parent, selector) => parent.querySelector(selector);

/**
 * @param {ParentNode} parent
 * @param {string} selector
 * @returns {HTMLElement[]}
 */
export const findAll = (parent, selector) =>
  [...parent.querySelectorAll(selector)].map((node) => /** @type {any} */ (node));

/**
 * The element with the focus, also in a shadow root.
 * @param {Node} node
 * @returns {HTMLElement | null}
 */
export function focusIn(node) {
  return /** @type {HTMLElement | null} */ (
    /** @type {Document | ShadowRoot} */ (node.getRootNode()).activeElement ?? null
  );
}

/**
 * Keeps the keys that JupyterLab takes as shortcuts of the notebook: the letter A in a menu would insert a cell, and an
 * arrow would leave for the next one. Shortcuts with Ctrl, Cmd or Alt remain, except Ctrl+Z and Ctrl+Y.
 * @param {Element} root
 * @returns {() => void} A function that stops it
 */
export function keepKeys(root) {
  const decide = (/** @type {KeyboardEvent} */ event) => {
    const { target } = event;
    if (!(target instanceof Element) || !root.contains(target)) return;
    const isKept = event.altKey || ((event.ctrlKey || event.metaKey) && !/^[zy]$/i.test(event.key));
    target.toggleAttribute("data-lm-suppress-shortcuts", !isKept); // an attribute of the root would not count
  };
  // JupyterLab listens to the document in the capture phase, before any listener of the widget.
  window.addEventListener("keydown", decide, { capture: true });
  return () => window.removeEventListener("keydown", decide, { capture: true });
}

/**
 * A function that adds event handlers, and one that removes them all.
 * @returns {{ listen: Listen, stop: () => void }}
 */
export function listeners() {
  const ended = new AbortController();
  return {
    listen: (target, event, handler, options = {}) =>
      target.addEventListener(event, handler, { signal: ended.signal, ...options }),
    stop: () => ended.abort(),
  };
}

/**
 * Copies text. Without a secure context there is no clipboard API, so the text is selected in a field and copied.
 * @param {string} text
 * @param {Element} root
 */
export async function copyText(text, root) {
  if (window.isSecureContext && navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // The front end does not permit it, so try the other way.
    }
  }
  const field = element("textarea", { class: "ml-copy", "aria-hidden": "true", tabindex: "-1" });
  const focused = focusIn(root);
  field.value = text;
  root.append(field);
  field.focus();
  field.select();
  let isCopied = false;
  try {
    isCopied = document.execCommand("copy");
  } catch {
    isCopied = false;
  }
  field.remove();
  focused?.focus();
  return isCopied;
}

/**
 * @param {string} name
 * @param {string} url
 */
export function saveUrl(name, url) {
  element("a", { href: url, download: name }).click();
}

/**
 * @param {string} name
 * @param {string} kind
 * @param {BlobPart[]} parts
 */
export function saveFile(name, kind, parts) {
  const url = URL.createObjectURL(new Blob(parts, { type: kind }));
  saveUrl(name, url);
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
