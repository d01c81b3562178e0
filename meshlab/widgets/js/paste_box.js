// A field for a text, the button that explains it, and the explanation that Python returns as HTML.

const pasteBoxPanel = (() => {
const { make, text, show } = dom;
const MOST_BYTES = 8 << 20; // a Jupyter server closes a connection that gets a message of more than 10 MiB
const SLOW_MS = 300; // a longer wait is shown
let boxes = 0;

function panel({ model, root, listen }) {
  const id = `meshlab-paste-${++boxes}`;
  const field = make("textarea", { id, rows: 8, spellcheck: "false", wrap: "off", "aria-describedby": `${id}-hint`, placeholder: "[rank3]: torch.distributed.DistBackendError: NCCL error …" });
  const label = make("label", { for: id, text: "Log, matrix or report" });
  const hint = make("span", { class: "mr-soft", id: `${id}-hint`, text: "Of NCCL, PyTorch, nccl-tests, nvidia-smi, ibstat, dmesg and others, also several in one text. Nothing is executed." });
  const explain = make("button", { type: "button", class: "mr-main", text: "Explain", title: "Explain the text (Ctrl+Enter).", onclick: () => send(field.value) });
  const clear = make("button", { type: "button", text: "Clear", onclick: () => (send(""), field.focus()) });
  const copy = make("button", { type: "button", text: "Copy as Markdown", title: "Copy the explanation for an issue.", hidden: true, onclick: copied });
  const status = make("span", { class: "mr-soft mp-status", role: "status" });
  const problem = make("div", { class: "mr-alert", role: "alert" });
  const result = make("section", { class: "mp-result", "aria-label": "Explanation" });
  root.append(make("div", { class: "mp-label" }, label, hint), field, make("div", { class: "mp-controls" }, explain, clear, copy, status), problem, result);
  let slow = 0;

  function send(value) {
    if (new Blob([JSON.stringify(value)]).size > MOST_BYTES) {
      text(problem, "The text is too long for the connection to the kernel. Save it to a file, and write the name of the file here.");
      return;
    }
    text(problem, "");
    field.value = value;
    if (value === model.get("text")) return paint();
    slow = setTimeout(() => say("Explaining …"), SLOW_MS);
    model.set("text", value);
    model.save_changes();
  }

  // The verdict is the title of the explanation, so only screen readers need it a second time.
  function say(value, isShownElsewhere = false) {
    text(status, value);
    status.classList.toggle("mp-unseen", isShownElsewhere);
  }

  async function copied() {
    const isCopied = await copyText(model.get("_shown").markdown, root);
    say(isCopied ? "Copied" : "The browser does not permit copying");
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
    text(problem, shown.problem);
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

panel.traits = ["text", "_shown"];
return panel;
})();
