"""The contrast of text and of the outlines of controls in all widgets of a page."""

from __future__ import annotations

from typing import Any

SCHEMES = """() => {
  const roots = (node) => [...node.querySelectorAll("*")].flatMap((child) => [
    ...(child.matches(".meshlab") ? [child] : []), ...(child.shadowRoot ? roots(child.shadowRoot) : [])]);
  return roots(document).map((root) => root.dataset.scheme);
}"""

# axe-core takes all text for hidden if the body hides what overflows and has no height, as in JupyterLab.
WITH_HEIGHT = """async (work) => {
  const { minHeight } = document.body.style;
  document.body.style.minHeight = "10px";
  try { return await work(); } finally { document.body.style.minHeight = minHeight; }
}"""

# axe-core's rules, in the elements of meshlab only: front ends have faults of their own.
AXE = f"""async (everywhere) => {{
  const isOurs = (node) =>
    node && (everywhere || node.closest(".meshlab, .ml-card") || isOurs(node.getRootNode().host));
  const options = {{ runOnly: {{ type: "rule", values: ["color-contrast", "link-in-text-block"] }}, elementRef: true }};
  const {{ violations, passes }} = await ({WITH_HEIGHT})(() => axe.run(document, options));
  const texts = passes.flatMap(({{ nodes }}) => nodes).filter(({{ element }}) => isOurs(element) && element.innerText);
  const faults = violations.flatMap(({{ id, nodes }}) => nodes.filter(({{ element }}) => isOurs(element)).map(
    ({{ html, any }}) => `${{id}}: ${{html.slice(0, 120)}}: ${{any[0]?.message ?? ""}}`));
  return texts.length < 5 ? [...faults, `axe-core has seen ${{texts.length}} texts`] : faults;
}}"""

# What axe-core does not look at: the text of SVGs, text that is hidden by its own colour, and the outlines of controls.
COLORS = """(everywhere) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const cache = new Map();
  const rgba = (css) => {
    if (!cache.has(css)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = css;
      pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      cache.set(css, [r, g, b, a / 255]);
    }
    return cache.get(css);
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((value, k) => value * a + under[k] * (1 - a)).concat(1);
  const light = (color) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, k) => {
    const value = color[k] / 255;
    return sum + weight * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  }, 0.05);
  const ratio = (one, other) => Math.max(light(one), light(other)) / Math.min(light(one), light(other));
  const parent = (node) => node.assignedSlot ?? node.parentElement ?? node.getRootNode().host ?? null;
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const page = isDark && getComputedStyle(document.documentElement).colorScheme.includes("dark");
  const paper = (node) => {
    if (!node) return page ? [18, 18, 18, 1] : [255, 255, 255, 1];
    const color = rgba(getComputedStyle(node).backgroundColor);
    return color[3] > 0.999 ? color : over(color, paper(parent(node)));
  };
  const opacity = (node) => (node ? parseFloat(getComputedStyle(node).opacity) * opacity(parent(node)) : 1);
  const isOff = (node) => node.closest(":disabled, [aria-disabled=true], .ml-off, [inert]")
    || getComputedStyle(node).pointerEvents === "none" || node.closest("label")?.control?.disabled;
  const name = (node) => `<${node.localName} class="${node.getAttribute("class") ?? ""}">`;
  const faults = new Set();
  const numbers = (color) => color.slice(0, 3).map(Math.round);
  const report = (what, value, least, node, one, other) => value < least && faults.add(
    `${what} ${value.toFixed(2)} < ${least}: ${name(node.parentElement ?? node)} ${name(node)} `
    + `${numbers(one)} on ${numbers(other)} "${node.textContent.trim().slice(0, 40)}"`);

  function checkText(node, scope) {
    const box = node.getBoundingClientRect();
    const isUnseen = node.closest(".ml-live, .ml-copy, .ml-paste-unseen, script, style, title");
    if (box.width < 2 || box.height < 2 || isUnseen || node.closest(":disabled, [aria-disabled=true], .ml-off")) return;
    const style = getComputedStyle(node), isSvg = node.namespaceURI.endsWith("svg");
    let under = paper(node);
    if (isSvg) {
      const stack = scope.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
      const isShape = (other) =>
        other.matches("rect, svg:not(.meshlab-curve *) path") && getComputedStyle(other).fill !== "none";
      for (const shape of stack.filter(isShape).reverse()) {
        const { fill, fillOpacity, opacity: share } = getComputedStyle(shape), [r, g, b, a] = rgba(fill);
        under = over([r, g, b, a * fillOpacity * share], under);
      }
    }
    const [r, g, b, a] = rgba(isSvg ? style.fill : style.color);
    const color = over([r, g, b, a * opacity(node)], under), size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    report("text", ratio(color, under), isLarge ? 3 : 4.5, node, color, under);
  }

  function checkControl(node) {
    const style = getComputedStyle(node), box = node.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || isOff(node) || node.matches(".ml-copy, [type=checkbox], [role=tab]")) return;
    const border = rgba(style.borderBottomColor);
    if (!parseFloat(style.borderBottomWidth) || !border[3]) return;
    const under = paper(parent(node)), color = over(border, under);
    report("outline", Math.max(ratio(color, under), ratio(paper(node), under)), 3, node, color, under);
  }

  function walk(node, scope, isOurs) {
    for (const child of node.children) {
      const inside = isOurs || child.matches(".meshlab, .ml-card");
      if (!child.checkVisibility({ visibilityProperty: true })) continue;
      if (inside) {
        const parts = [...child.childNodes];
        if (parts.some((part) => part.nodeType === 3 && part.textContent.trim())) checkText(child, scope);
        if (child.matches("button, select, input, textarea")) checkControl(child);
      }
      walk(child, scope, inside);
      if (child.shadowRoot) walk(child.shadowRoot, child.shadowRoot, inside);
    }
  }
  walk(document.body, document, everywhere);
  return [...faults];
}"""


def wait_for_scheme(page: Any, scheme: str) -> None:
    """Wait until the root of every widget has a scheme."""
    page.wait_for_function(
        f"scheme => {{ const all = ({SCHEMES})(); return all.length && all.every((root) => root === scheme); }}",
        arg=scheme,
    )


def contrast_faults(page: Any, axe: str, *, everywhere: bool = False) -> list[str]:
    """Return what has too little contrast in the widgets and the cards of a page, or everywhere in it."""
    page.evaluate(axe)
    return [*page.evaluate(AXE, everywhere), *page.evaluate(COLORS, everywhere)]
