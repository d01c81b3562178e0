"""A widget's JavaScript on a bare page, and what can be measured on any page."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

__all__ = ["HIDDEN_FOR_AN_INSTANT", "ORIGIN", "Bare", "Wired", "overlapping_texts", "scrolls_sideways", "state_of"]

ORIGIN = "http://widgets.test"


def state_of(widget: Any, *names: str) -> dict[str, Any]:
    """What the kernel sends, with bytes as base64."""
    state = widget.get_state(list(names) or None)
    unused = ("_esm", "_css", "layout", "tabbable", "tooltip")
    return {name: _encoded(value) for name, value in state.items() if name not in unused}


def _encoded(value: Any) -> Any:
    if isinstance(value, (bytes, memoryview)):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _encoded(one) for name, one in value.items()}
    return [_encoded(one) for one in value] if isinstance(value, (list, tuple)) else value


class Bare:
    """A widget on the bare page."""

    def __init__(self, page: Any, name: str, widget: Any, *, theme: str = "light") -> None:
        self.page = page
        page.goto(f"{ORIGIN}/stub.html")
        self.theme(theme)
        page.evaluate("isWired => setWired(isWired)", isinstance(self, Wired))
        self.first_paint_ms = page.evaluate("([name, state]) => mount(name, state)", [name, state_of(widget)])

    def theme(self, theme: str) -> None:
        self.page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
        self.page.wait_for_timeout(50)

    def receive(self, widget: Any, *names: str) -> float:
        """Send traits; the milliseconds that the widget worked in its frames."""
        return float(self.page.evaluate("state => receive(state)", state_of(widget, *names)))

    def settle(self) -> None:
        self.page.evaluate("() => painted()")


class Wired(Bare):
    """A widget on the bare page that answers: what the page sends reaches Python, and the changes come back."""

    def __init__(self, page: Any, name: str, widget: Any, **options: Any) -> None:
        self.widget = widget
        self.changed: set[str] = set()
        self.messages: list[Any] = []
        widget.observe(lambda change: self.changed.add(change["name"]), names=widget.keys)
        widget.send = lambda content, buffers=None: self.messages.append(content)
        page.wires.append(self)
        super().__init__(page, name, widget, **options)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Hand a question of the page to the widget. Return what has changed, and the messages."""
        self.changed.clear()
        self.messages.clear()
        if "state" in question:
            self.widget.set_state({name: _decoded(value) for name, value in question["state"].items()})
            self.changed -= set(question["state"])
        else:
            self.widget._handle_custom_msg(question["message"], [])
        return {"state": state_of(self.widget, *self.changed) if self.changed else {}, "messages": list(self.messages)}

    def push(self, change: Callable[[], Any]) -> None:
        """Change the widget in Python, and send the changes to the page."""
        self.changed.clear()
        change()
        if self.changed:
            self.receive(self.widget, *self.changed)

    def wait(self) -> None:
        """Wait until every question has its answer, and the answers are painted."""
        self.page.wait_for_function("() => waiting === 0")
        self.settle()


def _decoded(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) and "base64" in value else value


# Hide the widget before it paints and show it before the page is laid out, as JupyterLab does when a theme changes.
HIDDEN_FOR_AN_INSTANT = """change => new Promise(done => {
  askFrame(() => host.style.display = "none");
  model.receive(change);
  askFrame(() => { host.style.display = "block"; done(); });
})"""

OVERLAPS = """
root => {
  const texts = [];
  const walker = document.createTreeWalker(document.querySelector(root), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.textContent.trim()) continue;
    if (node.parentElement.closest("[hidden], .ml-tip, .ml-curve-tip, script, style")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    // A text that ends in an ellipsis has two boxes, as it would be and as it is drawn; its element clips both.
    const element = node.parentElement;
    const clip = getComputedStyle(element).overflowX === "visible" ? null : element.getBoundingClientRect();
    for (const { left, right, top, bottom } of range.getClientRects()) {
      const box = { left, right: Math.min(right, clip?.right ?? right), top, bottom };
      if (box.right - left > 1 && bottom - top > 1) texts.push([node, box]);
    }
  }
  const overlaps = [];
  const name = node => node.textContent.trim().slice(0, 40);
  texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (a !== b && wide > 1 && high > 2) overlaps.push(`${name(a)} | ${name(b)}`);
  }));
  return overlaps;
}
"""


def overlapping_texts(page: Any, selector: str) -> list[str]:
    """Pairs of texts in the page that lie over each other."""
    return list(page.evaluate(OVERLAPS, selector))


SIDEWAYS = """
root => {
  const page = document.documentElement;
  const clips = e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth && getComputedStyle(e).overflowX !== "visible";
  return page.scrollWidth > innerWidth || [...document.querySelectorAll(`${root}, ${root} *`)].some(clips);
}
"""


def scrolls_sideways(page: Any, selector: str) -> bool:
    """True when something inside the element, or the page, is wider than its box."""
    return bool(page.evaluate(SIDEWAYS, selector))
