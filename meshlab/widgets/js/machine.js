// The machine panel: preset, a pasted description, the numbers of hosts and links, and the failed parts.

import { attribute, button, div, element, fill, muted, optionsOf, refill, setText } from "./dom.js";
import { problemBox, stepper } from "./fields.js";

export function machinePanel({ root, listen, shell }) {
  const preset = element("select", { class: "ml-preset", "aria-label": "Machine" });
  const here = button("This host", { title: "Read the GPUs, NICs and links of the kernel's host." });
  const paste = button("Paste…", {
    title: "nvidia-smi topo -m, rocm-smi --showtopo, NCCL's XML or Slurm's topology.conf",
    "aria-expanded": "false",
  });
  const text = element("textarea", {
    rows: "5",
    "aria-label": "Description of a machine",
    spellcheck: "false",
    placeholder: "nvidia-smi topo -m, rocm-smi --showtopo, NCCL XML, Slurm topology.conf or .yaml",
  });
  const use = button("Use", { class: "ml-main-button" });
  const cancel = button("Cancel");
  const pasted = element("div", { class: "ml-pasted", hidden: true }, text, div("ml-row", use, cancel));
  const fields = div("ml-fields");
  const failed = div("ml-failed");
  const edit = (content) => shell.edit(content);
  const problem = problemBox({ listen, edit });
  const note = element("p", { class: "ml-note" });
  const section = element(
    "section",
    { class: "ml-machine", "aria-label": "Machine" },
    element("h2", { text: "Machine" }),
    ...(shell.isLive
      ? [preset, div("ml-row", here, paste), pasted, problem.root]
      : [element("p", { text: shell.panel().machine?.title ?? "" })]),
    fields,
    note,
    failed,
  );
  root.append(section);
  const dials = new Map();

  const toggle = (isOpen) => {
    pasted.hidden = !isOpen;
    attribute(paste, "aria-expanded", isOpen);
    if (isOpen) text.focus();
  };
  listen(preset, "change", () => preset.value && edit({ action: "preset", name: preset.value, where: "machine" }));
  listen(here, "click", () => edit({ action: "this_host", where: "machine" }));
  listen(paste, "click", () => toggle(pasted.hidden));
  listen(cancel, "click", () => toggle(false));
  let pastedText = "";
  listen(use, "click", () => {
    pastedText = text.value;
    edit({ action: "paste_machine", text: pastedText, where: "paste_machine" });
  });
  listen(text, "keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") toggle(false);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) use.click();
  });
  listen(failed, "click", (event) => {
    const target = event.target.closest("button");
    if (target) edit({ action: "restore", ...(target.dataset.part ? { part: target.dataset.part } : {}) });
  });

  function dialRow({ name, label }) {
    const field = stepper({
      label,
      listen,
      queue: shell.queue,
      isLive: shell.isLive,
      id: shell.id(`dial-${name}`),
      step: (by) => edit({ action: "turn", dial: name, by, where: `dial:${name}` }),
      type: (value) => edit({ action: "dial", dial: name, value, where: `dial:${name}` }),
    });
    const box = problemBox({ listen, edit });
    const made = {
      field,
      box,
      caption: shell.isLive ? element("label", { for: shell.id(`dial-${name}`), text: label }) : muted(label),
    };
    fields.append(made.caption, field.root, box.root);
    dials.set(name, made);
    return made;
  }

  return {
    update() {
      const panel = shell.panel();
      const { machine } = panel;
      section.hidden = !machine;
      if (!machine) return;
      const own = machine.preset ? [] : [element("option", { value: "", text: machine.title })];
      fill(preset, [own.length, machine.presets, machine.title], () => [
        ...own,
        ...machine.presets.map(([vendor, options]) => element("optgroup", { label: vendor }, ...optionsOf(options))),
      ]);
      preset.value = machine.preset;
      for (const dial of machine.dials) {
        if (!shell.isLive && (dial.off || dial.value === "")) continue; // it says nothing about the machine
        const { field, box, caption } = dials.get(dial.name) ?? dialRow(dial);
        const mine = shell.fault(`dial:${dial.name}`);
        const hint = dial.hint || (dial.value === "" ? "–" : "");
        field.update({
          value: dial.hint ? "" : dial.value,
          canLess: dial.less,
          canMore: dial.more,
          off: dial.off,
          problem: mine,
          hint,
        });
        caption.title = dial.off;
        caption.classList.toggle("ml-off", Boolean(dial.off));
        box.update(mine);
      }
      const isPaste = Boolean(shell.fault("paste_machine"));
      problem.update(shell.fault("paste_machine") ?? shell.fault("machine"));
      attribute(text, "aria-invalid", isPaste);
      if (isPaste) {
        pasted.hidden = false;
      } else if (shell.isDone("paste_machine") && text.value === pastedText) {
        text.value = "";
        toggle(false);
      }
      setText(note, panel.note);
      note.hidden = !panel.note;
      if (!shell.isLive) {
        const list = element(
          "ul",
          { class: "ml-run-notes" },
          machine.failed.map(([, name]) => element("li", { text: name })),
        );
        return refill(failed, ...(machine.failed.length ? [element("h3", { text: "Failed" }), list] : []));
      }
      const chips = machine.failed.map(([part, name]) =>
        element(
          "button",
          {
            type: "button",
            class: "ml-chip",
            "data-part": part,
            title: `Restore ${name}.`,
            "aria-label": `Restore ${name}`,
          },
          element("b", { "aria-hidden": "true", text: "✕ " }),
          name,
        ),
      );
      refill(
        failed,
        ...(chips.length ? [element("h3", { text: "Failed" }), ...chips] : []),
        ...(chips.length > 1 ? [button("Restore all", { class: "ml-quiet" })] : []),
      );
    },
    destroy() {},
  };
}

machinePanel.traits = ["_panel"];
