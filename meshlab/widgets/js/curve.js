// The chart of lines against message size. Its names are local, because the scripts of a widget are joined into one text.

import { clamp } from "./layout.js";
import { attribute, consume, element, hasModifier, listeners, setText, show, svg } from "./dom.js";
import { THIN, sizeText, threeDigits } from "./text.js";

const FONT_PX = 12; // the smallest text, 9 pt
const LINE_PX = 16; // line height of text
const DIRECT_LABELS = 5; // more lines than this get a legend instead
const WIDEST_LABEL_PX = 160;
const NEAR_PX = 40; // maximum distance between the pointer and the point that it shows
const MANY_POINTS = 200; // lines with more points have no markers
const LEAST_DRAG_PX = 12; // a shorter drag does not zoom
const DISTINCT_GROUPS = 8; // thin lines of more groups than this are pale
const GREY = "#8c8c8c";
const MARKUP = `
  <div class="ml-curve-title"></div>
  <div class="ml-curve-note ml-curve-hint"></div>
  <div class="ml-curve-stage" tabindex="0" role="application" aria-roledescription="line chart">
    <svg aria-hidden="true"></svg>
  </div>
  <div class="ml-curve-tip" hidden><b></b><span></span></div>
  <div class="ml-curve-values" aria-hidden="true"></div>
  <button type="button" class="ml-curve-whole" hidden title="Show all sizes again (double click, or 0).">All sizes</button>
  <div class="ml-curve-legend"></div>
  <div class="ml-curve-status" role="status" aria-live="polite"></div>`;

// One marker shape per line, so that colour is not the only difference.
const SHAPES = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0Z`,
  (r) => `M0,${-1.2 * r}L${1.2 * r},${r}H${-1.2 * r}Z`,
  (r) => `M0,${1.2 * r}L${1.2 * r},${-r}H${-1.2 * r}Z`,
];

// The same for the round numbers of a scale.
function tickText(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

// Decode the lines that Python sent, see Line.tobytes.
function read(get) {
  const view = get("points");
  const values = new Float64Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  const palette = get("palette");
  const listed = get("lines");
  let at = 0;
  const take = (count) => values.subarray(at, (at += count));
  return listed.map(({ name, points, band, groups, kind }, index) => ({
    name: kind && kind !== "overlaid" ? `${name}, ${kind}` : name, // an overlaid line has the name of its run
    kind, // empty for a measured line, or "previous", "predicted" or "overlaid"
    colour:
      kind === "previous"
        ? GREY
        : palette[(kind === "predicted" ? listed.findIndex((one) => one.name === name) : index) % palette.length],
    shape: SHAPES[index % SHAPES.length],
    size: take(points),
    value: take(points),
    low: band ? take(points) : null,
    high: band ? take(points) : null,
    groups: Array.from({ length: groups }, () => take(points)), // thin lines; the line is the slowest of them
  }));
}

// About `count` round numbers from low to high. "|| 0" turns -0 into 0.
function steps(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9) || 0; index * step <= high + step * 1e-9; index++) {
    found.push(index * step);
  }
  return found;
}

function scaleY(lines, levels, isLog, high) {
  const values = [...levels];
  for (const line of lines) {
    for (const part of [line.value, line.low, line.high, ...line.groups]) part?.forEach((value) => values.push(value));
  }
  const usable = values.filter((value) => Number.isFinite(value) && (!isLog || value > 0));
  if (!usable.length) usable.push(1);
  let top = usable.reduce((a, b) => Math.max(a, b)) * 1.05;
  if (!isLog) {
    const bottom = Math.min(0, usable.reduce((a, b) => Math.min(a, b)) * 1.05);
    if (top <= bottom) top = 1;
    return { ticks: steps(bottom, top, high / 48), at: (value) => (value - bottom) / (top - bottom) };
  }
  const [from, to] = [Math.floor(Math.log10(usable.reduce((a, b) => Math.min(a, b)))), Math.ceil(Math.log10(top))];
  const factors = to - from <= 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((to - from) / (high / 32)));
  const ticks = [];
  for (let power = from; power <= to; power += every) {
    for (const factor of factors) if (power < to || factor === 1) ticks.push(factor * 10 ** power);
  }
  return { ticks, at: (value) => (Math.log10(value) - from) / (to - from) };
}

// The sizes from the smallest to the largest.
function rangeOf(lines, range) {
  let [low, high] = range ?? [Infinity, -Infinity];
  for (const line of lines) {
    if (line.size.length) [low, high] = [Math.min(low, line.size[0]), Math.max(high, line.size[line.size.length - 1])];
  }
  return low > high ? [1024, 2 ** 20] : [low, high];
}

function scaleX(lines, range, wide, zoom) {
  const [low, high] = zoom ?? rangeOf(lines, range);
  let [from, to] = [Math.log2(low), Math.log2(high)];
  if (to - from < 1) [from, to] = [from - 1, to + 1];
  const every = Math.max(1, Math.ceil((to - from) / (wide / 72)));
  const ticks = [];
  for (let power = Math.ceil(from - 1e-9); power <= to + 1e-9; power++) {
    if (power >= 0 && power % every === 0) ticks.push(2 ** power);
  }
  return {
    ticks,
    at: (value) => (Math.log2(value) - from) / (to - from),
    of: (share) => 2 ** (from + share * (to - from)),
  };
}

// Move labels apart inside [top, bottom], in the same order.
function spread(labels, top, bottom) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, index) => (label.at = Math.max(label.y, index ? labels[index - 1].at + LINE_PX : top)));
  for (let index = labels.length - 1, limit = bottom; index >= 0; index--, limit -= LINE_PX) {
    limit = Math.min(limit, labels[index].at);
    labels[index].at = limit;
  }
  return labels;
}

// A path such as "M0,0L1,2", with a gap at each missing value.
function trace(points) {
  let pen = "M";
  return points
    .map(([x, y]) => {
      if (!Number.isFinite(y)) return ((pen = "M"), "");
      const part = `${pen}${x.toFixed(1)},${y.toFixed(1)}`;
      pen = "L";
      return part;
    })
    .join("");
}

// Make a horizontal stroke of a single point, which would be invisible.
function widen(points, half) {
  const [[x, y]] = points;
  points.splice(0, 1, [x - half, y], [x + half, y]);
  return points;
}

// The runs of consecutive items that satisfy a condition.
function runs(items, condition) {
  const found = [[]];
  for (const item of items) {
    if (condition(item)) found.at(-1).push(item);
    else found.push([]);
  }
  return found.filter((run) => run.length);
}

// The points of a line in a range of sizes, for the scale of its values.
function within(line, [low, high]) {
  const cut = (values) => values?.filter((_, k) => line.size[k] >= low && line.size[k] <= high) ?? null;
  return { value: cut(line.value), low: cut(line.low), high: cut(line.high), groups: line.groups.map(cut) };
}

let charts = 0; // the names of what one chart refers to are different from those of the others

// Draws the chart into an element. `get` returns a value by name, see `Curve` in curve.py.
export function curveChart({ el, get }) {
  const root = document.createElement("div");
  root.className = "meshlab-curve";
  root.innerHTML = MARKUP;
  el.append(root);
  const [title, note, stage, picture, tip, values, whole, legend, status] = [
    "title",
    "note",
    "stage",
    "stage svg",
    "tip",
    "values",
    "whole",
    "legend",
    "status",
  ].map((name) => /** @type {HTMLElement} */ (root.querySelector(`.ml-curve-${name}`)));
  const ring = svg("path", { class: "ml-curve-ring" });
  const cursor = svg("path", { class: "ml-curve-cursor" }); // at the size whose values are below the chart
  const chosen = svg("rect", { class: "ml-curve-chosen", width: 0 }); // the sizes that are dragged over
  const clip = `ml-curve-clip-${++charts}`;
  const pen = document.createElement("canvas").getContext("2d"); // only to measure text
  const { listen, stop } = listeners();
  const textWidth = (text) => pen.measureText(text).width;

  let lines = [];
  let spots = []; // for each line its points on the page: [x, y, index]
  let active = null; // [index of the line, index in its spots]
  let byKey = false;
  let width = 0;
  let frame = 0;
  let zoom = null; // the range of sizes that is shown, or null for all
  let plot = null; // where the chart is on the page: { left, right, top, bottom, px, of }
  let dragged = null; // where a drag began
  const schedule = () => (frame ||= requestAnimationFrame(paint));

  const shorten = (text) => {
    if (textWidth(text) <= WIDEST_LABEL_PX) return text;
    let end = text.length;
    while (end > 1 && textWidth(`${text.slice(0, end)}…`) > WIDEST_LABEL_PX) end--;
    return `${text.slice(0, end)}…`;
  };

  function paint() {
    frame = 0;
    width = root.clientWidth;
    if (!width) {
      size.unobserve(root);
      size.observe(root); // hidden, maybe only briefly: a new observation fires as soon as it is visible
      return;
    }
    lines = read(get);
    pen.font = `${FONT_PX}px ${getComputedStyle(root).fontFamily}`;
    const height = get("height");
    const isLog = get("y_scale") === "log";
    const levels = Object.entries(get("references")).filter(([, value]) => !isLog || value > 0);
    const drawn = lines.filter((line) => line.value.some(Number.isFinite));
    const isDirect = drawn.length <= DIRECT_LABELS;
    root.classList.toggle("ml-curve-crowded", !isDirect);

    const top = 28;
    const bottom = height - 44;
    const y = scaleY(
      zoom ? lines.map((line) => within(line, zoom)) : lines,
      levels.map(([, value]) => value),
      isLog,
      bottom - top,
    );
    const left = Math.ceil(Math.max(...y.ticks.map((tick) => textWidth(tickText(tick))))) + 12;
    const names = drawn.map((line) => shorten(line.name));
    const right = width - (isDirect && names.length ? Math.ceil(Math.max(...names.map(textWidth))) + 32 : 28);
    const x = scaleX(lines, get("x_range"), right - left, zoom);
    const px = (value) => left + x.at(value) * (right - left);
    const py = (value) => bottom - y.at(value) * (bottom - top);
    const usable = (value) => Number.isFinite(value) && (!isLog || value > 0);

    plot = { left, right, top, bottom, px, of: (at) => x.of((at - left) / (right - left)) };
    const parts = [paintScale(x, y, px, py, left, right, top, bottom)];
    const drawing = svg("g", zoom ? { "clip-path": `url(#${clip})` } : {});
    parts.push(paintLevels(levels, py, left, right, top, bottom));
    spots = [];
    for (const line of [...lines.filter((l) => l.kind), ...lines.filter((l) => !l.kind)]) {
      const places = Array.from(line.size, (size, index) => [
        px(size),
        usable(line.value[index]) ? py(line.value[index]) : NaN,
        index,
      ]);
      drawing.append(paintLine(line, places, px, py, usable));
      spots[lines.indexOf(line)] = places.filter(
        ([x, at]) => Number.isFinite(at) && (!zoom || (x >= left - 1 && x <= right + 1)),
      );
    }
    parts.push(drawing);
    if (zoom) {
      const box = { x: left - 6, y: top - 6, width: right - left + 12, height: bottom - top + 12 };
      parts.push(svg("clipPath", { id: clip }, svg("rect", box)));
    }
    if (isDirect) {
      const visible = drawn.map((line, k) => [line, names[k]]).filter(([line]) => spots[lines.indexOf(line)].length);
      parts.push(
        paintEnds(
          visible.map(([line]) => line),
          visible.map(([, name]) => name),
          right,
          top,
          bottom,
        ),
      );
    }
    if (!drawn.length) {
      parts.push(
        svg("text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, "no points yet"),
      );
    }
    attribute(picture, "height", height);
    attribute(picture, "viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...parts, cursor, chosen, ring);
    show(whole, Boolean(zoom));

    title.textContent = get("title");
    note.textContent = get("note");
    legend.replaceChildren(...(isDirect ? [] : drawn.map(legendEntry)));
    const what = title.textContent || `${get("y_label")} against ${get("x_label")}`;
    attribute(
      stage,
      "aria-label",
      `${what}. Left and right arrow keys move along a line. Up and down arrow keys switch lines. + and - zoom.`,
    );
    point();
  }

  function paintScale(x, y, px, py, left, right, top, bottom) {
    const group = svg("g", { class: "ml-curve-scale ml-curve-soft" });
    const middle = 4; // from the middle of a label to its baseline
    for (const tick of y.ticks) {
      const at = py(tick);
      if (at < top - 1) continue;
      group.append(svg("line", { x1: left, x2: right, y1: at, y2: at }));
      group.append(svg("text", { x: left - 8, y: at + middle, "text-anchor": "end" }, tickText(tick)));
    }
    let free = -Infinity; // the right end of the last label
    for (const tick of x.ticks) {
      const [at, half] = [px(tick), textWidth(sizeText(tick)) / 2];
      group.append(svg("line", { x1: at, x2: at, y1: top, y2: bottom }));
      if (at - half < free || at + half > width) continue;
      group.append(svg("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, sizeText(tick)));
      free = at + half + 8;
    }
    group.append(svg("line", { class: "ml-curve-floor", x1: left, x2: right, y1: bottom, y2: bottom }));
    group.append(svg("text", { x: 0, y: FONT_PX }, `${get("y_label")} (${get("y_unit")})`));
    group.append(svg("text", { x: right, y: bottom + 38, "text-anchor": "end" }, get("x_label")));
    return group;
  }

  function paintLevels(levels, py, left, right, top, bottom) {
    const group = svg("g", { class: "ml-curve-level" });
    const labels = levels.map(([text, value]) => ({ text, y: py(value) - 6 }));
    for (const [, value] of levels) group.append(svg("line", { x1: left, x2: right, y1: py(value), y2: py(value) }));
    for (const { text, at } of spread(labels, top + FONT_PX - 6, bottom - 6)) {
      group.append(svg("text", { x: left + 8, y: at }, text));
    }
    return group;
  }

  function paintLine(line, places, px, py, usable) {
    const group = svg("g", line.kind ? { class: `ml-curve-${line.kind}` } : {});
    if (line.low) {
      const bounds = Array.from(line.size, (size, index) => [px(size), line.low[index], line.high[index]]);
      const areas = runs(bounds, ([, low, high]) => usable(low) && usable(high)).map((run) => {
        const upper = run.map(([at, , high]) => [at, py(high)]);
        const lower = run.map(([at, low]) => [at, py(low)]).reverse();
        if (run.length === 1) {
          widen(upper, 3);
          widen(lower, 3).reverse();
        }
        return `${trace([...upper, ...lower])}Z`;
      });
      group.append(svg("path", { class: "ml-curve-band", d: areas.join(""), fill: line.colour }));
    }
    const thin = line.groups.map((values) => {
      const at = Array.from(line.size, (size, index) => [px(size), usable(values[index]) ? py(values[index]) : NaN]);
      return trace(at.length === 1 ? widen(at, 8) : at);
    });
    if (thin.length) {
      const many = thin.length > DISTINCT_GROUPS ? " ml-curve-many" : "";
      group.append(svg("path", { class: `ml-curve-groups${many}`, d: thin.join(""), stroke: line.colour }));
    }
    group.append(svg("path", { class: "ml-curve-line", d: trace(places), stroke: line.colour }));
    if (!line.kind && places.length <= MANY_POINTS) {
      for (const [at, level] of places) {
        if (!Number.isFinite(level)) continue;
        group.append(
          svg("path", {
            class: "ml-curve-point",
            d: line.shape(4),
            fill: line.colour,
            transform: `translate(${at},${level})`,
          }),
        );
      }
    }
    return group;
  }

  function paintEnds(drawn, names, right, top, bottom) {
    const group = svg("g", { class: "ml-curve-ends" });
    const labels = drawn.map((line, index) => {
      const [at, level] = spots[lines.indexOf(line)].at(-1);
      return { line, text: names[index], x: at, y: level };
    });
    for (const { line, text, x, y, at } of spread(labels, top + LINE_PX / 2, bottom - LINE_PX / 2)) {
      group.append(svg("path", { class: "ml-curve-leader", d: `M${x + 6},${y}L${right + 4},${at}H${right + 10}` }));
      group.append(svg("path", { ...sign(line), transform: `translate(${right + 16},${at})` }));
      group.append(svg("text", { x: right + 26, y: at + 4 }, text));
    }
    return group;
  }

  const sign = ({ kind, shape, colour }) =>
    kind
      ? { d: kind === "predicted" ? "M-6,0H-2M2,0H6" : "M-5,0H5", stroke: colour, "stroke-width": 2 }
      : { d: shape(4), fill: colour };

  function legendEntry(line) {
    const entry = document.createElement("span");
    const swatch = svg("svg", { viewBox: "0 0 24 12", "aria-hidden": "true" });
    swatch.append(svg("path", { ...sign(line), transform: "translate(12,6)" }));
    entry.append(swatch, line.name);
    return entry;
  }

  // Show the values of the active point in a box next to a ring. The keyboard also announces them to screen readers.
  function point() {
    const spot = active && spots[active[0]]?.[Math.min(active[1], spots[active[0]].length - 1)];
    tip.hidden = !spot;
    if (spot) showValues(lines[active[0]].size[spot[2]]);
    attribute(ring, "d", spot ? SHAPES[0](7) : "");
    if (!spot) return announce("");
    const [x, y, index] = spot;
    const line = lines[active[0]];
    const unit = get("y_unit");
    const hasInterval = line.low && Number.isFinite(line.low[index]);
    const interval = hasInterval
      ? `, interval ${threeDigits(line.low[index])} to ${threeDigits(line.high[index])}`
      : "";
    const value = `${threeDigits(line.value[index])}${THIN}${unit}${interval}`;
    attribute(ring, "transform", `translate(${x},${y})`);
    tip.firstChild.textContent = line.name;
    tip.lastChild.textContent = `${sizeText(line.size[index])}\n${value}`;
    const left = x + 16 + tip.offsetWidth <= width ? x + 16 : x - 16 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, left)}px`;
    const top = stage.offsetTop + y + 12;
    // Below the chart, the box would make the output of the cell scroll.
    tip.style.top = `${Math.max(0, Math.min(top, root.clientHeight - tip.offsetHeight))}px`;
    announce(byKey ? `${line.name} at ${sizeText(line.size[index])}: ${value}` : "");
  }

  const announce = (text) => setText(status, text);

  // The values of all lines at a size, below the chart, and a line at this size.
  function showValues(size) {
    if (!plot || size === null) {
      attribute(cursor, "d", "");
      return values.replaceChildren();
    }
    attribute(cursor, "d", `M${plot.px(size)},${plot.top}V${plot.bottom}`);
    const at = lines.map((line) => [line, line.value[line.size.indexOf(size)]]).filter(([, v]) => Number.isFinite(v));
    values.replaceChildren(
      element("b", { text: sizeText(size) }),
      ...at.map(([line, value]) => {
        const entry = legendEntry(line);
        entry.append(` ${threeDigits(value)}${THIN}${get("y_unit")}`);
        return entry;
      }),
    );
  }

  function sizeNear(x) {
    const sizes = new Set(spots.flatMap((places, line) => places.map(([, , index]) => lines[line].size[index])));
    return [...sizes].reduce(
      (best, size) => (best === null || Math.abs(plot.px(size) - x) < Math.abs(plot.px(best) - x) ? size : best),
      null,
    );
  }

  function zoomTo(range) {
    zoom = range && range[1] / range[0] >= 1.9 ? range : null;
    active = null;
    schedule();
  }

  function zoomBy(factor) {
    const [from, to] = [plot.of(plot.left), plot.of(plot.right)].map(Math.log2);
    const middle = active ? Math.log2(lines[active[0]].size[spots[active[0]][active[1]][2]]) : (from + to) / 2;
    const half = (factor * (to - from)) / 2;
    const [low, high] = rangeOf(lines, get("x_range"));
    const range = [Math.max(low, 2 ** (middle - half)), Math.min(high, 2 ** (middle + half))];
    if (half >= 0.5) zoomTo(range[0] > low || range[1] < high ? range : null);
  }

  function press(event) {
    const x = event.clientX - picture.getBoundingClientRect().left;
    if (!plot || event.button || event.pointerType === "touch" || x < plot.left || x > plot.right) return;
    dragged = x;
    stage.setPointerCapture?.(event.pointerId);
  }

  function drag(event) {
    if (dragged === null) return false;
    const to = event.clientX - picture.getBoundingClientRect().left;
    const x = clamp(to, plot.left, plot.right);
    const isZoom = Math.abs(x - dragged) >= LEAST_DRAG_PX;
    const [low, high] = [Math.min(x, dragged), Math.max(x, dragged)];
    for (const [name, value] of Object.entries({ x: low, y: plot.top, width: isZoom ? high - low : 0 })) {
      chosen.setAttribute(name, String(value));
    }
    attribute(chosen, "height", plot.bottom - plot.top);
    return isZoom ? [low, high] : true;
  }

  function release(event) {
    const range = drag(event);
    dragged = null;
    chosen.setAttribute("width", "0");
    if (Array.isArray(range)) zoomTo(range.map(plot.of));
  }

  function hover(event) {
    if (drag(event)) return;
    const box = picture.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let nearest = NEAR_PX;
    active = null;
    byKey = false;
    spots.forEach((places, line) =>
      places.forEach(([px, py], index) => {
        const distance = Math.hypot(px - x, py - y);
        if (distance < nearest) [nearest, active] = [distance, [line, index]];
      }),
    );
    point();
    if (!active) showValues(plot && x >= plot.left && x <= plot.right ? sizeNear(x) : null);
  }

  function leave() {
    active = null;
    point();
    showValues(null);
  }

  function key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Escape: null };
    const zooms = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity };
    if (!(event.key in moves || event.key in zooms) || hasModifier(event)) return;
    consume(event);
    if (event.key in zooms) return plot && zoomBy(zooms[event.key]);
    if (event.key === "Escape") return leave();
    const some = spots.map((places, line) => (places.length ? line : -1)).filter((line) => line >= 0);
    if (!some.length) return;
    byKey = true;
    if (active) {
      const [down, along] = moves[event.key];
      const line = some[(some.indexOf(active[0]) + down + some.length) % some.length];
      active = [line, clamp(active[1] + along, 0, spots[line].length - 1)];
    } else {
      active = [some[0], 0];
    }
    point();
  }

  listen(stage, "pointerdown", press);
  listen(stage, "pointerup", release);
  listen(stage, "pointercancel", release);
  listen(stage, "dblclick", () => zoomTo(null));
  listen(whole, "click", () => (zoomTo(null), stage.focus()));
  listen(stage, "pointermove", hover);
  listen(stage, "pointerleave", leave);
  listen(stage, "keydown", key);
  listen(stage, "blur", leave);
  const size = new ResizeObserver(() => root.clientWidth !== width && schedule());
  size.observe(root);
  paint();

  const destroy = () => {
    cancelAnimationFrame(frame);
    size.disconnect();
    stop();
    root.remove();
  };
  return { update: schedule, destroy };
}
