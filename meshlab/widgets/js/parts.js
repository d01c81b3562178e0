// The bar in the picture for the part that was clicked: fail, remove or restore a host, a GPU, a NIC or NVLink.

import { button, element, fillSelect, setText } from "./dom.js";

const partOf = (scene, host, name) => `${scene.names[host]}${name ? `/${name.replace(" ", "")}` : ""}`;

// The parts that a click on the picture may mean, the nearest first: pairs of a name and its text.
/** @returns {[string, string][]} */
function partsAt({ scene, selected, view }, hit) {
  if (hit?.host === undefined) return [];
  const h = hit.host;
  const kind = scene.kindOf(h);
  const host = scene.names[h];
  /** @type {[string, string][]} */
  const found = [];
  const nic = (j) => found.push([partOf(scene, h, kind.nic_names[j]), `${kind.nic_names[j]} of ${host}`]);
  if (hit.kind === "nic") nic(hit.index - scene.first_nic[h]);
  if (hit.kind === "device") {
    const local = hit.index - scene.first_device[h];
    const name = kind.names[local];
    found.push([partOf(scene, h, name), `${name} of ${host}`]);
    if (kind.set_of[local] >= 0 && kind.set_of.filter((set) => set === kind.set_of[local]).length > 1) {
      found.push([`${partOf(scene, h, name)}/NVLink`, `NVLink of ${name}`]);
      for (let other = 0; other < kind.devices; other++) {
        const rank = view.rank[scene.first_device[h] + other];
        if (other === local || rank < 0 || !selected[rank] || kind.set_of[other] !== kind.set_of[local]) continue;
        const ends = [local, other].sort((a, b) => a - b).map((k) => kind.names[k]);
        found.push([
          `${partOf(scene, h, ends[0])}-${ends[1].replace(" ", "")}`,
          `NVLink between ${ends.join(" and ")}`,
        ]);
      }
    }
    const near = kind.near.filter(([own]) => own === local);
    if (near.length === 1) nic(near[0][1]);
  }
  found.push([host, host]);
  return found;
}

export function partBar({ root, listen, shell }) {
  const choice = element("select", { "aria-label": "Part" });
  const text = element("b", {});
  const fail = button("Fail", { title: "Mark the part as failed. It is listed, and can be restored." });
  const remove = button("Remove", { title: "Remove the part from the machine." });
  const restore = button("Restore", { title: "Mark the part as working again." });
  const close = button("✕", { class: "ml-quiet", "aria-label": "Close" });
  const bar = element(
    "div",
    { class: "ml-part", role: "group", "aria-label": "Part of the machine", hidden: true },
    text,
    choice,
    fail,
    remove,
    restore,
    close,
  );
  root.append(bar);
  let broken = null;

  const hide = () => {
    bar.hidden = true;
  };
  const act = (action) => () => {
    const part = broken?.name ?? choice.value;
    hide();
    shell.picture.root.querySelector(".ml-stage").focus();
    shell.edit({ action, part, where: "machine" });
  };
  listen(fail, "click", act("fail"));
  listen(remove, "click", act("remove"));
  listen(restore, "click", act("restore"));
  listen(close, "click", hide);
  // What happens in the bar is not a gesture on the picture.
  for (const event of ["pointerdown", "pointermove", "pointerup", "dblclick", "keydown"]) {
    listen(bar, event, (e) => {
      if (event !== "keydown") return e.stopPropagation();
      if (e.key === "Escape") {
        hide();
        shell.picture.root.querySelector(".ml-stage").focus();
      } else if (e.key !== "Enter" && e.key !== " " && !e.key.startsWith("Arrow")) {
        return;
      }
      e.stopPropagation();
    });
  }
  return {
    // `p` is the picture, `hit` what was clicked, and `failed` a mark under the pointer.
    show(p, hit, failed) {
      broken = failed;
      const parts = failed ? [] : partsAt(p, hit);
      bar.hidden = !failed && !parts.length;
      if (bar.hidden) return;
      setText(text, failed ? `${failed.text}: failed` : parts.length === 1 ? parts[0][1] : "");
      text.hidden = !text.textContent;
      choice.hidden = parts.length < 2;
      fillSelect(choice, parts, parts[0]?.[0] ?? "");
      fail.hidden = remove.hidden = Boolean(failed);
      restore.hidden = !failed;
    },
    hide,
  };
}
