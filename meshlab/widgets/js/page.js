// The model of a saved page: the state of the widget, without Python. `answers` has the state for the other values of
// some traits, such as the loads of the other axes, because no kernel computes them.

function pageModel(saved, answers) {
  const handlers = [];
  const state = decode(saved);
  let changed = new Set();

  function decode(value) {
    if (value === null || typeof value !== "object") return value;
    if (typeof value.base64 === "string") {
      return new DataView(Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0)).buffer);
    }
    if (Array.isArray(value)) return value.map(decode);
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, decode(one)]));
  }
  function set(name, value) {
    state[name] = value;
    changed.add(name);
    for (const [event, handler] of [...handlers]) if (event === `change:${name}`) handler();
  }
  function saveChanges() {
    const names = changed;
    changed = new Set();
    for (const name of names) {
      for (const [trait, value] of Object.entries(answers[name]?.[state[name]] ?? {})) {
        const answer = decode(value);
        // The picture drops answers to older edits.
        if (answer && typeof answer === "object" && "edit" in answer) answer.edit = state._edit;
        set(trait, answer);
      }
    }
    changed = new Set();
  }
  return {
    get: (name) => state[name],
    set,
    save_changes: () => queueMicrotask(saveChanges),
    on: (event, handler) => handlers.push([event, handler]),
    off: (event, handler) => {
      for (let k = handlers.length - 1; k >= 0; k--) {
        if (handlers[k][0] === event && handlers[k][1] === handler) handlers.splice(k, 1);
      }
    },
  };
}

/**
 * Renders a widget with the state that the page contains.
 * @param {{ render: Render }} widget
 */
export function showPage(widget) {
  const { state, answers } = JSON.parse(document.querySelector("#state").textContent);
  widget.render({ model: pageModel(state, answers), el: document.querySelector("#widget") });
}
