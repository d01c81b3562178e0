// The picture: state, events, and one paint per frame.

import { fillCrumbs, fillFindings, fillLegend, fillLinks } from "./captions.js";
import { mixed, readColors } from "./colors.js";
import {
  coordinates,
  deviceOfRank,
  entry,
  groupName,
  readLoads,
  readScene,
  readView,
  regroup,
  sharingGroups,
  unpack,
} from "./data.js";
import {
  attribute,
  consume,
  div,
  element,
  fillSelect,
  focusIn,
  hasModifier,
  listeners,
  refill,
  setText,
} from "./dom.js";
import { gestures } from "./gestures.js";
import { clamp } from "./layout.js";
import { paintGroup, paintLasso, paintMinimap, paintOutlines } from "./overlay.js";
import { paintBase } from "./paint.js";
import { deviceBelow, nextPart, outlineOf, wayOut } from "./parts.js";
import { describeHit, failedAt, hitOfDevice, neighbour, placeOf, placeOfText } from "./pick.js";
import { queueOf } from "./queue.js";
import { count, joined, runsText } from "./text.js";
import { followTheme } from "./theme.js";
import { tooltip } from "./tooltip.js";
import { contain, fitWidth, hitAtCenter, hitAtPoint, mostZoom, resetZoom, showPlace, zoomAt } from "./window.js";

const REST_MS = 200; // after the last movement, Python learns the place in view
/** @type {Record<string, boolean>} */
const STALE_ALL = { scene: true, view: true, loads: true, fit: true, base: true, colors: true };
const MARKUP = `
  <div class="ml-verdict"></div>
  <div class="ml-bar"><nav class="ml-crumbs" aria-label="Place in view"></nav>
    <input class="ml-find" type="search" size="12" aria-label="Find a rank or a host" placeholder="rank or host" spellcheck="false"
      autocomplete="off">
    <label><span class="ml-word">Axis</span> <select class="ml-axis"></select></label><label>Colour <select class="ml-color"></select></label>
    <span class="ml-zoom"><button type="button" data-zoom="-1" aria-label="Zoom out">−</button>
    <button type="button" data-zoom="1" aria-label="Zoom in">+</button>
    <button type="button" data-zoom="0">Fit</button></span></div>
  <div class="ml-stage" tabindex="0" role="application" aria-roledescription="picture of a machine">
    <canvas aria-hidden="true"></canvas><canvas aria-hidden="true"></canvas><div class="ml-tip" hidden><b></b><span></span></div></div>
  <div class="ml-live" role="status" aria-live="polite"></div><div class="ml-status"></div>
  <div class="ml-legend"></div><div class="ml-findings"></div><ul class="ml-notes"></ul><table class="ml-links" hidden></table>
  <div class="ml-soft ml-hint">Point at a cell to see the route of its group. A click keeps it, a double click zooms in,
    Shift and drag selects ranks.</div><span class="ml-probe" aria-hidden="true"></span>`;

/**
 * Draws the picture of a model into an element. Like every panel, it removes all that it has added when it is destroyed.
 * `clicked` is called after a click with the picture, what was hit, the mark of a failed part, or nulls, and whether the
 * part joins those that are picked; `lassoed` with the picture and GPUs.
 * @param {{ model: Model, root: HTMLElement, clicked?: (picture: any, hit: any, failed: any, isMore: boolean) => void,
 *   lassoed?: (picture: any, devices: number[]) => void }} parts
 */
export function picturePanel({ model, root: parent, clicked = () => {}, lassoed = () => {} }) {
  const root = div("meshlab meshlab-picture");
  root.innerHTML = MARKUP;
  parent.append(root);
  /** @returns {any} Elements of MARKUP */
  const find = (name) => root.querySelector(`.ml-${name}`);
  const [
    verdict,
    crumbs,
    findBox,
    axisBox,
    colorBox,
    stage,
    tip,
    live,
    status,
    legend,
    findings,
    notes,
    links,
    probe,
    word,
  ] = [
    "verdict",
    "crumbs",
    "find",
    "axis",
    "color",
    "stage",
    "tip",
    "live",
    "status",
    "legend",
    "findings",
    "notes",
    "links",
    "probe",
    "word",
  ].map(find);
  const [base, over] = root.querySelectorAll("canvas");
  const { listen, stop } = listeners();

  const p = {
    pen: null,
    scene: null,
    drawn: null,
    chosen: null, // the arrangement
    view: null,
    loads: null,
    colors: null,
    values: {},
    selected: new Uint8Array(0),
    x: 0,
    y: 0,
    width: 0,
    height: 0,
    zoom: 1,
    dpr: 1,
    color: "group",
    sharing: null,
    cells: null,
    widths: new Map(),
    outlined: [], // what is picked
    shows: { groups: true, nvlink: true, loads: true, conflict: true, counts: true },
  };
  let isHidden = false;
  let stale = { ...STALE_ALL };
  let frame = 0;
  let fullColors = null;
  const queue = queueOf(model);
  let edit = 0; // the version of the last edit that changes the picture
  let isWaiting = false; // an axis was chosen here, and Python has not answered yet
  let hovered = null;
  let cursor = -1;
  let away = null; // where the keys are, if not at the GPU of the cursor
  let picked = -1;
  let map = null;
  let lit = null;
  let pendingZoom = null;
  let goal = model.get("focus");
  let rest = 0;

  const schedule = (what = {}) => {
    Object.assign(stale, what);
    frame ||= requestAnimationFrame(paint);
  };
  const save = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  };

  // -- painting --

  function paint() {
    cancelAnimationFrame(frame); // the first paint does not wait
    frame = 0;
    const width = stage.clientWidth;
    isHidden = !width;
    if (isHidden) {
      size.unobserve(stage);
      size.observe(stage); // hidden, maybe only briefly: a new observation fires as soon as it is visible
      return;
    }
    if (stale.scene) {
      p.scene = readScene(model.get("_scene"));
      if (p.outlined.length) clicked(p, null, null, false); // its parts may be gone
    }
    if (stale.scene || stale.view) takeView();
    if (stale.scene || stale.loads) takeLoads();
    if (stale.colors) takeColors();
    if (stale.scene || stale.fit || width !== p.width || (window.devicePixelRatio || 1) !== p.dpr) fitWindow(width);
    if (stale.scene && goal === "all") {
      resetZoom(p);
      stale.base = true;
    }
    if (goal !== null) goTo(goal);
    if (pendingZoom) {
      const [x, y, factor] = pendingZoom;
      pendingZoom = null;
      if (zoomAt(p, x, y, factor)) moved();
    }
    if (stale.base) {
      p.pen = base.getContext("2d", { alpha: false });
      p.colors = isWaiting ? faded() : fullColors;
      paintBase(p);
      lit = null;
    }
    const { view, loads, scene, colors, panels } = stale;
    const hasGone = stale.goal;
    stale = {};
    paintOver();
    if (view || loads || scene || colors || panels) fillPanels();
    else if (hasGone) showCrumbs();
  }

  function takeView() {
    const raw = model.get("_view");
    if (raw.edit < edit && !stale.scene) return; // the answer to an earlier edit
    edit = Math.max(edit, raw.edit); // edits of other views of the same model count too
    isWaiting = false;
    p.view = readView(raw, p.scene);
    p.values = {};
    for (const [name, bytes] of Object.entries(model.get("_values"))) p.values[name] = unpack(bytes, Float32Array);
    hovered = away = null;
    if (cursor >= p.scene.devices) cursor = -1;
    takePick();
    takeSelection();
  }

  function takeLoads() {
    const raw = model.get("_loads");
    if (stale.scene || !(raw.edit < edit)) p.loads = readLoads(raw);
  }

  function takePick() {
    const rank = model.get("pick") ?? -1;
    picked = rank < 0 ? -1 : p.view.is_mesh ? deviceOfRank(p.view, rank) : rank;
  }

  function takeSelection() {
    const ranks = unpack(model.get("selected"), Int32Array);
    p.selected = new Uint8Array(p.view.world);
    for (const rank of ranks) p.selected[rank] = 1;
    p.cells = null;
  }

  function takeColors() {
    fullColors = readColors(root, probe);
    p.color = model.get("color");
    p.cells = null;
    p.widths.clear();
  }

  function faded() {
    const half = (color) => mixed(color, fullColors.bg, 0.5);
    return { ...fullColors, heat: fullColors.heat.map(half), conflict: half(fullColors.conflict) };
  }

  function fitWindow(width) {
    fitWidth(p, width, model.get("height"));
    stage.style.height = `${p.height}px`;
    for (const canvas of [base, over]) {
      canvas.width = Math.round(width * p.dpr);
      canvas.height = Math.round(p.height * p.dpr);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${p.height}px`;
    }
    p.cells = null;
    stale.base = true;
  }

  const groupOf = (device) => (device >= 0 ? p.view.group[device] : -1);
  const active = () => (hovered?.kind === "device" ? hovered.index : cursor >= 0 ? cursor : picked);

  function paintOver() {
    const device = active();
    const pen = over.getContext("2d");
    if (p.color === "sharing") {
      const group = Math.max(groupOf(device), 0);
      if (p.sharing?.of !== group || !p.sharing) {
        p.sharing = Object.assign(sharingGroups(p.scene, p.view, p.loads, group), { of: group });
        p.cells = null;
        p.pen = base.getContext("2d", { alpha: false });
        paintBase(p);
      }
    }
    p.pen = pen;
    pen.setTransform(p.dpr, 0, 0, p.dpr, 0, 0);
    pen.clearRect(0, 0, p.width, p.height);
    if (device >= 0 && device < p.scene.devices) {
      const group = groupOf(device);
      paintGroup(p, group, group < 0 ? [device] : p.view.members(group), device);
    }
    paintOutlines(
      p,
      [...p.outlined, ...(away ? [away] : [])].filter(({ kind, index }) => kind !== "device" || index !== device),
    );
    map = paintMinimap(p, device);
    const corners = pointer.corners();
    if (corners) paintLasso(p, corners);
    const own = cursor >= 0 ? cursor : picked; // where the keys or a click are
    if (lit !== own) {
      lit = own;
      announce(own);
    }
  }

  function announce(device) {
    const { view } = p;
    const rank = device >= 0 ? view.rank[device] : -1;
    const ranks = selectedRanks();
    const parts = [];
    setText(status, ranks.length ? `${count(ranks.length)} selected: ${runsText(ranks, 6)}` : "");
    if (rank >= 0) {
      parts.push(
        `rank ${count(rank)}, ${groupName(view, groupOf(device))}: ${view.verdict || coordinates(view, rank)}`,
      );
    }
    if (ranks.length) parts.push(status.textContent);
    setText(live, parts.join(". "));
  }

  function fillPanels() {
    const { view, loads } = p;
    setText(verdict, joined(" ", [loads?.axis === view.axis ? loads?.mark : "", view.verdict || view.title]));
    fillSelect(
      axisBox,
      view.options.map((name) => [name, name]),
      view.axis,
    );
    setText(word, view.is_mesh ? "Axis" : "Level");
    axisBox.parentElement.hidden = view.options.length < 2;
    /** @type {[string, string][]} */
    const modes = [
      ["group", view.is_mesh ? "groups" : "domains"],
      ["load", "load only"],
    ];
    if (loads?.by.nic) modes.splice(1, 0, ["sharing", "groups sharing links"]);
    for (const name of Object.keys(p.values)) modes.push([name, name]);
    fillSelect(colorBox, modes, p.color);
    fillLegend(legend, p);
    fillFindings(findings, view.findings);
    refill(notes, ...view.notes.map((text) => element("li", { text })));
    fillLinks(links, loads);
    root.classList.toggle("ml-waiting", isWaiting);
    const keys =
      "Arrow keys move between GPUs, N and P along the links of a GPU, plus and minus zoom, 0 fits, Enter picks, " +
      "Shift adds to what is picked, Escape clears.";
    attribute(stage, "aria-label", `${view.title}. ${view.verdict ? `${view.verdict}. ` : ""}${keys}`);
    showCrumbs();
  }

  const showCrumbs = () => fillCrumbs(crumbs, p, hitAtCenter(p));

  // -- moving --

  function goTo(place) {
    goal = null;
    showPlace(p, place);
    stale.base = stale.goal = true;
    tooltips.hide();
  }

  function go(place) {
    goal = place;
    if (model.get("focus") !== place) save({ focus: place });
    schedule({ base: true });
  }

  // After a movement by hand, the place in the centre becomes the focus.
  function moved() {
    stale.base = true;
    clearTimeout(rest);
    rest = setTimeout(() => {
      showCrumbs();
      fillLegend(legend, p);
      const hit = hitAtCenter(p);
      const depth = p.drawn.detail >= 2 ? "node" : "leaf";
      const place = p.zoom < 1.05 || !hit ? "all" : placeOf(p.scene, hit, depth);
      if (place === model.get("focus")) return;
      isOwnFocus = true;
      save({ focus: place });
      isOwnFocus = false;
    }, REST_MS);
  }
  let isOwnFocus = false;

  function zoomBy(px, py, factor) {
    pendingZoom = [px, py, (pendingZoom?.[2] ?? 1) * factor];
    schedule();
  }

  function panTo(x, y) {
    [p.x, p.y] = [x, y];
    contain(p);
    moved();
    schedule();
  }

  // -- tooltip --

  const tooltips = tooltip(tip, p);
  const showTip = (hit, ...place) => tooltips.show(hit, hit && describeHit(p, hit), ...place);

  function hover(x, y) {
    const hit = hitAtPoint(p, x, y);
    tooltips.follow(hit, x, y, () => {
      hovered = hit;
      cursor = hit?.kind === "device" ? -1 : cursor;
      showTip(hit, x, y);
      schedule();
    });
  }

  function unhover() {
    hovered = null;
    tooltips.hide();
    schedule();
  }

  // -- pointer --

  const isInMap = ([x, y]) =>
    map && x >= map.x - 4 && y >= map.y - 4 && x <= map.x + map.width + 4 && y <= map.y + map.height + 4;
  const jump = ([x, y]) => panTo(p.width / 2 - (x - map.x) / map.scaleX, p.height / 2 - (y - map.y) / map.scaleY);

  const pointer = gestures({
    stage,
    tip,
    listen,
    isInMap,
    jump,
    hover,
    unhover,
    pan(dx, dy) {
      tooltips.hide();
      panTo(p.x + dx, p.y + dy);
    },
    zoomBy,
    lasso,
    click(here, isMore, isTouch) {
      const hit = hitAtPoint(p, ...here);
      const failed = failedAt(p, here[0] - p.x, here[1] - p.y);
      away = null;
      clicked(p, isOff(hit) && !isMore ? null : hit, failed, isMore);
      schedule();
      if (failed) return;
      if (isMore) {
        if (hit?.kind === "device") toggleSelected(hit.index);
        return;
      }
      if (isTouch) showTip(hit, ...here);
      if (hit?.kind === "device") togglePick(hit.index);
      else if (!hit) setPick(-1);
    },
    schedule,
  });

  const numberOf = (device) => (p.view.is_mesh ? p.view.rank[device] : device);

  function setPick(device) {
    picked = device;
    lit = null;
    const number = device < 0 ? -1 : numberOf(device);
    save({ pick: number < 0 ? null : number });
    schedule();
  }

  const isOff = (hit) => hit?.kind === "device" && hit.index === picked; // a second click on a GPU
  const togglePick = (device) => setPick(device === picked || numberOf(device) < 0 ? -1 : device);

  function select(ranks) {
    save({ selected: new DataView(Int32Array.from(new Set(ranks)).sort().buffer) });
    schedule({ base: true });
  }

  const selectedRanks = () => [...p.selected.keys()].filter((rank) => p.selected[rank]);

  function toggleSelected(device) {
    const rank = p.view.rank[device];
    if (rank >= 0) {
      select(p.selected[rank] ? selectedRanks().filter((one) => one !== rank) : [...selectedRanks(), rank]);
    }
  }

  function lasso([x0, y0], [x1, y1]) {
    const [left, right] = [Math.min(x0, x1) - p.x, Math.max(x0, x1) - p.x];
    const [top, bottom] = [Math.min(y0, y1) - p.y, Math.max(y0, y1) - p.y];
    const { device } = p.drawn;
    const found = [];
    for (let d = 0; d < p.scene.devices; d++) {
      const x = device[d * 4] + device[d * 4 + 2] / 2;
      const y = device[d * 4 + 1] + device[d * 4 + 3] / 2;
      if (x >= left && x <= right && y >= top && y <= bottom) found.push(d);
    }
    select(found.map((d) => p.view.rank[d]).filter((rank) => rank >= 0));
    lassoed(p, found);
  }

  function dive(event) {
    const here = pointer.point(event);
    const hit = hitAtPoint(p, ...here);
    if (!hit || tip.contains(event.target) || isInMap(here)) return;
    go(placeOf(p.scene, hit, p.drawn.detail === 0 && p.scene.unit_id.length > 1 ? "leaf" : "node"));
  }

  function wheel(event) {
    const isWanted = hasModifier(event);
    if (!isWanted && focusIn(stage) !== stage) return;
    const factor = Math.exp(-clamp(event.deltaY || event.deltaX, -200, 200) * (event.deltaMode ? 0.05 : 0.0022));
    if (!isWanted && (factor < 1 ? p.zoom <= 1 : p.zoom >= mostZoom(p))) return; // nothing to zoom, so the page scrolls
    event.preventDefault();
    tooltips.hide();
    zoomBy(...pointer.point(event), factor);
  }

  // -- keys and controls --

  function key(event) {
    if (event.target !== stage || hasModifier(event)) return;
    const device = cursor >= 0 ? cursor : picked;
    const { drawn } = p;
    const zoomThere = (factor) => {
      const [x, y, w, h] = device < 0 ? [-p.x, -p.y, p.width, p.height] : entry(drawn.device, device);
      zoomBy(clamp(x + w / 2 + p.x, 0, p.width), clamp(y + h / 2 + p.y, 0, p.height), factor);
    };
    if (event.key.startsWith("Arrow")) {
      step(event.key, event.shiftKey);
    } else if (event.key === "Enter" || event.key === " ") {
      enter(device, event.shiftKey);
    } else if (event.key.toLowerCase() === "n" || event.key.toLowerCase() === "p") {
      stepOut(device, event.key.toLowerCase() === "n" ? 1 : -1);
    } else if (event.key === "+" || event.key === "=") {
      zoomThere(1.6);
    } else if (event.key === "-") {
      zoomThere(1 / 1.6);
    } else if (event.key === "0") {
      go("all");
    } else if (event.key === "[" || event.key === "]") {
      const { options, axis } = p.view;
      const at = options.indexOf(axis) + (event.key === "]" ? 1 : options.length - 1);
      chooseAxis(options[at % options.length]);
    } else if (event.key === "Escape") {
      escape();
    } else {
      return;
    }
    consume(event);
    schedule();
  }

  function enter(device, isMore) {
    if (away) {
      clicked(p, away, null, isMore);
    } else if (device >= 0) {
      const hit = hitOfDevice(p, device);
      clicked(p, isOff(hit) && !isMore ? null : hit, null, isMore);
      if (isMore) toggleSelected(device);
      else togglePick(device);
    }
  }

  // Goes from a GPU along its links: to its NVLink, its NIC, the cable, the switches, and the host.
  function stepOut(device, by) {
    cursor = Math.max(device, 0);
    const way = wayOut(p, cursor);
    const at = away ? way.findIndex(({ kind, index }) => kind === away.kind && index === away.index) : 0;
    const next = way[(Math.max(at, 0) + by + way.length) % way.length];
    goAway(next.kind === "device" ? null : next);
  }

  function goAway(hit) {
    away = hit;
    hovered = null;
    const { boxes, lines } = outlineOf(p, hit ?? { kind: "device", index: cursor });
    const [x, y, w, h] = boxes[0] ?? [lines[0][0], lines[0][1], 1, 1];
    comeIntoView(x, y, w, h);
    const shown = hit ?? hitOfDevice(p, cursor);
    showTip(shown, x + p.x, y + p.y, w, h);
    lit = cursor; // its group is not announced, but the part
    setText(live, describeHit(p, shown)?.filter(Boolean).join(", ") ?? "");
  }

  function comeIntoView(x, y, w, h) {
    const into = (at, extent, room) => (at < 10 ? 40 - at : at + extent > room - 10 ? room - 40 - at - extent : 0);
    const [dx, dy] = [into(x + p.x, w, p.width), into(y + p.y, h, p.height)];
    if (dx || dy) panTo(p.x + dx, p.y + dy);
  }

  function step(arrow, extends_) {
    if (away) {
      const next = nextPart(p, away, arrow);
      if (!next) return;
      cursor = deviceBelow(p, next);
      return goAway(next);
    }
    const from = cursor >= 0 ? cursor : picked;
    const to = from < 0 ? 0 : neighbour(p.drawn, from, arrow);
    if (to < 0 || to >= p.scene.devices) return;
    if (extends_) {
      select(
        [...selectedRanks(), p.view.rank[to], ...(from < 0 ? [] : [p.view.rank[from]])].filter((rank) => rank >= 0),
      );
    }
    cursor = to;
    hovered = null;
    tooltips.hide();
    const [x, y, w, h] = entry(p.drawn.device, to);
    comeIntoView(x, y, w, h);
    showTip(hitOfDevice(p, to), x + p.x, y + p.y, w, h);
  }

  // One thing after the other: the lasso, the tooltip, the pick, the selection, the cursor.
  function escape() {
    if (!pointer.endLasso()) endOne();
    if (tip.hidden) hovered = null;
  }

  function endOne() {
    if (!tip.hidden) tooltips.hide();
    else if (away) away = null;
    else if (picked >= 0 || p.outlined.length) clearPicks();
    else if (p.selected.some((one) => one)) select([]);
    else cursor = -1;
  }

  function clearPicks() {
    clicked(p, null, null, false);
    if (picked >= 0) setPick(-1);
  }

  function chooseAxis(axis) {
    if (axis === p.view.axis) return;
    const next = regroup(p.view, axis);
    edit = queue.next();
    isWaiting = true;
    if (next) p.view = { ...next, verdict: "" };
    p.cells = p.sharing = null;
    save({ axis, _edit: edit });
    schedule({ base: true, panels: true });
  }

  // Paints the axes that the edit of a version leads to before Python answers. Null if they are not known.
  function expect(version, axes) {
    edit = version;
    isWaiting = true;
    const names = axes?.map(([name]) => name);
    const axis = names?.includes(p.view.axis) ? p.view.axis : names?.at(-1);
    const next = axes && p.view.is_mesh ? regroup({ ...p.view, axes }, axis) : null;
    if (next) {
      p.view = { ...next, verdict: "", findings: [] };
      p.cells = p.sharing = null;
      schedule({ base: true });
    }
  }

  // Shows the rank, the host or the other place that a text names.
  function seek(text) {
    if (!text.trim()) return;
    const [place, rank] = placeOfText(p, text);
    if (!place) {
      setText(status, `no rank, host or other place is named ${text.trim()}`);
      return setText(live, status.textContent);
    }
    go(place);
    if (rank !== undefined) {
      cursor = deviceOfRank(p.view, rank);
      setPick(cursor);
    }
    stage.focus();
  }

  // The picture as it is seen, as the URL of a PNG. `toBlob` would wait until the browser is idle.
  function toDataUrl() {
    const both = element("canvas", { width: base.width, height: base.height });
    const pen = both.getContext("2d");
    for (const canvas of [base, over]) pen.drawImage(canvas, 0, 0);
    return both.toDataURL("image/png");
  }

  function click(event) {
    const target = event.target.closest("button");
    if (!target) return;
    const { place, axis, zoom, toggle } = target.dataset;
    if (axis) chooseAxis(axis);
    if (place) go(place);
    if (zoom === "0") go("all");
    else if (zoom) zoomBy(p.width / 2, p.height / 2, 1.8 ** Number(zoom));
    if (toggle) {
      p.shows[toggle] = !p.shows[toggle];
      p.cells = null;
      schedule({ base: true, panels: true });
    }
  }

  // -- the model, the page --

  const changed = (what) => () => schedule(what);
  const handlers = {
    "change:_scene": changed({ scene: true, base: true }),
    "change:_view": changed({ view: true, base: true }),
    "change:_values": changed({ view: true, base: true }),
    "change:_loads": changed({ loads: true, base: true }),
    "change:height": changed({ fit: true, base: true }),
    "change:color": changed({ colors: true, base: true }),
    "change:pick": () => {
      if (p.view) takePick();
      schedule();
    },
    "change:selected": () => {
      if (p.view) takeSelection();
      schedule({ base: true });
    },
    "change:focus": () => {
      if (isOwnFocus) return;
      goal = model.get("focus");
      schedule({ base: true });
    },
  };
  for (const [event, handler] of Object.entries(handlers)) model.on(event, handler);
  listen(stage, "dblclick", dive);
  listen(stage, "keydown", key);
  listen(stage, "wheel", wheel, { passive: false });
  listen(stage, "blur", () => {
    cursor = -1;
    away = null;
    tooltips.hide();
    schedule();
  });
  listen(root, "click", click);
  listen(findBox, "keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") seek(findBox.value);
  });
  listen(axisBox, "change", () => chooseAxis(axisBox.value));
  listen(colorBox, "change", () => {
    save({ color: colorBox.value });
    schedule({ colors: true, base: true });
  });
  const refit = changed({ fit: true, base: true });
  const watchDensity = () => {
    const query = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
    listen(query, "change", () => (watchDensity(), refit()), { once: true });
  };
  watchDensity();
  const size = new ResizeObserver(() => {
    if (isHidden) schedule();
    else if (stage.clientWidth !== p.width) refit();
  });
  size.observe(stage);
  const unfollow = followTheme(root, changed({ colors: true, base: true }));
  paint();

  return {
    root,
    expect,
    chooseAxis,
    toDataUrl,
    zoomTo: (hit) => go(placeOf(p.scene, hit, "node")),
    outline(hits) {
      p.outlined = hits;
      schedule();
    },
    destroy() {
      cancelAnimationFrame(frame);
      clearTimeout(rest);
      tooltips.hide();
      size.disconnect();
      unfollow();
      stop();
      for (const [event, handler] of Object.entries(handlers)) model.off(event, handler);
      root.remove();
    },
  };
}
