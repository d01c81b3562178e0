// Light or dark: decided from the page that shows the widget, and followed. Each root has the attribute data-scheme.

const ATTRIBUTES = [
  "class",
  "style",
  "theme",
  "data-theme",
  "data-color-scheme",
  "data-jp-theme-light",
  "data-jp-theme-name",
  "data-vscode-theme-kind",
];
const QUERIES = ["(prefers-color-scheme: dark)", "(forced-colors: active)"];

/** @typedef {"light" | "dark"} Scheme */

/**
 * The scheme that the attributes of a page name, or null. JupyterLab, Notebook and Voilà set data-jp-theme-light, VS Code
 * sets classes of the body, Colab sets the attribute theme, and marimo sets a class and data-theme.
 * @param {{ className: string, getAttribute(name: string): string | null }[]} elements The body and the root of the page
 * @returns {Scheme | null}
 */
export function announcedScheme(elements) {
  for (const node of elements) {
    const isLight = node.getAttribute("data-jp-theme-light");
    if (isLight === "true" || isLight === "false") return isLight === "true" ? "light" : "dark";
    const classes = new Set(node.className.split(/\s+/));
    if (classes.has("vscode-light") || classes.has("vscode-high-contrast-light")) return "light";
    if (classes.has("vscode-dark") || classes.has("vscode-high-contrast")) return "dark";
  }
  for (const node of elements) {
    for (const name of ["theme", "data-theme"]) {
      const theme = node.getAttribute(name);
      if (theme === "light" || theme === "dark") return theme;
    }
    const classes = new Set(node.className.split(/\s+/));
    if (classes.has("dark") !== classes.has("light")) return classes.has("dark") ? "dark" : "light";
  }
  return null;
}

/**
 * The relative luminance of WCAG 2.2.
 * @param {ArrayLike<number>} rgb Channels from 0 to 255
 */
export function luminanceOf(rgb) {
  const [r, g, b] = [0, 1, 2].map((k) => {
    const value = rgb[k] / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/**
 * A function that returns any CSS colour as the browser paints it: red, green, blue and opacity from 0 to 255.
 * @returns {(css: string) => Uint8ClampedArray}
 */
export function colorReader() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  if (!pen) return () => new Uint8ClampedArray(4);
  return (css) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = css;
    pen.fillRect(0, 0, 1, 1);
    return pen.getImageData(0, 0, 1, 1).data;
  };
}

/**
 * The scheme of the page around an element of it.
 * @param {HTMLElement} root
 * @param {(css: string) => Uint8ClampedArray} read
 * @returns {Scheme}
 */
function schemeAround(root, read) {
  const page = root.ownerDocument;
  const announced = announcedScheme([page.body, page.documentElement]);
  if (announced) return announced;
  for (let node = parentOf(root); node; node = parentOf(node)) {
    if (node.closest(".meshlab")) continue; // of a widget around this one
    const color = read(getComputedStyle(node).backgroundColor);
    if (color[3] > 127) return luminanceOf(color) > 0.2 ? "light" : "dark";
  }
  // Nothing has a background, so the browser paints one for the scheme of the page.
  const schemes = getComputedStyle(page.documentElement).colorScheme.split(/\s+/);
  if (!schemes.includes("dark")) return "light";
  return !schemes.includes("light") || matchMedia(QUERIES[0]).matches ? "dark" : "light";
}

/**
 * The parent of an element, or the host of its shadow root. The element may be of another frame, so `instanceof` fails.
 * @param {Element} node
 * @returns {Element | null}
 */
function parentOf(node) {
  const root = node.getRootNode();
  return node.parentElement ?? /** @type {Partial<ShadowRoot>} */ (root).host ?? null;
}

/**
 * Keeps data-scheme of an element at "light" or "dark". `changed` is called whenever colours may have changed
 * later, also within a scheme. Returns a function that ends this.
 * @param {HTMLElement} root
 * @param {() => void} [changed]
 */
export function followTheme(root, changed = () => {}) {
  const page = root.ownerDocument;
  const read = colorReader();
  const ended = new AbortController();
  const { signal } = ended;
  const decide = () => {
    if (!root.isConnected) return; // outside the page an element has no colours
    const scheme = schemeAround(root, read);
    if (root.dataset.scheme !== scheme) root.dataset.scheme = scheme;
  };
  const update = () => {
    decide();
    changed();
  };
  const attributes = new MutationObserver(update);
  const sheets = new MutationObserver(update);
  for (const node of [page.documentElement, page.body]) {
    attributes.observe(node, { attributes: true, attributeFilter: ATTRIBUTES });
  }
  sheets.observe(page.head, { childList: true });
  // The sheet of a theme arrives after its element. The event `load` of a link does not bubble.
  page.head.addEventListener("load", update, { capture: true, signal });
  for (const query of QUERIES) matchMedia(query).addEventListener("change", update, { signal });
  // Its style has a short transition of the colour of the text, so this is noticed however a page changes its colours.
  root.addEventListener("transitionend", (event) => event.target === root && update(), { signal });
  // Jupyter adds the element to the page later, which gives it a size.
  let isConnected = root.isConnected;
  const size = new ResizeObserver(() => {
    if (root.isConnected !== isConnected) {
      isConnected = root.isConnected;
      update();
    }
  });
  size.observe(root);
  decide();
  return () => {
    for (const watcher of [attributes, sheets, size]) watcher.disconnect();
    ended.abort();
  };
}
