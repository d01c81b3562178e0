// The tooltip of the picture: its text, its place, and the time that the pointer has to reach it.

import { setText } from "./dom.js";
import { clamp } from "./layout.js";

const DELAY_MS = 250; // during which the pointer may cross other things on its way into the tooltip

/**
 * @param {any} tip An element with a heading and a text
 * @param {{ width: number, height: number }} room Of the picture
 */
export function tooltip(tip, room) {
  let timer = 0;
  let shown = "";
  /** @type {[number, number]} */
  let pointer = [0, 0];
  const keyOf = (hit) => (hit ? `${hit.kind} ${hit.index}` : "");

  function hide() {
    clearTimeout(timer);
    tip.hidden = true;
    shown = "";
  }

  // True if the pointer is on its way into the tooltip, so that what it crosses must not replace it.
  function isNearing([x, y], [x0, y0]) {
    if (tip.hidden) return false;
    const tx = clamp(x, tip.offsetLeft, tip.offsetLeft + tip.offsetWidth) - x;
    const ty = clamp(y, tip.offsetTop, tip.offsetTop + tip.offsetHeight) - y;
    const far = Math.hypot(tx, ty);
    const step = Math.hypot(x - x0, y - y0);
    return far < 60 && step > 0 && tx * (x - x0) + ty * (y - y0) > 0.7 * far * step;
  }

  return {
    hide,
    // Puts a text about a hit next to a point or a box: at its lower right or, without room there, on the other side.
    show(hit, text, x, y, w = 0, h = 0) {
      if (!text) return hide();
      clearTimeout(timer);
      shown = keyOf(hit);
      tip.hidden = false;
      setText(tip.firstChild, text[0]);
      setText(tip.lastChild, text[1]);
      const put = (low, extent, own, most) => {
        const after = low + extent + 14;
        return clamp(after + own > most ? low - own - 14 : after, 4, Math.max(4, most - own - 4));
      };
      tip.style.left = `${put(x, w, tip.offsetWidth, room.width)}px`;
      tip.style.top = `${put(y, h, tip.offsetHeight, room.height)}px`;
    },
    // Calls `change` when the pointer is at another hit and stays there. The tooltip rests while the pointer does.
    follow(hit, x, y, change) {
      const before = pointer;
      pointer = [x, y];
      clearTimeout(timer);
      if (shown && keyOf(hit) === shown) return;
      if (isNearing(pointer, before)) timer = setTimeout(change, DELAY_MS);
      else change();
    },
  };
}
