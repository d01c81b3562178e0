// A field for a text, the button that explains it, and the explanation that Python returns as HTML.

import { alertBox, button, copyText, div, element, muted, setText, show } from "./dom.js";

const MOST_BYTES = 8 << 20; // a Jupyter server closes a connection that gets a message of more than 10 MiB
const SLOW_MS = 300; // a longer wait is shown
let boxes = 0;

export function pasteBoxPanel({ model, root, listen }) {
  const id = `meshlab-paste-${++boxes}`;
  const field = element("textarea", {
    id,
    rows: 8,
    spellcheck: "false",
    wrap: "off",
    "aria-describedby": `${id}-hint`,
    placeholder: "[rank3]: torch.distributed.DistBackendError: NCCL error …",
  });
  const label = element("label", { for: id, text: "Log, matrix or report" });
  const hint = muted(
    "From NCCL, PyTorch, nccl-tests, nvidia-smi, ibstat, dmesg and others, or several in one text. Nothing is executed.",
    { id: `${id}-hint` },
  );
  const explain = button("Explain", {
    class: "ml-run-main",
    title: "Explain the text (Ctrl+Enter).",
    onclick: () => send(field.value),
  });
  const clear = button("Clear", { onclick: () => (send(""), field.focus()) });
  const copy = button("Copy as Markdown", {
    title: "Copy the explanation for an issue.",
    hidden: true,
    onclick: copied,
  });
  const status = element("span", { class: "ml-soft ml-paste-status", role: "status" });
  const problem = alertBox();
  const result = element("section", { class: "ml-paste-result", "aria-label": "Explanation" });
  root.append(
    div("ml-paste-label", label, hint),
    field,
    div("ml-paste-controls", explain, clear, copy, status),
    problem,
    result,
  );
  let slow = 0;

  function send(value) {
    if (new Blob([JSON.stringify(value)]).size > MOST_BYTES) {
      setText(
        problem,
        "The text is too long for the connection to the kernel. Save it to a file, and write the name of the file here.",
      );
      return;
    }
    setText(problem, "");
    field.value = value;
    if (value === model.get("text")) return paint();
    slow = setTimeout(() => say("Explaining …"), SLOW_MS);
    model.set("text", value);
    model.save_changes();
  }

  // The verdict is the title of the explanation, so only screen readers need it a second time.
  function say(value, isShownElsewhere = false) {
    setText(status, value);
    status.classList.toggle("ml-paste-unseen", isShownElsewhere);
  }

  async function copied() {
    const isCopied = await copyText(model.get("_shown").markdown, root);
    say(isCopied ? "Copied" : "The browser does not allow copying");
  }

  // JupyterLab would run the cell, or take the letters for commands.
  listen(field, "keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    send(field.value);
  });

  function paint() {
    clearTimeout(slow);
    const shown = model.get("_shown");
    setText(problem, shown.problem);
    say(shown.verdict, true);
    show(copy, Boolean(shown.html));
    if (result.dataset.html !== shown.html) {
      result.dataset.html = shown.html;
      // Python escapes every string of the text. The HTML has no scripts, and event attributes do not occur in it.
      result.innerHTML = shown.html;
    }
    show(result, Boolean(shown.html));
  }

  function update(changed) {
    if (changed.has("text") && field.value !== model.get("text")) field.value = model.get("text");
    if (changed.has("_shown")) paint();
  }

  field.value = model.get("text");
  paint();
  return { update, destroy: () => clearTimeout(slow) };
}

pasteBoxPanel.traits = ["text", "_shown"];
