// The widget Curve: a chart whose values are its own traits.

import { curveChart } from "./curve.js";
import { element, keepKeys } from "./dom.js";
import { followTheme } from "./theme.js";

const OWN = ["title", "x_label", "y_label", "y_unit", "y_scale", "x_range", "references", "height"];
const PRIVATE = ["lines", "points", "note", "palette"];

function render({ model, el }) {
  const root = element("div", { class: "meshlab" });
  el.append(root);
  const unfollow = followTheme(root);
  const releaseKeys = keepKeys(el);
  const chart = curveChart({ el: root, get: (name) => model.get(PRIVATE.includes(name) ? `_${name}` : name) });
  const events = [...OWN, ...PRIVATE.map((name) => `_${name}`)].map((name) => `change:${name}`);
  for (const event of events) model.on(event, chart.update);
  return () => {
    for (const event of events) model.off(event, chart.update);
    chart.destroy();
    unfollow();
    releaseKeys();
    root.remove();
  };
}

export default { render };
