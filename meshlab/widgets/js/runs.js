// The runs of this session and of a folder. Two that are picked are compared.

const runsPanel = (() => {
const { make, text, show, attribute, fill, table } = dom;
const SIGNS = { running: "●", paused: "❚❚", done: "✓", cancelled: "■", interrupted: "■", failed: "✕" };

function panel({ model, root: parent, listen, shell }) {
  let picked = [];
  const folder = make("input", { type: "text", name: "folder", "aria-label": "Folder of runs", placeholder: "folder of saved runs", autocomplete: "off", spellcheck: "false" });
  const list = make("button", { type: "button", text: "List", onclick: () => shell.send({ type: "run.folder", folder: folder.value }) });
  const note = make("div", { class: "mr-soft" }), alert = make("div", { class: "mr-alert", role: "alert" });
  const body = make("tbody"), columns = ["", "run", "best busbw", "measured", "where and when (UTC)", ""];
  const head = make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col", text: name }))));
  const grid = make("div", { class: "mr-scroll" }, make("table", { class: "mr-table mr-runs" }, head, body));
  const result = make("section", { class: "mr-compared", "aria-label": "Comparison" });
  const root = make("div", { class: "meshlab-run mr-runsbox" },
    make("div", { class: "mr-head" }, note, make("div", { class: "mr-controls" }, folder, list)), alert, grid, result);
  parent.append(root);
  listen(folder, "keydown", (event) => {
    event.stopPropagation(); // keys of the notebook
    if (event.key === "Enter") list.click();
  });

  function pick(key, isPicked) {
    picked = isPicked ? [...picked, key].slice(-2) : picked.filter((one) => one !== key);
    shell.send(picked.length === 2 ? { type: "run.compare", keys: picked } : { type: "run.uncompare" });
    update();
  }

  function rowOf(one, shown) {
    const box = make("input", { type: "checkbox", "aria-label": `Compare ${one.name}`, onchange: (event) => pick(one.key, event.target.checked) });
    box.checked = picked.includes(one.key);
    const open = make("button", { type: "button", text: one.key === shown ? "Shown" : "Show", title: "Show this run in the tab Measure.", disabled: one.key === shown, onclick: () => shell.send({ type: "run.open", key: one.key }) });
    const two = (first, second) => make("span", {}, first, make("span", { class: "mr-soft", text: second }));
    const sign = make("span", { class: "mr-sign", title: one.state, role: "img", "aria-label": one.state, text: SIGNS[one.state] });
    const cells = [
      make("span", {}, make("span", { class: "mr-name" }, sign, make("b", { text: one.name })), make("span", { class: "mr-soft", text: one.is_here ? `${one.state} · this session` : one.state })),
      one.best, two(one.collectives, one.mesh), two(one.where, one.date), open,
    ];
    return make("tr", { "data-state": one.state }, make("td", {}, box), cells.map((value, k) => make("td", { class: k === 1 ? null : "mr-left" }, value)));
  }

  function update() {
    const { folder: known, rows, shown, problem, compared } = model.get("_runs");
    if (!rows) return;
    if (folder.getRootNode().activeElement !== folder && folder.value !== known) folder.value = known;
    picked = picked.filter((key) => rows.some((one) => one.key === key));
    text(note, rows.length ? (picked.length === 1 ? "Pick another run to compare with." : "Pick two runs to compare them.") : "No runs yet. Start one in the tab Measure, or list a folder of saved runs.");
    text(alert, problem ?? "");
    show(grid, rows.length > 0);
    fill(body, [rows, shown, picked], () => rows.map((one) => rowOf(one, shown)));
    show(result, Boolean(compared) && picked.length === 2);
    if (!compared) return;
    fill(result, compared, () => (compared.problem
      ? [make("div", { class: "mr-alert", text: compared.problem }),
        compared.can_force ? make("button", { type: "button", text: "Compare anyway", onclick: () => shell.send({ type: "run.compare", keys: compared.keys, anyway: true }) }) : ""]
      : [make("div", { class: "mr-verdict", text: compared.text }),
        make("div", { class: "mr-soft" }, make("div", { text: compared.from }), make("div", { text: compared.to })),
        make("ul", { class: "mr-notes" }, compared.notes.map((one) => make("li", { text: one }))),
        table({ ...compared, columns: ["", ...compared.columns.slice(1)] }, "")]));
  }
  update();
  return { update, destroy: () => root.remove() };
}
panel.traits = ["_runs"];
return panel;
})();
