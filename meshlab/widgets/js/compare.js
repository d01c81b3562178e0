// The comparison with candidate A: the sentence, its numbers, the differences, and A's picture beside that of B.

import { button, div, element, headOf, muted, refill, setText } from "./dom.js";
import { picturePanel } from "./picture.js";

const PINNED = { _scene: "_pinned_scene", _view: "_pinned_view", _loads: "_pinned_loads" };

// The model of A's picture: its own traits for what is drawn, its own pick and place, and the rest from the workbench.
function pinnedModel(model) {
  const own = new Map(
    Object.entries({ pick: null, selected: new DataView(new ArrayBuffer(0)), focus: "all", _values: {}, _edit: 0 }),
  );
  const handlers = [];
  const event = (name) => {
    const trait = name.replace("change:", "");
    return own.has(trait) ? null : `change:${PINNED[trait] ?? trait}`;
  };
  return {
    get(name) {
      if (own.has(name)) return own.get(name);
      const value = model.get(PINNED[name] ?? name);
      return name === "color" && !["group", "sharing", "load"].includes(value) ? "group" : value;
    },
    set: (name, value) => own.has(name) && own.set(name, value),
    save_changes() {},
    on(name, handler) {
      if (event(name)) model.on(event(name), handler);
      handlers.push([name, handler]);
    },
    off(name, handler) {
      if (event(name)) model.off(event(name), handler);
    },
  };
}

// Leaves only the stage of a picture, under its own name: what is around a picture belongs to that of B.
function bare(picture) {
  const { root } = picture;
  for (const child of [...root.children]) if (!child.matches(".ml-stage, .ml-probe")) child.remove();
  root.classList.remove("meshlab-picture");
  root.querySelector(".ml-stage").className = "ml-stage-of-a";
  return picture;
}

export function comparePanel({ model, root, listen, shell }, stage) {
  const sentence = element("p", { class: "ml-decision", role: "status", hidden: true });
  const pair = div("ml-pair");
  const ofA = element("figure", { class: "ml-of-a", hidden: true });
  const ofB = element("figure", { class: "ml-of-b" });
  const captions = { a: element("figcaption", {}), b: element("figcaption", { hidden: true }) };
  const holder = element("div", {});
  stage.replaceWith(pair);
  ofA.append(captions.a, holder);
  ofB.append(captions.b, stage);
  pair.append(ofA, ofB);
  pair.before(sentence);
  const compared = element("div", { class: "ml-compared", hidden: true });
  root.prepend(compared);
  let picture = null;

  listen(compared, "click", (event) => {
    const action = event.target.closest("button")?.dataset.action;
    if (action) shell.edit({ action });
  });

  function showA(isShown) {
    ofA.hidden = captions.b.hidden = !isShown;
    pair.classList.toggle("ml-side-by-side", isShown);
    if (isShown && !picture) picture = bare(picturePanel({ model: pinnedModel(model), root: holder }));
    if (!isShown && picture) {
      picture.destroy();
      picture = null;
    }
  }

  function numbers(rows) {
    const cell = (text) => element("td", { text });
    return element(
      "table",
      { class: "ml-numbers ml-decision-table" },
      headOf(["", "A", "B", "B to A"]),
      element(
        "tbody",
        {},
        ...rows.map(([label, ...texts]) =>
          element("tr", {}, element("th", { scope: "row", text: label }), ...texts.map(cell)),
        ),
      ),
    );
  }

  return {
    update() {
      const { pinned, summary } = shell.panel();
      const decision = model.get("_decision");
      const isCompared = Boolean(pinned && decision.sentence);
      sentence.hidden = compared.hidden = !isCompared;
      showA(isCompared && Boolean(model.get("_pinned_view").title));
      if (!isCompared) return;
      setText(sentence, decision.sentence);
      sentence.dataset.choice = decision.choice;
      refill(captions.a, element("b", { text: "A" }), ` ${pinned.title}`);
      refill(captions.b, element("b", { text: "B" }), ` ${summary}`);
      const controls = [
        button("Swap with A", { "data-action": "swap", title: "Continue with A, and keep this one as A." }),
        muted("Hold the key A in the picture to see it in the place of B."),
      ];
      refill(
        compared,
        numbers(decision.rows),
        element("ul", {}, ...pinned.lines.map((text) => element("li", { text }))),
        ...(shell.isLive ? [div("ml-row", ...controls)] : []),
      );
    },
    destroy() {
      picture?.destroy();
    },
  };
}

comparePanel.traits = ["_panel", "_decision", "_pinned_view"];
