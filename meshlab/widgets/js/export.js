// The export menu: report, picture, tables, code of the frameworks, and a notebook cell.

import { copyText, refill, saveFile, saveUrl } from "./dom.js";
import { menu } from "./fields.js";

export function exportPanel({ model, root, listen, shell }) {
  const actions = {
    report: () => ask("report"),
    page: () => ask("page"),
    run: () => ask("run"),
    svg: () => ask("svg"),
    png: () => saveUrl("topology.png", shell.picture.toDataUrl()),
    csv: () => ask("csv"),
    groups: () => ask("groups"),
    text: () => ask("text"),
    cell: () => copy(model.get("_code"), "the cell"),
  };
  const choose = (value, item) => {
    const framework = value.startsWith("code:") ? frameworks.find(({ name }) => name === value.slice(5)) : null;
    if (framework) copy(framework.text, framework.name);
    else actions[value](item);
  };
  const list = menu({ label: "Export", listen, root: shell.root, choose, title: "Save or copy the design." });
  let frameworks = [];
  root.append(list.root);

  function fill() {
    const { heading, item } = list;
    const code = frameworks.map(({ name, problem }) => item(`code:${name}`, name, { off: problem }));
    const files = [
      ["report", "Report", "HTML"],
      ["run", "Report of the run", "HTML"],
      ["page", "Interactive page", "HTML"],
      ["svg", "Picture", "SVG"],
      ["png", "Picture as shown", "PNG"],
      ["csv", "Table of axes", "CSV"],
      ["groups", "Table of groups", "CSV"],
      ["text", "Description", "text"],
    ];
    const saved = files
      .filter(([name]) => (shell.isLive || name === "png") && (name !== "run" || model.get("_run")?.state))
      .map(([name, text, note]) => item(name, text, { note }));
    refill(list.list, heading("Save"), ...saved, heading("Copy"), item("cell", "Notebook cell"), ...code);
  }
  fill();
  listen(list.opener, "click", () => {
    if (!list.isOpen()) return;
    fill();
    ask("frameworks");
  });

  function ask(what) {
    shell.send({ type: "export", what });
  }

  async function copy(text, name) {
    shell.announce(
      (await copyText(text, shell.root))
        ? `Copied ${name}`
        : `The front end does not allow copying: use Show code, and copy ${name} from there`,
    );
  }

  shell.onMessage("export", (content) => {
    if (content.what === "frameworks") {
      frameworks = content.frameworks;
      fill();
    } else if (content.problem) {
      shell.announce(content.problem);
    } else {
      saveFile(content.name, content.kind, [content.text]);
    }
  });
  return { update() {}, destroy() {} };
}

exportPanel.traits = [];
