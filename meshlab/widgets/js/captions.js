// The elements around the canvas: breadcrumb, legend, findings and the table of the busiest links.

import { GROUPS, VIRIDIS } from "./colors.js";
import { button, div, element, headOf, muted, refill, span } from "./dom.js";
import { boxName, podName, unitName } from "./paint.js";
import { placeOf } from "./pick.js";
import { count, joined, plural, rangeOf, threeDigits } from "./text.js";

const DETAILS = ["one cell per GPU", "hosts", "GPUs, NICs, rails", "every link"];

const gradeOf = (mark) => `ml-mark${"✕■▲".includes(mark) ? "-bad" : "-good"}`;

export function fillCrumbs(parent, p, hit) {
  const { scene, drawn, view } = p;
  const isBare = view.is_mesh && !view.is_placed; // ranks without a machine
  const places = [["all", `${count(scene.devices)} ${isBare ? "ranks" : "GPUs"}`]];
  if (p.zoom > 1.05 && hit) {
    if (scene.pod_id.length > 1 && drawn.width > 1.3 * p.width) {
      places.push([placeOf(scene, hit, "pod"), podName(scene, hit.pod)]);
    }
    if (hit.unit !== undefined && scene.unit_id.length > 1 && drawn.detail >= 1) {
      places.push([placeOf(scene, hit, "leaf"), unitName(scene, hit.unit)]);
    }
    if (hit.box !== undefined && drawn.detail >= 2) places.push([placeOf(scene, hit, "node"), boxName(scene, hit.box)]);
  }
  const items = places.flatMap(([place, text], k) => {
    const crumb = button(text, { class: "ml-quiet", "data-place": place });
    return k ? [element("span", { "aria-hidden": "true", text: "▸" }), crumb] : [crumb];
  });
  refill(parent, ...items, muted(`· ${isBare ? "one cell per rank" : DETAILS[drawn.detail]}`));
}

const swatch = (kind, style) =>
  element("i", { class: `ml-swatch ml-${kind}`, style: style ?? null, "aria-hidden": "true" });

export function fillLegend(parent, p) {
  const { scene, view, loads } = p;
  const entries = [];
  const toggle = (name, text, ...swatches) => {
    const attributes = {
      type: "button",
      class: "ml-quiet",
      "data-toggle": name,
      "aria-pressed": String(p.shows[name]),
    };
    entries.push(element("button", attributes, ...swatches, text));
  };
  const values = p.values[p.color];
  if (values) {
    const [low, high] = rangeOf(values);
    const range = low <= high ? `${threeDigits(low)} to ${threeDigits(high)}` : "no values";
    entries.push(
      element(
        "span",
        {},
        swatch("ramp", `background:linear-gradient(90deg,${VIRIDIS.join(",")})`),
        `${p.color}: ${range}`,
      ),
    );
  } else if (view.axis && view.n_groups) {
    const repeats = view.n_groups > GROUPS ? `, colours repeat after ${GROUPS}` : "";
    const size = view.is_mesh ? ` of ${count(view.group_size)}` : "";
    const text = `${view.axis}: ${plural(view.n_groups, view.is_mesh ? "group" : "domain")}${size}${repeats}`;
    const colors = Array.from({ length: Math.min(view.n_groups, GROUPS) }, (_, k) => `background:var(--ml-g${k})`);
    toggle("groups", text, ...colors.map((style) => swatch("group", style)));
  }
  if (view.group.some((g) => g < 0)) {
    entries.push(element("span", {}, swatch("idle"), view.is_mesh ? "no rank" : "no domain"));
  }
  if (scene.is_joined.some((one) => one)) toggle("nvlink", `${scene.kinds[0].link_name} domain`, swatch("nvlink"));
  if (view.is_mesh && view.is_placed && p.drawn.form?.hasWord === false) {
    entries.push(element("span", {}, element("b", { text: "9 " }), "rank"));
  }
  if (p.drawn.nic.length && view.is_placed) entries.push(element("span", {}, swatch("nic"), "NIC"));
  if (scene.network === "known") {
    entries.push(element("span", {}, swatch("leaf"), "leaf switch"));
    const above = joined(" and ", [scene.pod_word, scene.top_word]);
    if (above) entries.push(element("span", {}, swatch("spine"), `fabric: ${above} switches`));
  }
  if (loads?.by.nic) {
    toggle("loads", "link, idle to busiest", swatch("load"));
    if (loads.is_conflict) {
      toggle("conflict", `${loads.conflict_word}, and it limits ${loads.axis}`, swatch("conflict"));
    }
    if (loads.links.some((link) => link.groups.some((n) => n > 1))) {
      toggle("counts", "groups on one link", element("b", { text: "×N " }));
    }
  }
  if (view.is_placed && view.is_mesh) {
    const marks = view.marks.flatMap(([mark, meaning], k) => [
      k ? " · " : "",
      element("b", { class: gradeOf(mark), text: mark }),
      ` ${meaning}`,
    ]);
    entries.push(span("ml-marks", ...marks));
  }
  refill(parent, ...entries);
}

export function fillFindings(parent, findings) {
  refill(
    parent,
    ...findings.map(({ mark, text, axis, place }) =>
      element(
        "button",
        { type: "button", "data-place": place, "data-axis": axis, title: "Go to the place." },
        element("span", { class: `ml-mark ${gradeOf(mark)}`, text: mark }),
        text,
      ),
    ),
  );
}

const bar = (share, isHot) => element("i", { class: isHot ? "ml-hot" : "", style: `width:${100 * share}%` });
const goButton = (place, title, text) => button(text, { class: "ml-quiet", "data-place": place, title });

export function fillLinks(table, loads) {
  table.hidden = !loads;
  if (!loads) return;
  const head = ["Link", "Groups", "Bytes", "Time on the link", ""];
  const rows = loads.rows.map(({ link, groups, bytes, time, share, limits, place }) => {
    const name = `${limits ? "▸ " : ""}${link}`;
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, place ? goButton(place, "Go to the busiest link.", name) : name),
      element("td", { text: groups }),
      element("td", { text: bytes }),
      element("td", {}, div("ml-track", bar(share, limits && loads.is_conflict))),
      element("td", { text: time }),
    );
  });
  refill(
    table,
    element("caption", {
      text: `Busiest link for ${loads.axis}: ${loads.collective} of ${loads.size} (${loads.algorithm})`,
    }),
    headOf(head),
    element("tbody", {}, ...rows),
  );
}
