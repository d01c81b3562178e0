// The widget Curve: a chart whose values are traits of its own.

const OWN = ["title", "x_label", "y_label", "y_unit", "y_scale", "x_range", "references", "height"];
const PRIVATE = ["lines", "points", "note", "palette"];

function render({ model, el }) {
  const chart = curveChart({ el, get: (name) => model.get(PRIVATE.includes(name) ? `_${name}` : name) });
  const events = [...OWN, ...PRIVATE.map((name) => `_${name}`)].map((name) => `change:${name}`);
  for (const event of events) model.on(event, chart.update);
  return () => {
    for (const event of events) model.off(event, chart.update);
    chart.destroy();
  };
}

export default { render };
