// The job panel: the model, how it trains, and the layouts that a search finds.

import { attribute, button, div, element, fillSelect, muted, refill, setText, span, textField } from "./dom.js";
import { disclosure, problemBox, typedField } from "./fields.js";
import { joined } from "./text.js";

export function jobPanel({ model, root, listen, shell }) {
  const { edit, isLive } = shell;
  const choice = element("select", { class: "ml-model", "aria-label": "Model" });
  const about = element("p", { class: "ml-note ml-job-about" });
  const source = element("p", { class: "ml-note ml-soft ml-source" });
  const training = div("ml-fields");
  const sizes = div("ml-fields");
  const architecture = disclosure("Architecture", listen, sizes);
  const experts = textField({ "aria-label": "Expert layout", placeholder: "tp shards each expert" });
  const expertBox = problemBox({ listen, edit });
  const expertRow = div("ml-expert-row", element("label", {}, "Expert layout", experts));
  const problem = problemBox({ listen, edit });
  const search = button("Search layouts", {
    class: "ml-main-button",
    title: "List the layouts of this machine on which the job can run, the fastest first.",
  });
  const note = element("p", { class: "ml-note", role: "status" });
  const list = element("ol", { class: "ml-layouts", "aria-label": "Layouts, the fastest first" });
  const section = element(
    "section",
    { class: "ml-job", "aria-label": "Job" },
    element("h2", { text: "Job" }),
    choice,
    problem.root,
    about,
    training,
    expertRow,
    expertBox.root,
    architecture,
    source,
    div("ml-row", search),
    note,
    list,
  );
  root.append(section);
  const fields = new Map();
  let layouts = [];

  listen(choice, "change", () => edit({ action: "job", name: choice.value, where: "job" }));
  listen(search, "click", () => {
    setText(note, "Searching…");
    note.hidden = false;
    shell.send({ type: "search" });
  });
  shell.onMessage("searched", shell.refresh);
  listen(list, "click", (event) => {
    const target = event.target.closest("button");
    if (target) edit({ action: "layout", where: "layout", ...layouts[Number(target.dataset.layout)] });
  });
  const expertField = typedField({
    input: experts,
    listen,
    queue: shell.queue,
    send: (value) => edit({ action: "experts", value, where: "job:experts" }),
  });
  listen(experts, "keydown", (event) => keep(event, expertField));

  function keep(event, field) {
    event.stopPropagation(); // JupyterLab would leave the widget
    if (event.key === "Enter") event.target.blur();
    if (event.key === "Escape") field.reset();
  }

  function makeField({ name, label, choices, slider, is_model: isModel }) {
    const id = shell.id(`job-${name}`);
    const typed = textField({ id, inputmode: "numeric", ...slider });
    const options = choices.map((text) => element("option", { value: text, text }));
    /** @type {any} */
    const input = choices.length ? element("select", { id }, ...options) : typed;
    const send = (value) => edit({ action: "job_field", field: name, value, where: `job:${name}` });
    const ofText = typedField({ input, listen, queue: shell.queue, send });
    listen(typed, "keydown", (event) => keep(event, ofText));
    listen(typed, "focus", () => typed.select());
    const soft = element("span", { class: "ml-soft", id: `${id}-note` });
    attribute(input, "aria-describedby", soft.id);
    const box = problemBox({ listen, edit });
    const caption = span("ml-job-label", element("label", { for: id, text: label }), soft);
    const field = { input, ofText, soft, box, parts: [caption, input, box.root], into: isModel ? sizes : training };
    fields.set(name, field);
    return field;
  }

  function fillFields(rows) {
    for (const row of rows) {
      const field = fields.get(row.name) ?? makeField(row);
      const mine = shell.fault(`job:${row.name}`);
      field.ofText.update(row.value, mine ? mine.value : row.value);
      attribute(field.input, "aria-invalid", Boolean(mine));
      setText(field.soft, row.note);
      field.box.update(mine);
    }
    for (const into of [training, sizes]) {
      const parts = rows.flatMap(({ name }) => (fields.get(name).into === into ? fields.get(name).parts : []));
      if (parts.length !== into.children.length || parts.some((part, k) => into.children[k] !== part)) {
        into.replaceChildren(...parts);
      }
    }
  }

  // A saved page has the values, without fields that nothing answers.
  function fillTexts(rows) {
    const texts = (isModel) =>
      rows
        .filter((row) => row.is_model === isModel)
        .flatMap(({ label, value, note: soft }) => [
          span("ml-job-label", label, muted(soft)),
          element("span", { class: "ml-value", text: value }),
        ]);
    refill(training, ...texts(false));
    refill(sizes, ...texts(true));
  }

  function layoutRow(row, k) {
    const chunks = row.interleave > 1 ? `, ${row.interleave} chunks per stage` : "";
    const more = joined("", [row.experts && `experts ${row.experts}`, chunks]);
    const content = [
      element("span", { class: "ml-layout-mesh", text: row.mesh }),
      ...(more ? [muted(more)] : []),
      muted(`${row.step} · ${row.memory}`),
    ];
    const place = element("span", {
      class: "ml-place",
      title: "Place. Equal places are tied.",
      text: String(row.place),
    });
    const attributes = { "data-layout": String(k), "aria-pressed": String(row.shown) };
    const body = isLive
      ? element("button", { type: "button", ...attributes, title: "Put this layout on the picture." }, ...content)
      : span("ml-layout", ...content);
    return element("li", {}, place, body);
  }

  return {
    update() {
      const job = model.get("_job");
      if (!job.models) return;
      const hasJob = Boolean(job.title);
      section.hidden = !isLive && !hasJob;
      const own = hasJob && !job.model ? [["own", job.title]] : [];
      fillSelect(choice, [["", "No job"], ...own, ...job.models], job.model || (hasJob ? "own" : ""));
      choice.hidden = !isLive;
      problem.update(shell.fault("job") ?? shell.fault("layout"));
      for (const node of [about, training, architecture, search.parentElement]) node.hidden = !hasJob;
      search.parentElement.hidden ||= !isLive;
      const isChanged = hasJob && job.model && job.title.startsWith("custom");
      setText(about, isLive && !isChanged ? job.about : `${job.title}: ${job.about}`);
      setText(source, job.source);
      source.hidden = !job.source;
      if (isLive) fillFields(job.fields);
      else fillTexts(job.fields);
      expertRow.hidden = !hasJob || job.experts === null || !isLive;
      const wrong = shell.fault("job:experts");
      expertField.update(job.experts ?? "", wrong ? wrong.value : (job.experts ?? ""));
      expertBox.update(wrong);
      const found = job.search;
      layouts = (found?.rows ?? []).map(({ mesh, experts: on, interleave }) => ({ mesh, experts: on, interleave }));
      refill(list, ...(found?.rows ?? []).map(layoutRow));
      list.hidden = !layouts.length;
      const summary = found ? joined(". ", [found.note, found.more]) : "";
      setText(note, summary);
      note.hidden = !summary;
    },
    destroy() {},
  };
}

jobPanel.traits = ["_job", "_panel"];
