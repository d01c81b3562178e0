// Helpers of the panels around a run. Their names are local, because the scripts of a widget are joined into one text.

const dom = (() => {
const THEME_ATTRIBUTES = ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind"];

// An element with attributes and children. "text" is its text, and names that begin with "on" are event handlers.
function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat());
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Only real changes: screen readers announce every write, and the focus must stay where it is.
function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

function attribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Replaces the children if what they show has changed.
function fill(parent, shown, build) {
  const key = JSON.stringify(shown);
  if (parent.dataset.key === key) return;
  const held = parent.getRootNode().activeElement;
  const at = held && parent.contains(held) ? [...parent.querySelectorAll("button, input, select")].indexOf(held) : -1;
  parent.dataset.key = key;
  parent.replaceChildren(...build());
  if (at >= 0) parent.querySelectorAll("button, input, select")[at]?.focus();
}

function table({ columns, rows, left, more }, caption) {
  const cell = (tag, value, k) => make(tag, { text: value, class: k < left ? "mr-left" : null, scope: tag === "th" ? "col" : null });
  const grid = make("table", { class: "mr-table" },
    caption ? [make("caption", { text: caption })] : [],
    make("thead", {}, make("tr", {}, columns.map((name, k) => cell("th", name, k)))),
    make("tbody", {}, rows.map((row) => make("tr", { class: row.some((value) => String(value).startsWith("▲")) ? "mr-hot" : null }, row.map((value, k) => cell("td", value, k))))));
  return make("div", { class: "mr-scroll" }, grid, more ? make("div", { class: "mr-soft", text: more }) : []);
}

const numbers = (value, Type) => new Type(value.buffer.slice(value.byteOffset, value.byteOffset + value.byteLength));

// Keeps data-scheme of an element at "light" or "dark". The text colour decides, because front ends announce their theme
// in many ways, but all of them set it.
function watchScheme(root, listen) {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const update = () => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = getComputedStyle(root).color;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
    attribute(root, "data-scheme", 0.2126 * r + 0.7152 * g + 0.0722 * b > 160 ? "dark" : "light");
  };
  listen(root, "transitionend", (event) => event.target === root && update());
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) listen(matchMedia(query), "change", update);
  const watcher = new MutationObserver(update), page = root.ownerDocument;
  for (const node of [page.documentElement, page.body]) watcher.observe(node, { attributes: true, attributeFilter: THEME_ATTRIBUTES });
  // JupyterLab may add the element to the page later, and an element outside the page has no colour.
  const sizes = new ResizeObserver(update);
  sizes.observe(root);
  update();
  return () => {
    watcher.disconnect();
    sizes.disconnect();
  };
}

// A widget that consists of one panel. The panel gets the names of the changed traits, once per message.
function widgetOf(panel, name) {
  return ({ model, el }) => {
    const ended = new AbortController();
    const listen = (target, event, handler, options = {}) => target.addEventListener(event, handler, { signal: ended.signal, ...options });
    const root = make("div", { class: `meshlab-run mr-alone ${name}` });
    el.append(root);
    const unwatch = watchScheme(root, listen);
    const made = panel({ model, root, listen, shell: { root, send: (content) => model.send?.(content) } });
    let changed = new Set();
    const handlers = panel.traits.map((trait) => [`change:${trait}`, () => {
      if (!changed.size) queueMicrotask(() => {
        const now = changed;
        changed = new Set();
        if (!ended.signal.aborted) made.update(now);
      });
      changed.add(trait);
    }]);
    for (const [event, handler] of handlers) model.on(event, handler);
    return () => {
      for (const [event, handler] of handlers) model.off(event, handler);
      ended.abort();
      unwatch();
      made.destroy();
      root.remove();
    };
  };
}

return { make, svg, text, show, attribute, fill, table, numbers, widgetOf };
})();
