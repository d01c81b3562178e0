// The canvas of meshlab.widgets.Grid: one cell per rank. Plain JavaScript without a build step or network access.

const FONT_PX = 12; // the smallest text, 9 pt
const ROOM_PX = 8; // smallest cell with borders and labels
const LARGEST_CELL_PX = 48;
const LARGEST_HEIGHT_PX = 512;
const CLICK_PX = 4; // a shorter drag is a click
const HALO_PX = 2;

const MARKUP = `
  <div class="ml-caption"></div>
  <div class="ml-stage" tabindex="0" role="application" aria-roledescription="grid of ranks">
    <canvas></canvas><canvas></canvas>
  </div>
  <div class="ml-tip" hidden><b></b><span></span></div>
  <div class="ml-foot"><span class="ml-status" role="status" aria-live="polite"></span>
    <span class="ml-hint">Drag to select, Shift to add · arrow keys move, Space selects, Esc clears</span></div>`;

// Copy the buffer, because buffers from the kernel may start at any offset, but typed arrays need an aligned one.
function array(view, Type) {
  return new Type(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

function unsigned(view, length) {
  return array(view, { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: BigUint64Array }[view.byteLength / length]);
}

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// W3C's relative luminance, with a power of 2.2 instead of the piecewise sRGB curve.
function isLight([r, g, b]) {
  return 0.2126 * (r / 255) ** 2.2 + 0.7152 * (g / 255) ** 2.2 + 0.0722 * (b / 255) ** 2.2 > 0.18;
}

// "0–7, 16, 24–31, …"
function runs(ranks, most) {
  const parts = [];
  for (let i = 0; i < ranks.length; ) {
    let j = i;
    while (j + 1 < ranks.length && ranks[j + 1] === ranks[j] + 1) j++;
    if (parts.length === most) return `${parts.join(", ")}, …`;
    if (j > i + 1) parts.push(`${ranks[i]}–${ranks[j]}`);
    else parts.push(...(j > i ? [ranks[i], ranks[j]] : [ranks[i]]));
    i = j + 1;
  }
  return parts.join(", ");
}

// Decode the traits that Python sent.
function read(model) {
  const { ranks, columns, block, fields, caption, group, single, groups } = model.get("_shape");
  const ids = array(model.get("_groups"), Int32Array);
  const values = unsigned(model.get("_coordinates"), fields.length * ranks);
  let members = null; // ranks by group, ascending. Built on the first hover, because it is slow for large meshes.
  const name = (id) => (id < 0 ? `not in ${group}` : single ? group : `${group}_${id}`);
  return {
    ranks, columns, block, ids, caption, name,
    rows: Math.ceil(ranks / columns),
    lastNumber: single ? "" : String(groups - 1),
    lastName: name(groups - 1),
    place: (rank) => fields.map((field, index) => `${field}=${values[index * ranks + rank]}`).join(" · "),
    members(rank) {
      if (ids[rank] < 0) return [rank];
      if (!members) {
        members = Array.from({ length: groups }, () => []);
        ids.forEach((id, other) => id >= 0 && members[id].push(other));
      }
      return members[ids[rank]];
    },
  };
}

// The position of each cell in CSS pixels, and the rank at a position.
function arrange(data, width, gutter, ratio) {
  const { ranks, columns, rows, block } = data;
  const blocks = block ? Math.ceil(columns / block) : 1;
  const snap = (cell) => (cell * ratio >= 1 ? Math.floor(cell * ratio) / ratio : cell);
  const fit = (gap) =>
    Math.min((width - gutter - (blocks - 1) * gap) / columns, LARGEST_HEIGHT_PX / rows, LARGEST_CELL_PX);
  const gap = [8, 2, 0].find((space) => space === 0 || fit(space) >= Math.max(space, 3));
  const cell = snap(fit(gap));
  const step = (block || columns) * cell + gap; // distance between two blocks
  const x = (column) => gutter + (block ? Math.floor(column / block) * gap : 0) + column * cell;
  return {
    cell, gap, gutter, blocks, x,
    y: (row) => row * cell,
    width: x(columns - 1) + cell,
    height: rows * cell,
    rankAt(px, py) {
      const inside = px - gutter;
      const number = Math.floor(inside / step);
      const column = number * (block || columns) + Math.floor((inside - number * step) / cell);
      const row = Math.floor(py / cell);
      if (inside < 0 || inside - number * step >= step - gap || column >= columns || row < 0 || row >= rows) return -1;
      return row * columns + column < ranks ? row * columns + column : -1;
    },
  };
}

// The ranks whose centres are inside the path or, if there are none, the ranks that the path crosses.
function enclosed(data, place, path) {
  const found = [];
  for (let row = 0; row < data.rows; row++) {
    const y = place.y(row) + place.cell / 2;
    const cuts = [];
    path.forEach(([ax, ay], index) => {
      const [bx, by] = path[(index + 1) % path.length];
      if (ay > y !== by > y) cuts.push(ax + ((y - ay) / (by - ay)) * (bx - ax));
    });
    cuts.sort((a, b) => a - b);
    for (let column = 0, cut = 0; cuts.length && column < data.columns; column++) {
      const x = place.x(column) + place.cell / 2;
      while (cut < cuts.length && cuts[cut] < x) cut++;
      const rank = row * data.columns + column;
      if (cut % 2 && rank < data.ranks) found.push(rank);
    }
  }
  if (found.length) return found;
  const under = new Set();
  path.slice(1).forEach(([bx, by], index) => {
    const [ax, ay] = path[index];
    const steps = Math.ceil(Math.hypot(bx - ax, by - ay) / Math.max(1, place.cell / 2));
    for (let i = 0; i <= steps; i++) under.add(place.rankAt(ax + ((bx - ax) * i) / steps, ay + ((by - ay) * i) / steps));
  });
  under.delete(-1);
  return [...under];
}

// The outline of a set of ranks as one path.
function outline(data, place, ranks, contains) {
  const path = new Path2D();
  const { columns } = data;
  const edge = (x0, y0, x1, y1) => (path.moveTo(x0, y0), path.lineTo(x1, y1));
  for (const rank of ranks) {
    const column = rank % columns;
    const left = place.x(column);
    const top = place.y((rank - column) / columns);
    const right = left + place.cell;
    const bottom = top + place.cell;
    const isGap = (at) => place.gap && data.block && at % data.block === 0;
    if (!contains(rank - columns)) edge(left, top, right, top);
    if (!contains(rank + columns)) edge(left, bottom, right, bottom);
    if (column === 0 || isGap(column) || !contains(rank - 1)) edge(left, top, left, bottom);
    if (column === columns - 1 || isGap(column + 1) || !contains(rank + 1)) edge(right, top, right, bottom);
  }
  return path;
}

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "meshlab-grid";
  root.innerHTML = MARKUP;
  el.append(root);
  const find = (selector) => root.querySelector(selector);
  const [caption, stage, tip, status] = [".ml-caption", ".ml-stage", ".ml-tip", ".ml-status"].map(find);
  const ended = new AbortController();
  const listen = (target, event, handler) => target.addEventListener(event, handler, { signal: ended.signal });
  const [base, over] = root.querySelectorAll("canvas");
  const overview = document.createElement("canvas"); // one pixel per rank

  let data, place, mask, chosen;
  let width = 0;
  let hovered = -1;
  let cursor = -1;
  let path = null; // the lasso while it is drawn
  let stale = { data: true, base: true };
  let frame = 0;

  const schedule = (what = {}) => {
    Object.assign(stale, what);
    frame ||= requestAnimationFrame(paint);
  };

  function paint() {
    frame = 0;
    width = root.clientWidth;
    if (!width) {
      size.unobserve(root);
      size.observe(root); // hidden, maybe only briefly: a new observation fires as soon as it is visible
      return;
    }
    if (stale.data) {
      data = read(model);
      takeSelection();
      if (cursor >= data.ranks) cursor = -1;
      hovered = -1;
    }
    if (stale.data || stale.base) paintBase();
    stale = {};
    paintOver();
    showStatus();
  }

  function takeSelection() {
    chosen = array(model.get("selected"), Int32Array);
    mask = new Uint8Array(data.ranks);
    chosen.forEach((rank) => (mask[rank] = 1));
  }

  function colours() {
    const [{ color, fontFamily }, { backgroundColor, caretColor }] = [getComputedStyle(root), getComputedStyle(tip)];
    return { ink: color, paper: backgroundColor, accent: caretColor, family: fontFamily };
  }

  function paintBase() {
    const ratio = window.devicePixelRatio || 1;
    const context = base.getContext("2d");
    const { ink, family } = colours();
    context.font = `${FONT_PX}px ${family}`;
    const gutter = Math.ceil(context.measureText(String(data.ranks - 1)).width) + 8;
    place = arrange(data, width, gutter, ratio);
    for (const canvas of [base, over]) {
      canvas.width = Math.floor(width * ratio);
      canvas.height = Math.ceil(Math.max(place.height, FONT_PX + 4) * ratio);
      canvas.style.width = `${canvas.width / ratio}px`;
      canvas.style.height = `${canvas.height / ratio}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    paintOverview();

    context.imageSmoothingEnabled = false;
    const across = data.block || data.columns;
    for (let number = 0; number < place.blocks; number++) {
      const from = number * across;
      const count = Math.min(across, data.columns - from);
      context.drawImage(overview, from, 0, count, data.rows, place.x(from), 0, count * place.cell, place.height);
    }
    context.font = `${FONT_PX}px ${family}`;
    context.textBaseline = "middle";
    paintRowLabels(context, ink);
    if (place.cell >= ROOM_PX) paintCells(context, ink, family);
    caption.textContent = data.caption;
    stage.setAttribute("aria-label", `${data.caption}. Arrow keys move, Space selects, Escape clears.`);
  }

  function paintOverview() {
    overview.width = data.columns;
    overview.height = data.rows;
    const image = new ImageData(data.columns, data.rows);
    const pixels = new Uint32Array(image.data.buffer); // ABGR, because all machines with a browser are little-endian
    const palette = model.get("_palette").map((hex) => rgb(hex).reduceRight((all, part) => (all << 8) | part, 0));
    const strong = palette.map((colour) => (colour | 0xff000000) >>> 0);
    const faint = palette.map((colour) => (colour | 0x59000000) >>> 0);
    for (let rank = 0; rank < data.ranks; rank++) {
      const id = data.ids[rank];
      const bright = !chosen.length || mask[rank];
      pixels[rank] = id < 0 ? 0x40808080 : (bright ? strong : faint)[id % palette.length];
    }
    overview.getContext("2d").putImageData(image, 0, 0);
  }

  function paintRowLabels(context, ink) {
    context.fillStyle = ink;
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil((FONT_PX + 4) / place.cell));
    for (let row = 0; row < data.rows; row += every) {
      const middle = place.y(row) + Math.max(place.cell, FONT_PX + 4) / 2;
      if (middle + FONT_PX / 2 <= Math.max(place.height, FONT_PX + 4)) context.fillText(row * data.columns, place.gutter - 8, middle);
    }
  }

  function paintCells(context, ink, family) {
    const line = place.cell >= 24 ? 2 : 1;
    for (let row = 0; row < data.rows; row++) context.clearRect(place.gutter, place.y(row) + place.cell - line, place.width, line);
    for (let column = 0; column < data.columns; column++) {
      context.clearRect(place.x(column) + place.cell - line, 0, line, place.height);
    }
    const palette = model.get("_palette");
    const inks = palette.map((hex) => (isLight(rgb(hex)) ? "#000" : "#fff"));
    const room = place.cell - line - 4;
    const fits = (text) => context.measureText(text).width <= room;
    const both = place.cell >= 2 * FONT_PX + 12 && fits(data.lastName);
    if (!both && (place.cell < FONT_PX + 4 || !fits(data.lastNumber))) return;
    context.textAlign = "center";
    for (let rank = 0; rank < data.ranks; rank++) {
      const id = data.ids[rank];
      const column = rank % data.columns;
      const x = place.x(column) + (place.cell - line) / 2;
      const y = place.y((rank - column) / data.columns) + (place.cell - line) / 2;
      context.fillStyle = id < 0 || (chosen.length && !mask[rank]) ? ink : inks[id % palette.length];
      if (both && id >= 0) {
        context.font = `600 ${FONT_PX + 1}px ${family}`;
        context.fillText(rank, x, y - FONT_PX / 2 - 1);
        context.font = `${FONT_PX}px ${family}`;
        context.fillText(data.name(id), x, y + FONT_PX / 2 + 2);
      } else if (id >= 0 && data.lastNumber) context.fillText(id, x, y);
    }
  }

  function paintOver() {
    const context = over.getContext("2d");
    const { ink, paper, accent } = colours();
    context.clearRect(0, 0, over.width, over.height);
    context.lineCap = "square";
    const stroke = (shape, thick, colour, halo = paper) => {
      context.lineWidth = thick + HALO_PX;
      context.strokeStyle = halo;
      context.stroke(shape);
      context.lineWidth = thick;
      context.strokeStyle = colour;
      context.stroke(shape);
    };
    if (chosen.length && chosen.length < data.ranks) {
      stroke(outline(data, place, chosen, (rank) => mask[rank] === 1), place.cell >= ROOM_PX ? 2 : 1, ink);
    }
    const active = hovered >= 0 ? hovered : cursor;
    if (active >= 0 && !path) {
      const id = data.ids[active];
      if (id >= 0) stroke(outline(data, place, data.members(active), (rank) => data.ids[rank] === id), 2, ink);
      const column = active % data.columns;
      const ring = new Path2D();
      ring.rect(place.x(column), place.y((active - column) / data.columns), place.cell, place.cell);
      stroke(ring, 3, accent, ink);
    }
    if (path) {
      const shape = new Path2D();
      path.forEach(([x, y]) => shape.lineTo(x, y));
      shape.closePath();
      context.globalAlpha = 0.2;
      context.fillStyle = accent;
      context.fill(shape);
      context.globalAlpha = 1;
      context.setLineDash([6, 4]);
      stroke(shape, 1.5, ink);
      context.setLineDash([]);
    }
    showTip(path ? -1 : active);
  }

  function showTip(rank) {
    tip.hidden = rank < 0;
    if (rank < 0) return;
    const members = data.members(rank);
    const peers = members.filter((other) => other !== rank);
    const count = `${peers.length.toLocaleString("en")} peer${peers.length > 1 ? "s" : ""}`;
    const group = data.name(data.ids[rank]) + (peers.length ? ` with ${count}: ${runs(peers, 8)}` : "");
    tip.firstChild.textContent = `rank ${rank}`;
    tip.lastChild.textContent = `${data.place(rank)}\n${group}`;
    const column = rank % data.columns;
    const x = place.x(column);
    const y = stage.offsetTop + place.y((rank - column) / data.columns) + place.cell;
    // To the right of the grid, where it hides no cell, or else to the right or left of its cell.
    const places = [place.width + 16, x + place.cell + 8, Math.max(0, x - 8 - tip.offsetWidth)];
    tip.style.left = `${places.find((left) => left + tip.offsetWidth <= width) ?? 0}px`;
    // Below the grid, the box would make the output of the cell scroll.
    tip.style.top = `${Math.max(0, Math.min(y - place.cell, root.clientHeight - tip.offsetHeight))}px`;
  }

  function showStatus() {
    const focused = stage.getRootNode().activeElement === stage && cursor >= 0;
    const parts = focused ? [`rank ${cursor}`, data.place(cursor), data.name(data.ids[cursor])] : [];
    if (focused && mask[cursor]) parts.push("selected");
    const count = chosen.length ? `${chosen.length.toLocaleString("en")} selected: ${runs(chosen, 6)}` : "nothing selected";
    const text = focused ? `${parts.join(" · ")} (${count})` : count;
    if (status.textContent !== text) status.textContent = text; // screen readers announce each assignment
  }

  function select(ranks) {
    const sorted = Int32Array.from(new Set(ranks)).sort();
    model.set("selected", new DataView(sorted.buffer));
    model.save_changes();
  }

  const point = (event) => {
    const box = over.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  function press(event) {
    if (event.button !== 0) return;
    over.setPointerCapture(event.pointerId);
    path = [point(event)];
  }

  function move(event) {
    const here = point(event);
    if (path) path.push(here);
    hovered = place.rankAt(...here);
    schedule();
  }

  function release(event) {
    if (!path) return;
    const [first] = path;
    const isClick = path.every(([x, y]) => Math.hypot(x - first[0], y - first[1]) < CLICK_PX);
    const found = isClick ? [place.rankAt(...first)].filter((rank) => rank >= 0) : enclosed(data, place, path);
    path = null;
    if (isClick && found.length) cursor = found[0];
    if (!event.shiftKey) select(found);
    else if (isClick && found.length && mask[found[0]]) select(chosen.filter((rank) => rank !== found[0]));
    else select([...chosen, ...found]);
    schedule();
  }

  function leave() {
    hovered = -1;
    schedule();
  }

  function cancel() {
    path = null;
    schedule();
  }

  function key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -data.columns, ArrowDown: data.columns };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) {
      const next = cursor < 0 ? (chosen[0] ?? 0) : cursor + steps[event.key];
      if (next >= 0 && next < data.ranks) {
        if (event.shiftKey) select([...chosen, next, ...(cursor < 0 ? [] : [cursor])]);
        cursor = next;
      }
    } else if (event.key === " ") {
      if (cursor < 0) cursor = 0;
      select(mask[cursor] ? chosen.filter((rank) => rank !== cursor) : [...chosen, cursor]);
    } else if (event.key === "Escape") {
      if (path) path = null;
      else if (chosen.length) select([]);
      else cursor = -1;
    } else return;
    event.preventDefault();
    event.stopPropagation();
    hovered = -1;
    schedule();
  }

  const all = () => schedule({ data: true });
  const again = () => schedule({ base: true });
  const reselect = () => {
    if (data) takeSelection();
    again();
  };
  const handlers = { "change:_groups": all, "change:_coordinates": all, "change:_shape": all, "change:selected": reselect };
  for (const [event, handler] of Object.entries(handlers)) model.on(event, handler);
  for (const [event, handler] of Object.entries({ down: press, move, up: release, cancel, leave })) {
    listen(over, `pointer${event}`, handler);
  }
  listen(stage, "keydown", key);
  listen(stage, "focus", () => schedule());
  listen(stage, "blur", () => schedule());
  listen(root, "transitionend", (event) => event.target === root && again());
  const watchDensity = () =>
    listen(matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`), "change", () => (watchDensity(), again()));
  watchDensity();
  const size = new ResizeObserver(() => root.clientWidth !== width && again());
  size.observe(root);
  paint();

  return () => {
    cancelAnimationFrame(frame);
    size.disconnect();
    ended.abort();
    for (const [event, handler] of Object.entries(handlers)) model.off(event, handler);
    root.remove();
  };
}

export default { render };
